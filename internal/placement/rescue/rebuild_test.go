package rescue_test

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/rescue"
)

// TestRebuildCountsOnFromNoAbsurdEpoch checks that Rebuild returns an error if the epoch that the volumes record is
// so high that it cannot be raised.
func TestRebuildCountsOnFromNoAbsurdEpoch(t *testing.T) {
	store := uuid.New()
	for _, epoch := range []uint64{math.MaxUint64, math.MaxUint64 - 1<<32, 1 << 62} {
		_, err := rescue.Rebuild(store, []rescue.FoundVolume{{Shard: "a", UUID: uuid.New(), Store: store,
			Facts: &rescue.FoundFacts{Routing: placement.Routing{Mode: placement.Named}, Copies: 1, Epoch: epoch}}}, nil)
		if err == nil || !strings.Contains(err.Error(), "epoch") {
			t.Errorf("epoch %d: %v", epoch, err)
		}
	}
}

// The test has one group with several copies, which the volumes hold in various states.
func TestRebuildPicksTheNewestMembership(t *testing.T) {
	type r = rescue.FoundReplica
	on := func(shards map[string]r) (store uuid.UUID, volumes []rescue.FoundVolume) {
		store = uuid.New()
		group := uuid.New()
		for _, name := range []string{"a", "b", "c", "d"} {
			v := rescue.FoundVolume{Shard: name, UUID: uuid.New(), Store: store, Facts: &rescue.FoundFacts{
				Routing: placement.Routing{Mode: placement.Named}, Copies: 3, Epoch: 9,
			}}
			if found, ok := shards[name]; ok {
				if found.Name = "g"; found.Joining {
					found.Name = ""
				}
				found.UUID, found.Store = group, store
				v.Replicas = []r{found}
			}
			volumes = append(volumes, v)
		}
		return store, volumes
	}
	abc, bcd := []uint64{1, 3, 5}, []uint64{3, 5, 7}
	for name, c := range map[string]struct {
		shards  map[string]r
		members string // shard and role of each member, in order; ? stands for a member that was not found
		leader  string
		short   bool
		fails   bool
	}{
		"all well": {
			shards: map[string]r{"a": {RaftID: 1, Voters: abc, Term: 3}, "b": {RaftID: 3, Voters: abc, Term: 4, Leader: true},
				"c": {RaftID: 5, Voters: abc, Term: 4}},
			members: "abc", leader: "b",
		},
		"a leader of an earlier term thinks so still": {
			shards: map[string]r{"a": {RaftID: 1, Voters: abc, Term: 3, Leader: true},
				"b": {RaftID: 3, Voters: abc, Term: 4, Leader: true}, "c": {RaftID: 5, Voters: abc, Term: 4}},
			members: "abc", leader: "b",
		},
		"one was away while the group moved": {
			shards: map[string]r{
				"a": {RaftID: 1, Voters: abc, Term: 9, ConfIndex: 10}, "b": {RaftID: 3, Voters: bcd, Term: 2, ConfIndex: 20},
				"c": {RaftID: 5, Voters: bcd, Term: 2, ConfIndex: 20}, "d": {RaftID: 7, Voters: bcd, Term: 2, ConfIndex: 20},
			},
			members: "bcd", leader: "b",
		},
		"one is lost, a majority is there": {
			shards:  map[string]r{"a": {RaftID: 1, Voters: abc}, "b": {RaftID: 3, Voters: abc}},
			members: "?ab", leader: "a",
		},
		"two are lost": {
			shards:  map[string]r{"a": {RaftID: 1, Voters: abc}},
			members: "??a", leader: "a", short: true,
		},
		"the majority of the newest membership is not there, that of the one before is": {
			shards: map[string]r{
				"a": {RaftID: 1, Voters: abc, ConfIndex: 10}, "b": {RaftID: 3, Voters: abc, ConfIndex: 10},
				"c": {RaftID: 5, Voters: []uint64{5, 7, 9}, ConfIndex: 20},
			},
			members: "??c", leader: "c", short: true,
		},
		"between two memberships": {
			shards: map[string]r{
				"b": {RaftID: 3, Voters: bcd, Outgoing: abc, ConfIndex: 20},
				"c": {RaftID: 5, Voters: bcd, Outgoing: abc, ConfIndex: 20},
			},
			members: "??bc", leader: "b",
		},
		"between two, with a majority of one only": {
			shards: map[string]r{
				"c": {RaftID: 5, Voters: bcd, Outgoing: []uint64{1, 3, 9}, ConfIndex: 20},
				"d": {RaftID: 7, Voters: bcd, ConfIndex: 19},
			},
			members: "???cd", leader: "c", short: true,
		},
		"a learner that is being made, and one that nobody has added": {
			shards: map[string]r{
				"a": {RaftID: 1, Voters: []uint64{1}, Learners: []uint64{3}, ConfIndex: 7}, "b": {RaftID: 3, Joining: true},
				"c": {RaftID: 5, Joining: true},
			},
			members: "aB", leader: "a",
		},
		"a copied folder": {
			shards:  map[string]r{"a": {RaftID: 1, Voters: []uint64{1}}, "b": {RaftID: 1, Voters: []uint64{1}, Foreign: true}},
			members: "a", leader: "a",
		},
		"a copied folder that does not say so": {
			shards: map[string]r{"a": {RaftID: 1, Voters: []uint64{1}}, "b": {RaftID: 1, Voters: []uint64{1}}}, fails: true,
		},
		"two histories": {
			shards: map[string]r{"a": {RaftID: 1, Voters: abc, ConfIndex: 5}, "b": {RaftID: 7, Voters: bcd, ConfIndex: 5}},
			fails:  true,
		},
		"one does not say which it is": {
			shards: map[string]r{"a": {RaftID: 1, Voters: abc}, "b": {Voters: abc}}, fails: true,
		},
	} {
		store, volumes := on(c.shards)
		out, err := rescue.Rebuild(store, volumes, nil)
		if err != nil {
			if !c.fails {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if c.fails || len(out.Groups) != 1 {
			t.Errorf("%s: %+v", name, out)
			continue
		}
		members := ""
		for _, m := range out.Groups[0].Members {
			word := m.Shard
			if m.Role == placement.Learner {
				word = string(word[0] - 'a' + 'A')
			}
			if members += word; word == "" {
				members += "?"
			}
		}
		_, short := out.Short["g"]
		if members != c.members || out.Groups[0].Leader != c.leader || short != c.short {
			t.Errorf("%s: members %s, leader %s, short %v; want %+v", name, members, out.Groups[0].Leader, out.Short, c)
		}
		slices.Reverse(volumes)
		if again, err := rescue.Rebuild(store, volumes, nil); err != nil || again.Groups[0].Leader != c.leader {
			t.Errorf("%s: in another order: %+v, %v", name, again, err)
		}
	}
}

// TestRebuildLeavesOutWhatIsLeftOfADeletedGroup checks that a rebuild copes with replicas of a deleted group that are
// left over while a new group has the same name. The placement must contain the new group and the rest of the store.
// If both groups may still hold records, Rebuild must fail.
func TestRebuildLeavesOutWhatIsLeftOfADeletedGroup(t *testing.T) {
	store, deleted, now := uuid.New(), uuid.New(), uuid.New()
	abc := []uint64{1, 3, 5}
	replica := func(id uuid.UUID, raftID uint64, ended bool) rescue.FoundReplica {
		return rescue.FoundReplica{Name: "g", UUID: id, Store: store, RaftID: raftID, Voters: abc, Ended: ended}
	}
	at := func(confIndex uint64, r rescue.FoundReplica) rescue.FoundReplica {
		r.ConfIndex = confIndex
		return r
	}
	type left = map[string]rescue.FoundReplica
	for name, c := range map[string]struct {
		left  left // replicas that are left over from the deleted group, by shard
		of    int  // number of copies of the new group that were found
		fails bool
	}{
		"one that was away": {
			left{"c": replica(deleted, 5, false)}, 3, false,
		},
		"a majority that has ended": {
			left{"a": replica(deleted, 1, true), "b": replica(deleted, 3, true)}, 3, false,
		},
		"one that was away, and one that ended": {
			left{"a": at(12, replica(deleted, 1, true)), "c": at(10, replica(deleted, 5, false))}, 2, false,
		},
		"a majority that was resumed, and one that has not seen it": {
			left{"a": at(10, replica(deleted, 1, true)), "b": at(12, replica(deleted, 3, false)),
				"c": at(12, replica(deleted, 5, false))}, 3, true,
		},
		"a majority that has not ended": {
			left{"a": replica(deleted, 1, false), "b": replica(deleted, 3, false)}, 3, true,
		},
		"one, beside a minority of the new group": {
			left{"c": replica(deleted, 5, false)}, 1, true,
		},
		"two groups that were deleted": {
			left{"a": replica(deleted, 1, true), "b": replica(uuid.New(), 3, true)}, 0, false,
		},
	} {
		var volumes []rescue.FoundVolume
		for n, shard := range []string{"a", "b", "c"} {
			v := rescue.FoundVolume{Shard: shard, UUID: uuid.New(), Store: store, Facts: &rescue.FoundFacts{
				Routing: placement.Routing{Mode: placement.Named}, Copies: 3, Epoch: 9}}
			if n < c.of {
				v.Replicas = append(v.Replicas, replica(now, abc[n], false))
			}
			if left, is := c.left[shard]; is {
				v.Replicas = append(v.Replicas, left)
			}
			volumes = append(volumes, v)
		}
		out, err := rescue.Rebuild(store, volumes, nil)
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", name, err)
		} else if err == nil && (len(out.Groups) != min(c.of, 1) || len(out.Notes) == 0 ||
			c.of > 0 && out.Groups[0].UUID != now) {
			t.Errorf("%s: %+v", name, out)
		}
	}
}

func TestRebuildSaysWhatContradictsItself(t *testing.T) {
	store, group, hash := uuid.New(), uuid.New(), placement.Routing{Mode: placement.Hash, Groups: 2}
	volumes := func(n int) []rescue.FoundVolume {
		out := make([]rescue.FoundVolume, 0, n)
		for i := range n {
			out = append(out, rescue.FoundVolume{
				Shard: fmt.Sprintf("s%d", i), UUID: uuid.New(), Store: store,
				Facts: &rescue.FoundFacts{Routing: hash, Copies: 1, Epoch: uint64(i)},
			})
		}
		return out
	}
	replica := func(name string, raft, term uint64) rescue.FoundReplica {
		return rescue.FoundReplica{Name: name, UUID: group, Store: store, RaftID: raft, Voters: []uint64{raft}, Term: term}
	}
	type found = []rescue.FoundVolume
	held := func(v found, replicas ...rescue.FoundReplica) {
		for i, r := range replicas {
			v[i].Replicas = []rescue.FoundReplica{r}
		}
	}
	for name, c := range map[string]struct {
		volumes int
		change  func(v found) // further change to the volumes; may be nil
		given   *rescue.FoundFacts
		passes  bool
	}{
		"nothing":       {volumes: 0},
		"one":           {volumes: 1, passes: true},
		"another store": {volumes: 2, change: func(v found) { v[1].Store = uuid.New() }},
		"a clone":       {volumes: 2, change: func(v found) { v[1].UUID = v[0].UUID }},
		"a name twice":  {volumes: 2, change: func(v found) { v[1].Shard = v[0].Shard }},
		"a bad name":    {volumes: 1, change: func(v found) { v[0].Shard = "A B" }},
		"other facts":   {volumes: 2, change: func(v found) { v[1].Facts.Routing.Groups = 3 }},
		"no facts":      {volumes: 1, change: func(v found) { v[0].Facts = nil }},
		"facts given": {volumes: 1, change: func(v found) { v[0].Facts = nil },
			given: &rescue.FoundFacts{Routing: hash, Copies: 1}, passes: true},
		"facts given that are wrong": {volumes: 1,
			given: &rescue.FoundFacts{Routing: placement.Routing{Mode: placement.Named}, Copies: 1}},
		"a group beyond the last": {volumes: 1, change: func(v found) { held(v, replica("2", 7, 1)) }},
		"a group of two UUIDs": {volumes: 2, change: func(v found) {
			held(v, replica("0", 7, 1), replica("0", 8, 1))
			v[1].Replicas[0].UUID = uuid.New()
		}},
		"two histories":    {volumes: 2, change: func(v found) { held(v, replica("0", 7, 1), replica("0", 8, 2)) }},
		"a copied replica": {volumes: 2, change: func(v found) { held(v, replica("0", 7, 1), replica("0", 7, 1)) }},
	} {
		v := volumes(c.volumes)
		if c.change != nil {
			c.change(v)
		}
		out, err := rescue.Rebuild(store, v, c.given)
		if (err == nil) != c.passes {
			t.Errorf("%s: error %v", name, err)
		}
		if err == nil && (len(out.Missing) != 2 || out.Meta.StoreUUID != store || out.Meta.EpochBase < 1<<32) {
			t.Errorf("%s: %+v", name, out)
		}
	}
	// A move may leave an older replica behind on a volume. Such a replica does not become a member. A replica whose
	// group is unknown is left out.
	v := volumes(2)
	v[0].Replicas = []rescue.FoundReplica{replica("0", 7, 1), {UUID: uuid.New(), Message: "unreadable"}}
	v[1].Replicas = []rescue.FoundReplica{replica("0", 8, 2)}
	v[1].Replicas[0].ConfIndex = 5
	out, err := rescue.Rebuild(store, v, nil)
	if err != nil || len(out.Groups) != 1 || len(out.Groups[0].Members) != 1 || out.Groups[0].Members[0].Shard != "s1" ||
		len(out.Notes) != 2 || !reflect.DeepEqual(out.Missing, []string{"1"}) {
		t.Errorf("%+v, %v", out, err)
	}
}
