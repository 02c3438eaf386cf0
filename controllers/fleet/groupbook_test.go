package fleet

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
)

var bookStore = types.NamespacedName{Namespace: "prod", Name: "quotes"}

// reportWith builds the report of a shard. Each word is the name of a group, followed by ! if the shard leads the
// group.
func reportWith(records int64, applied uint64, groups ...string) *recordv1.ShardStatus {
	r := &recordv1.ShardStatus{Shard: &recordv1.Shard{State: recordv1.ShardState_SHARD_STATE_SERVING}}
	for _, g := range groups {
		leads := g[len(g)-1] == '!'
		if leads {
			g = g[:len(g)-1]
		}
		r.Groups = append(r.Groups, &recordv1.Group{Group: g, State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: leads,
			Records:      records,
			AppliedIndex: applied})
	}
	return r
}

func bookPools(names ...string) []v1alpha1.ShardPool {
	pools := make([]v1alpha1.ShardPool, len(names))
	for n, name := range names {
		pools[n].Namespace, pools[n].Name, pools[n].Spec.StoreRef.Name = bookStore.Namespace, name, bookStore.Name
	}
	return pools
}

// If a node with leaders becomes unreachable, other shards take over the leadership of their groups. The records of
// these groups must not be counted twice.
func TestRecordsOfANodeThatIsDownAreNotCountedTwice(t *testing.T) {
	book, now := &GroupBook{}, time.Unix(1e6, 0)
	book.Note(bookStore, "a", map[string]*recordv1.ShardStatus{"a-0": reportWith(100, 10, "1!", "2"),
		"a-1": reportWith(100, 10, "1",
			"2!"),
		"a-2": reportWith(100, 10, "1", "2")}, now)
	if got := book.Sum(bookStore, bookPools("a")); !got.Known || got.Records != 200 || got.Led() != 2 ||
		got.ElectionPending {
		t.Fatalf("all well: %+v", got)
	}
	now = now.Add(10 * time.Second)
	book.Note(bookStore, "a", map[string]*recordv1.ShardStatus{"a-0": nil, "a-1": reportWith(120, 12, "1!", "2!"),
		"a-2": reportWith(110, 11, "1", "2")}, now)
	if got := book.Sum(bookStore, bookPools("a")); got.Records != 240 || got.Led() != 2 || got.ElectionPending ||
		len(got.Troubles(3)) != 2 {
		t.Errorf("a-0 is down: %+v", got)
	}
	// The old leader returns for a moment, and does not know of the new leader yet.
	book.Note(bookStore, "a", map[string]*recordv1.ShardStatus{"a-0": reportWith(100, 10, "1!", "2"),
		"a-1": reportWith(120, 12, "1!",
			"2!"),
		"a-2": reportWith(120, 12, "1", "2")}, now)
	if got := book.Sum(bookStore, bookPools("a")); got.Records != 240 {
		t.Errorf("two leaders: %d records", got.Records)
	}
	// If no shard leads a group, the records of its existing copies still count.
	book.Note(bookStore, "a", map[string]*recordv1.ShardStatus{"a-0": nil, "a-1": nil,
		"a-2": reportWith(120, 12, "1", "2")},
		now)
	if got := book.Sum(bookStore, bookPools("a")); got.Records != 240 {
		t.Errorf("no leader: %d records", got.Records)
	}
}

// The shards of different pools are asked at different times. If the leadership of a group moves to another pool, the
// last report of each pool may say that the group has no leader. Only after all pools have been asked again does the
// group count as leaderless.
func TestLeaderlessGroupIsReportedAfterAllPoolsAnswered(t *testing.T) {
	book, now := &GroupBook{}, time.Unix(1e6, 0)
	pools := bookPools("a", "b")
	step := func(after time.Duration, pool, leads string) GroupSum {
		now = now.Add(after)
		group := "1"
		if leads == pool {
			group = "1!"
		}
		book.Note(bookStore, pool, map[string]*recordv1.ShardStatus{pool + "-0": reportWith(5, 5, group)}, now)
		return book.Sum(bookStore, pools)
	}
	leaderless := func(s GroupSum) bool { return s.Groups["1"].Leaderless }
	if got := step(0, "a", "a"); got.Known || leaderless(got) {
		t.Errorf("pool b was not asked: %+v", got)
	}
	if got := step(time.Minute, "b", "a"); !got.Known || got.ElectionPending || leaderless(got) {
		t.Errorf("a leads: %+v", got)
	}
	if got := step(time.Minute, "a", "b"); !got.ElectionPending || leaderless(got) {
		t.Errorf("a leads no more, and b was not asked since: %+v", got)
	}
	if got := step(time.Second, "b", "b"); got.ElectionPending || leaderless(got) || got.Led() != 1 {
		t.Errorf("b leads: %+v", got)
	}
	if got := step(time.Minute, "b", ""); leaderless(got) {
		t.Errorf("lost just now: %+v", got)
	}
	if got := step(time.Second, "a", ""); leaderless(got) || !got.ElectionPending {
		t.Errorf("all asked, but too soon: %+v", got)
	}
	if got := step(LeaderGrace, "b", ""); leaderless(got) {
		t.Errorf("a was not asked again: %+v", got)
	}
	got := step(0, "a", "")
	if !leaderless(got) || got.ElectionPending || got.Led() != 0 || book.ElectionPending(bookStore) {
		t.Errorf("nobody leads: %+v", got)
	}
	if list := got.Troubles(1); len(list) != 1 || list[0].State != GroupNoLeader {
		t.Errorf("%+v", list)
	}
	if got := step(time.Second, "b", "b"); leaderless(got) || got.Led() != 1 {
		t.Errorf("b leads again: %+v", got)
	}
	book.Forget(bookStore, "b", now)
	if got := book.Sum(bookStore, bookPools("a")); !got.ElectionPending || leaderless(got) {
		t.Errorf("pool b is gone, with the leader: %+v", got)
	}
	book.Forget(bookStore, "a", now)
	if got := book.Sum(bookStore, nil); len(got.Groups) != 0 || got.Known {
		t.Errorf("all is gone: %+v", got)
	}
}

func TestNilBookIsEmpty(t *testing.T) {
	var book *GroupBook
	book.Note(bookStore, "a", nil, time.Now())
	book.Forget(bookStore, "a", time.Now())
	if got := book.Sum(bookStore, bookPools("a")); got.Known || book.ElectionPending(bookStore) {
		t.Errorf("%+v", got)
	}
}
