package move_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/move"
	"sheaf.dev/sheaf/internal/placement"
)

// settledState returns the state of a group with three copies on a, b and c, which are its target. Shard d is free.
// Member n has id 2n+1.
func settledState() move.State {
	s := move.State{
		Self: 1, Conf: &raftpb.ConfState{Voters: []uint64{1, 3, 5}}, Last: 5000, Progress: map[uint64]move.Progress{},
		Target: []string{"a", "b", "c"}, Shards: map[string]move.Shard{}, FreshID: 99, LearnersMax: -1,
	}
	for i, name := range []string{"a", "b", "c", "d"} {
		s.Shards[name] = move.Shard{Volume: uuid.UUID{byte(i + 1)}, Alive: true}
		if i < 3 {
			s.Members = append(s.Members, placement.Member{Shard: name, VolumeUUID: uuid.UUID{byte(i + 1)},
				RaftID: uint64(2*i + 1)})
			s.Progress[uint64(2*i+1)] = move.Progress{Match: 5000, Replicating: true, Active: true}
		}
	}
	return s
}

// learnerOn adds a learner with id 7 on shard d, in etcd and in the configuration.
func learnerOn(s *move.State, p move.Progress) {
	s.Members = append(s.Members, placement.Member{Shard: "d", VolumeUUID: uuid.UUID{4}, RaftID: 7,
		Role: placement.Learner})
	s.Conf.Learners = []uint64{7}
	s.Progress[7] = p
}

// unknown simulates that etcd no longer knows the shard of member 5. The member is silent.
func unknown(s *move.State) {
	s.Members[2].Shard, s.Members[2].VolumeUUID = "", uuid.Nil
	s.Progress[5] = move.Progress{}
}

