package controllers

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
)

var bookStore = types.NamespacedName{Namespace: "prod", Name: "quotes"}

// said is what a shard reports; the words of a group are its name, and ! where the shard leads it.
func said(records int64, applied uint64, groups ...string) *ShardReport {
	r := &ShardReport{State: v1alpha1.ShardServing}
	for _, g := range groups {
		leads := g[len(g)-1] == '!'
		if leads {
			g = g[:len(g)-1]
		}
		r.Groups = append(r.Groups, GroupReport{Group: g, State: "Serving", Leader: leads, Records: records, AppliedIndex: applied})
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

// A node that is cut takes the leaders of groups with it; others lead these groups then.
func TestRecordsOfANodeThatIsDownAreNotCountedTwice(t *testing.T) {
	book, now := &GroupBook{}, time.Unix(1e6, 0)
	book.note(bookStore, "a", map[string]*ShardReport{"a-0": said(100, 10, "1!", "2"), "a-1": said(100, 10, "1", "2!"), "a-2": said(100, 10, "1", "2")}, now)
	if got := book.sum(bookStore, bookPools("a")); !got.known || got.records != 200 || got.led() != 2 || got.unsettled {
		t.Fatalf("all well: %+v", got)
	}
	now = now.Add(10 * time.Second)
	book.note(bookStore, "a", map[string]*ShardReport{"a-0": nil, "a-1": said(120, 12, "1!", "2!"), "a-2": said(110, 11, "1", "2")}, now)
	if got := book.sum(bookStore, bookPools("a")); got.records != 240 || got.led() != 2 || got.unsettled || len(got.troubles(3)) != 2 {
		t.Errorf("a-0 is down: %+v", got)
	}
	// The old leader is back for a moment and knows nothing of the new one.
	book.note(bookStore, "a", map[string]*ShardReport{"a-0": said(100, 10, "1!", "2"), "a-1": said(120, 12, "1!", "2!"), "a-2": said(120, 12, "1", "2")}, now)
	if got := book.sum(bookStore, bookPools("a")); got.records != 240 {
		t.Errorf("two leaders: %d records", got.records)
	}
	// Nobody leads: what is there is still there.
	book.note(bookStore, "a", map[string]*ShardReport{"a-0": nil, "a-1": nil, "a-2": said(120, 12, "1", "2")}, now)
	if got := book.sum(bookStore, bookPools("a")); got.records != 240 {
		t.Errorf("no leader: %d records", got.records)
	}
}

// Shards of different pools are asked at different times: a group that moves has a leader at every one of them.
func TestAGroupWithoutALeaderIsFoundWhenAllWereAskedAgain(t *testing.T) {
	book, now := &GroupBook{}, time.Unix(1e6, 0)
	pools := bookPools("a", "b")
	step := func(after time.Duration, pool, leads string) groupSum {
		now = now.Add(after)
		group := "1"
		if leads == pool {
			group = "1!"
		}
		book.note(bookStore, pool, map[string]*ShardReport{pool + "-0": said(5, 5, group)}, now)
		return book.sum(bookStore, pools)
	}
	leaderless := func(s groupSum) bool { return s.groups["1"].leaderless }
	if got := step(0, "a", "a"); got.known || leaderless(got) {
		t.Errorf("pool b was not asked: %+v", got)
	}
	if got := step(time.Minute, "b", "a"); !got.known || got.unsettled || leaderless(got) {
		t.Errorf("a leads: %+v", got)
	}
	if got := step(time.Minute, "a", "b"); !got.unsettled || leaderless(got) {
		t.Errorf("a leads no more, and b was not asked since: %+v", got)
	}
	if got := step(time.Second, "b", "b"); got.unsettled || leaderless(got) || got.led() != 1 {
		t.Errorf("b leads: %+v", got)
	}
	if got := step(time.Minute, "b", ""); leaderless(got) {
		t.Errorf("lost just now: %+v", got)
	}
	if got := step(time.Second, "a", ""); leaderless(got) || !got.unsettled {
		t.Errorf("all asked, but too soon: %+v", got)
	}
	if got := step(leaderGrace, "b", ""); leaderless(got) {
		t.Errorf("a was not asked again: %+v", got)
	}
	got := step(0, "a", "")
	if !leaderless(got) || got.unsettled || got.led() != 0 || book.unsettled(bookStore) {
		t.Errorf("nobody leads: %+v", got)
	}
	if list := got.troubles(1); len(list) != 1 || list[0].State != groupNoLeader {
		t.Errorf("%+v", list)
	}
	if got := step(time.Second, "b", "b"); leaderless(got) || got.led() != 1 {
		t.Errorf("b leads again: %+v", got)
	}
	book.forget(bookStore, "b", now)
	if got := book.sum(bookStore, bookPools("a")); !got.unsettled || leaderless(got) {
		t.Errorf("pool b is gone, with the leader: %+v", got)
	}
	book.forget(bookStore, "a", now)
	if got := book.sum(bookStore, nil); len(got.groups) != 0 || got.known {
		t.Errorf("all is gone: %+v", got)
	}
}

func TestABookThatIsNotThereKnowsNothing(t *testing.T) {
	var book *GroupBook
	book.note(bookStore, "a", nil, time.Now())
	book.forget(bookStore, "a", time.Now())
	if got := book.sum(bookStore, bookPools("a")); got.known || book.unsettled(bookStore) {
		t.Errorf("%+v", got)
	}
}

func TestCountsWhileEtcdIsAwayFollowTheShards(t *testing.T) {
	before := v1alpha1.GroupCounts{Total: 3, Serving: 3, Moving: 1}
	if got := heardCounts(before, groupSum{}, 3); got.Serving != 3 {
		t.Errorf("nobody was asked: %+v", got)
	}
	heard := groupSum{known: true, groups: map[string]bookedGroup{"1": {serving: 3}, "2": {serving: 2}, "3": {serving: 1, leaderless: true}}}
	got := heardCounts(before, heard, 3)
	if got.Total != 3 || got.Serving != 2 || got.Degraded != 2 || got.Moving != 1 || len(got.NotWell) != 2 {
		t.Errorf("%+v", got)
	}
	// Of a group whose copies were all on nodes that are down since the operator began, nobody says anything.
	delete(heard.groups, "3")
	if got = heardCounts(before, heard, 3); got.Serving != 2 {
		t.Errorf("%+v", got)
	}
}

func TestAGroupWithoutALeaderDoesNotServe(t *testing.T) {
	view := viewOf(3, "a b c", map[string]string{"1": "a b c", "2": "a b c"})
	states := map[string]v1alpha1.ShardStatus{}
	for _, name := range []string{"a", "b", "c"} {
		states[name] = v1alpha1.ShardStatus{Name: name, State: v1alpha1.ShardServing}
	}
	heard := groupSum{known: true, groups: map[string]bookedGroup{"2": {serving: 3, leaderless: true}}}
	got := countCopies(view, states, heard)
	if got.Total != 2 || got.Serving != 1 || got.Degraded != 1 || len(got.NotWell) != 1 || got.NotWell[0].State != groupNoLeader {
		t.Errorf("%+v", got)
	}
}
