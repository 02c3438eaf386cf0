package lead

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/problems"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// written stands in for etcd, and counts how often a leader writes to it.
type written int

func (w *written) PutGroupAsLeader(_ context.Context, g placement.Group) (placement.Group, error) {
	*w++
	return g, nil
}

// lone creates the Steerer of shard a, without peers.
func lone(etcd Etcd) *Steerer {
	logger := slog.New(slog.DiscardHandler)
	return New(Options{
		Replicas: replicas.New(replicas.Options{Shard: "a", Logger: logger,
			Volume: func() uuid.UUID { return uuid.UUID{1} },
			Meta:   func() placement.Meta { return placement.Meta{Copies: 3} }}),
		Etcd: etcd, Problems: problems.New(logger), Logger: logger,
		VolumeSilent: func() bool { return false }, IsSilent: func(string) bool { return false },
		MustNotLead: func(string) bool { return false },
	})
}

// An incomplete list of members is not written to etcd as the membership, because the missing member would conclude
// that it was removed.
func TestAMembershipIsWrittenOnlyWhole(t *testing.T) {
	for name, c := range map[string]struct {
		conf *raftpb.ConfState
		want bool
	}{
		"nobody":        {&raftpb.ConfState{}, true},
		"a voter":       {&raftpb.ConfState{Voters: []uint64{99}}, false},
		"one that goes": {&raftpb.ConfState{VotersOutgoing: []uint64{99}}, false},
		"a learner":     {&raftpb.ConfState{Learners: []uint64{99}}, false},
		"one to come":   {&raftpb.ConfState{LearnersNext: []uint64{99}}, false},
	} {
		etcd := new(written)
		q := lone(etcd)
		id := uuid.New()
		options := group.Options{FS: vfstest.NewMem(), Dir: "g", Identity: format.Identity{Group: id, Name: "0"}}
		must.OK(t, group.Create(options, &raftpb.ConfState{Voters: []uint64{1}}))
		log, _, err := group.Load(t.Context(), options, new(group.Progress))
		must.OK(t, err)
		g := q.Replicas.Add(id, replicas.State{Replica: member.Replica{Name: "0", RaftID: 1}})
		state := replicas.Group{Group: placement.Group{Name: "0", UUID: id, Leader: "a",
			Members: []placement.Member{{Shard: "a", RaftID: 1, Role: placement.Voter}}}}
		c.conf.Voters = append(c.conf.Voters, 1)
		_, err = q.step(t.Context(), g.Serve(log, nil, 1, nil), replica.Members{Conf: c.conf, Term: 1}, state)
		if wrote := *etcd > 0; wrote != c.want {
			t.Errorf("%s is not named: written: %t, %v", name, wrote, err)
		}
		if err := log.Close(false); err != nil {
			t.Error(err)
		}
	}
}

// When a new replica of a group replaces the old one on the same volume, the Steerer must keep no entry for the old
// replica. The group must also lose the old replica's place among the groups that get copies on other shards.
func TestAReplacedReplicaKeepsNoPlace(t *testing.T) {
	q := lone(nil)
	id := uuid.New()
	first := q.Replicas.Add(id, replicas.State{})
	if !q.mayMove(first, 1) || q.memoryOf(first) == nil {
		t.Fatal("the first group may not move")
	}
	next := q.Replicas.Add(id, replicas.State{})
	if !q.mayMove(next, 1) || q.memoryOf(next) != q.memoryOf(first) || len(q.known) != 1 {
		t.Errorf("the replica in its place may not move, or there are %d entries", len(q.known))
	}
	q.forget(next)
	if len(q.known)+len(q.moves) > 0 {
		t.Errorf("after the group has left: %d and %d entries", len(q.known), len(q.moves))
	}
}

// While a group is being examined, its replica leaves the group. The examination continues, and reserves a place for
// a move. The place must be released, so that other groups can use it.
func TestAGroupThatLeavesDuringALookIsForgotten(t *testing.T) {
	q := lone(nil)
	g := q.Replicas.Add(uuid.New(), replicas.State{})
	g.AskLook()
	q.take(q.Replicas.Looks.Take())
	q.Replicas.Remove(g)
	g.AskLook()
	if due := q.take(q.Replicas.Looks.Take()); len(due) > 0 {
		t.Fatal("a group is looked at twice at a time")
	}
	q.memoryOf(g)
	q.mayMove(g, 1)
	q.done(g, true)
	for _, g := range q.take(q.Replicas.Looks.Take()) {
		q.done(g, q.look(t.Context(), g))
	}
	if len(q.known)+len(q.moves) > 0 || !q.Idle() {
		t.Errorf("after the group has left: %d and %d entries; idle: %t", len(q.known), len(q.moves), q.Idle())
	}
}