func TestDecide(t *testing.T) {
	caughtUp := move.Progress{Match: 4500, Replicating: true, Active: true}
	for name, c := range map[string]struct {
		change func(*move.State)
		want   move.Kind
		id     uint64
		ids    []uint64
		done   bool
		reason string // a substring of Action.Reason
	}{
		"all is well": {want: move.Nothing, done: true},
		"a change pending": {change: func(s *move.State) {
			s.Pending = true
			s.Target = []string{"d", "b", "c"}
		}, reason: "on its way"},
		"joint": {change: func(s *move.State) {
			s.Conf.VotersOutgoing, s.Target = []uint64{1, 3, 5}, []string{"d", "b", "c"}
		}, reason: "still agree"},
		"no target":       {change: func(s *move.State) { s.Target = nil }, reason: "no target"},
		"no voter itself": {change: func(s *move.State) { s.Self = 77 }, reason: "no voter"},
		"etcd has forgotten a member": {change: func(s *move.State) {
			s.Members = s.Members[:2]
		}, reason: "etcd does not say on which shard member 5 is"},
		"etcd has forgotten a member that the leader knows": {
			change: func(s *move.State) {
				s.Known = slices.Clone(s.Members)
				s.Members = s.Members[:2]
			}, want: move.RecordMembers,
		},
		"nobody knows where a voter is, and no target is set": {
			change: func(s *move.State) { unknown(s); s.Target = nil }, reason: "no target",
		},
		"nobody knows where a voter is, and its shard is not wanted": {
			change: func(s *move.State) { unknown(s); s.Target[2] = "d" }, want: move.RecordMembers, id: 99, reason: "shard d",
		},
		"nobody knows where a voter is, and another copy is being made": {
			change: func(s *move.State) { unknown(s); s.Target[2] = "d"; learnerOn(s, move.Progress{}) }, reason: "caught up",
		},
		"nobody knows where a voter is, and another copy is caught up": {
			change: func(s *move.State) {
				unknown(s)
				s.Target[2] = "d"
				learnerOn(s, caughtUp)
			}, want: move.Replace, id: 5, ids: []uint64{7},
		},
		"nobody knows where a voter is, and it is one too many": {
			change: func(s *move.State) { unknown(s); s.Target = s.Target[:2] }, want: move.RemoveMember, id: 5,
		},
		"a learner is recorded": {
			change: func(s *move.State) {
				s.Target = []string{"a", "b", "d"}
			}, want: move.RecordMembers, id: 99, reason: "shard d",
		},
		"no id for a learner": {change: func(s *move.State) { s.Target[2], s.FreshID = "d", 3 }, reason: "Raft id"},
		"its shard is not there": {
			change: func(s *move.State) {
				s.Target[2] = "d"
				delete(s.Shards, "d")
			}, reason: "shard d, which is to get a copy, is not there",
		},
		"too many move": {change: func(s *move.State) { s.Target[2] = "d"; s.LearnersMax = 0 }, reason: "later"},
		"a learner is added": {change: func(s *move.State) {
			s.Target[2] = "d"
			learnerOn(s, move.Progress{})
			s.Conf.Learners = nil
		}, want: move.AddLearner, id: 7},
		"a recorded learner that is not wanted any more": {change: func(s *move.State) {
			learnerOn(s, move.Progress{})
			s.Conf.Learners = nil
		}, want: move.RecordMembers},
		"a learner is behind": {change: func(s *move.State) {
			s.Target[2] = "d"
			learnerOn(s, move.Progress{Match: 3999, Replicating: true, Active: true})
		}, reason: "shard d is being caught up"},
		"a learner waits for an install": {change: func(s *move.State) {
			s.Target[2] = "d"
			learnerOn(s, move.Progress{Match: 5000, Active: true})
		}, reason: "being caught up"},
		"a learner takes the place of a voter": {change: func(s *move.State) {
			s.Target[2] = "d"
			learnerOn(s, caughtUp)
		}, want: move.Replace, id: 5, ids: []uint64{7}},
		"a voter that is behind leaves first": {change: func(s *move.State) {
			s.Target = []string{"a", "d", "e"}
			learnerOn(s, caughtUp)
			s.Progress[5] = move.Progress{Active: true}
		}, want: move.Replace, id: 5, ids: []uint64{7}},
		"the leader is to leave": {change: func(s *move.State) {
			s.Target = []string{"d", "b", "c"}
			learnerOn(s, caughtUp)
		}, want: move.TransferLeader, id: 3},
		"the leader is to leave and the next is behind": {change: func(s *move.State) {
			s.Target = []string{"d", "b", "c"}
			learnerOn(s, caughtUp)
			s.Progress[3] = move.Progress{Active: true}
		}, want: move.TransferLeader, id: 5},
		"only two are caught up": {change: func(s *move.State) {
			s.Target[2] = "d"
			learnerOn(s, caughtUp)
			s.Progress[3] = move.Progress{}
		}, want: move.Replace, id: 5, ids: []uint64{7}},
		"no majority is caught up": {change: func(s *move.State) {
			s.Target[2] = "d"
			learnerOn(s, caughtUp)
			s.Progress[3], s.Progress[5] = move.Progress{}, move.Progress{}
		}, reason: "too few voters"},
		"the target goes back": {
			change: func(s *move.State) { learnerOn(s, caughtUp) }, want: move.RemoveMember, id: 7, reason: "not wanted",
		},
		"another shard is to lead": {change: func(s *move.State) {
			s.Target = []string{"c", "a", "b"}
		}, want: move.TransferLeader, id: 5},
		"the shard that is to lead is behind": {change: func(s *move.State) {
			s.Target = []string{"c", "a", "b"}
			s.Progress[5] = move.Progress{Active: true}
		}, done: true},
		"a volume was replaced": {
			change: func(s *move.State) { s.Shards["b"] = move.Shard{Volume: uuid.UUID{9}, Alive: true} },
			want:   move.RemoveMember, id: 3, reason: "gone with its volume",
		},
		"a shard is silent": {change: func(s *move.State) {
			delete(s.Shards, "b")
			s.Progress[3] = move.Progress{}
		}, done: true},
		"a learner's disk was replaced": {change: func(s *move.State) {
			s.Target[2] = "d"
			learnerOn(s, caughtUp)
			s.Shards["d"] = move.Shard{Volume: uuid.UUID{9}, Alive: true}
		}, want: move.RemoveMember, id: 7, reason: "gone with its volume"},
		"a volume was replaced and another is silent": {change: func(s *move.State) {
			s.Shards["b"] = move.Shard{Volume: uuid.UUID{9}, Alive: true}
			s.Progress[5] = move.Progress{}
		}, reason: "1 of 3 voters are caught up: needed are 2"},
		"fewer copies": {change: func(s *move.State) { s.Target = []string{"b"} }, want: move.RemoveMember, id: 5},
		"one copy to three, one learner at a time": {change: func(s *move.State) {
			s.Conf.Voters, s.Members, s.Target, s.LearnersMax = []uint64{1}, s.Members[:1], []string{"a", "b", "d"}, 1
			learnerOn(s, caughtUp)
		}, want: move.Promote, ids: []uint64{7}},
		"one copy to three, the other is coming": {change: func(s *move.State) {
			s.Conf.Voters, s.Target = []uint64{1}, []string{"a", "b", "d"}
			s.Members = s.Members[:2]
			s.Members[1].Role = placement.Learner
			learnerOn(s, caughtUp)
			s.Conf.Learners = []uint64{3, 7}
			s.Progress[3] = move.Progress{Active: true}
		}, reason: "shard b is being caught up"},
		"one copy moves": {change: func(s *move.State) {
			s.Conf.Voters, s.Members, s.Target = []uint64{1}, s.Members[:1], []string{"d"}
			learnerOn(s, caughtUp)
		}, want: move.Promote, ids: []uint64{7}},
	} {
		t.Run(name, func(t *testing.T) {
			s := settledState()
			if c.change != nil {
				c.change(&s)
			}
			a := move.Decide(s)
			if a.Kind != c.want || a.ID != c.id || !slices.Equal(a.IDs, c.ids) || a.Done != c.done ||
				!strings.Contains(a.Reason, c.reason) {
				t.Fatalf("%v, id %d, ids %v, done %t; want %v, %d, %v, %t, %q", a, a.ID, a.IDs, a.Done, c.want, c.id, c.ids, c.done,
					c.reason)
			}
			if a.Reason == "" {
				t.Fatal("no reason is said")
			}
			checkChange(t, a)
		})
	}
}

// checkChange checks that a replacement is one joint change that Raft leaves automatically.
func checkChange(t *testing.T, a move.Action) {
	t.Helper()
	cc := a.Change()
	switch a.Kind {
	case move.Nothing, move.RecordMembers, move.TransferLeader:
		if cc != nil {
			t.Fatalf("%v changes the membership: %v", a.Kind, cc)
		}
		return
	}
	auto, joint := cc.EnterJoint()
	if joint != (len(cc.GetChanges()) > 1) || joint && !auto || a.Kind == move.Replace && !joint {
		t.Fatalf("%v: joint %t, left by itself %t: %v", a.Kind, joint, auto, cc)
	}
}