// A group waits for a new copy, but then its target changes back. The next examination finds nothing to do, and must
// release the place that was reserved for the group's move.
func TestAFinishedLookReturnsThePlaceOfAMove(t *testing.T) {
	q := lone(nil)
	first, second := q.Replicas.Add(uuid.New(), replicas.State{}), q.Replicas.Add(uuid.New(), replicas.State{})
	if !q.mayMove(first, 1) || q.mayMove(second, 1) {
		t.Fatal("not exactly one group may move")
	}
	q.done(first, true)
	if q.mayMove(second, 1) {
		t.Error("the place of a group that waits is given away")
	}
	q.done(first, false)
	if !q.mayMove(second, 1) {
		t.Error("a group that is done keeps its place")
	}
}

// If a group is to be examined while it is already being examined, a second examination follows the first one. If the
// group is unfinished, it is examined again, too.
func TestLooksFollow(t *testing.T) {
	q := lone(nil)
	g := q.Replicas.Add(uuid.New(), replicas.State{})
	g.AskLook()
	if due := q.take(q.Replicas.Looks.Take()); len(due) != 1 || q.Idle() {
		t.Fatalf("%d groups are due", len(due))
	}
	g.AskLook()
	if due := q.take(q.Replicas.Looks.Take()); len(due) > 0 {
		t.Error("a group is looked at twice at a time")
	}
	q.done(g, false)
	if asked := q.Replicas.Looks.Take(); len(asked) != 1 || len(q.take(asked)) != 1 {
		t.Error("the look that was asked for meanwhile does not follow")
	}
	q.done(g, true)
	if q.Idle() {
		t.Error("an unfinished group is not waited for")
	}
	<-q.Replicas.Looks.Woken
	q.done(g, false)
	if !q.Idle() {
		t.Error("a finished group is waited for")
	}
}

// When a shard returns after its member's location was lost in etcd, it keeps that member even if the other members
// have a leader. The leader waits for the shard's report before it replaces the member.
func TestALeaderWaitsForTheClaimOfAShardThatHasJustCome(t *testing.T) {
	lost := placement.Member{RaftID: 5}
	state := replicas.Group{
		Group:  placement.Group{Members: []placement.Member{{Shard: "a", RaftID: 1}, lost}},
		Target: []string{"a", "b"},
		Shards: map[string]placement.Shard{"a": {Name: "a", VolumeUUID: uuid.New()}},
	}
	g := &memory{}
	longAgo := time.Now().Add(-time.Hour)
	for _, c := range []struct {
		what  string
		since time.Time
		come  string // name of another shard that registers now; may be empty
		id    uint64
		wait  bool
	}{
		{"there is nobody to take its place", longAgo, "", lost.RaftID, true},
		{"a shard that is not wanted has come", longAgo, "c", lost.RaftID, true},
		{"a wanted shard has come", longAgo, "b", lost.RaftID, true},
		{"it has come long ago", longAgo, "b", lost.RaftID, false},
		{"a member with a known place", time.Now(), "b", 1, false},
	} {
		g.comeSince = c.since
		if c.come != "" && state.Shards[c.come].Name == "" {
			state.Shards[c.come] = placement.Shard{Name: c.come, VolumeUUID: uuid.New()}
		}
		if got := mayStillReport(g, state, c.id, false); got != c.wait {
			t.Errorf("%s: %v", c.what, got)
		}
		if got := mayStillReport(g, state, 9, true); got != (c.wait || c.id != lost.RaftID) {
			t.Errorf("%s, and another is to come: %v", c.what, got)
		}
	}
	if n := knownVoters(&raftpb.ConfState{Voters: []uint64{1, 3, lost.RaftID}}, state.Members); n != 2 {
		t.Errorf("%d of 3 voters are known, want 2", n)
	}
	state.Target = []string{"a"}
	if mayStillReport(g, state, lost.RaftID, false) {
		t.Error("every wanted shard holds a member, and one that is too much is waited for")
	}
}
