package shard

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
)

// If the volume has only the Raft id of a replica, and none of its files, the replica must be installed before it is
// loaded. The first load must ignore such a replica: a load during the install would fail, or would open the
// installed log a second time.
func TestTheFirstLoadLeavesAloneWhatJoins(t *testing.T) {
	s := unbegun(t)
	state := placement.Group{Name: "0", UUID: uuid.New(), ConfIndex: 7, Members: with(placement.Member{
		Shard: "a", VolumeUUID: s.volume.Superblock().Volume, RaftID: 5, Role: placement.Learner,
	})}
	must(t, (actions{s}).MakeFolder(state))
	s.replicas.Add(state.UUID, s.volume.Find(state.UUID)) // a start finds the replica in the same way
	s.watcher.See(placement.View{
		Groups: map[string]placement.Group{"0": state}, Targets: map[string]placement.Target{},
		Shards: map[string]placement.Shard{},
	})
	s.replicas.Decide(s.replicas.View())
	if groups := s.replicas.BeginLoad(); len(groups) > 0 {
		t.Errorf("the first load loads %d groups", len(groups))
	}
	if got := does(s, s.replicas.Decide(s.replicas.View()), state.UUID); got != "join" {
		t.Errorf("after that the shard does %q, want join", got)
	}
}

// A group that this process created counts as reported as soon as etcd lists the group at this shard. If etcd was
// rolled back, its list proves nothing, so the group still counts as never reported.
func TestWhatEtcdNamesHereWasReported(t *testing.T) {
	for held, want := range map[string]bool{"": false, "etcd was set back": true} {
		s := lone(t)
		begun := replicas.State{Replica: member.Replica{Name: "0", RaftID: 1}}
		made(&begun)
		g := s.replicas.Add(uuid.New(), begun)
		state := placement.Group{Name: "0", UUID: g.UUID, Members: with(placement.Member{
			Shard: "a", VolumeUUID: s.volume.Superblock().Volume, RaftID: 1,
		})}
		s.watcher.See(placement.View{SetBack: held})
		s.replicas.Decide(placement.View{Groups: map[string]placement.Group{"0": state}})
		if is := g.State(); is.NeverReported != want || is.Standing.Stray() || is.Phase != member.Loading {
			t.Errorf("%q: neverReported %t, standing %v, phase %v", held, is.NeverReported, is.Standing, is.Phase)
		}
	}
}

// If a decision about a replica is made while the replica is being loaded, the end of the load must not undo that
// decision.
func TestTheEndOfALoadTakesNoDecisionBack(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(s *Shard, g *replicas.Replica)
		want   member.Phase
	}{
		{"nothing was decided", func(*Shard, *replicas.Replica) {}, member.Serving},
		{"it was set aside", func(s *Shard, g *replicas.Replica) {
			g.Serve(nil, nil, 1, nil) // the node starts shortly before its load is recorded as finished
			s.replicas.Decide(placement.View{})
		}, member.Pending},
		{"it lacks entries", func(s *Shard, g *replicas.Replica) { g.Happens(member.Forgot) }, member.MissingEntries},
		{"it was lost", func(s *Shard, g *replicas.Replica) { g.Happens(member.Missing) }, member.Lost},
	} {
		s := lone(t)
		g := s.replicas.Add(uuid.New(), replicas.State{Replica: member.Replica{Name: "0", RaftID: 1, Phase: member.Loading}})
		c.before(s, g)
		g.EndLoad(group.Report{}, nil)
		if phase := g.State().Phase; phase != c.want {
			t.Errorf("%s: %v, want %v", c.name, phase, c.want)
		}
	}
}

// The first load plans from what it has read in a group's folder. If a decision about the group is made after that,
// the load reads the folder again, because the folder may then hold another replica.
func TestADecisionEndsThePlanOfALoad(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(s *Shard, g *replicas.Replica)
		used   bool
	}{
		{"nothing was decided", func(*Shard, *replicas.Replica) {}, true},
		{"it was taken before", func(_ *Shard, g *replicas.Replica) { g.TakePlan() }, false},
		{"it lacks entries", func(_ *Shard, g *replicas.Replica) { g.Happens(member.Forgot) }, false},
		{"it was set aside", func(_ *Shard, g *replicas.Replica) { g.Happens(member.SetAside) }, false},
		{"it left", func(s *Shard, g *replicas.Replica) { s.replicas.Remove(g) }, false},
		{"another is in its place", func(s *Shard, g *replicas.Replica) { s.replicas.Add(g.UUID, replicas.State{}) }, false},
	} {
		s := lone(t)
		plan := new(group.Plan)
		g := s.replicas.Add(uuid.New(), replicas.State{
			Replica: member.Replica{Name: "0", RaftID: 1, Phase: member.Loading}, Plan: plan})
		c.before(s, g)
		if got := g.TakePlan(); (got == plan) != c.used || (got == nil) == c.used {
			t.Errorf("%s: used %v, want %v", c.name, got == plan, c.used)
		}
	}
	s := lone(t)
	g := s.replicas.Add(uuid.New(), replicas.State{Replica: member.Replica{Name: "0", Phase: member.Loading},
		Plan: new(group.Plan)})
	g.Fail(errors.New("there is no memory for it"))
	if g.State().Plan != nil {
		t.Error("a group that is not loaded keeps what was read of its folder")
	}
	g = s.replicas.Add(uuid.New(), replicas.State{Replica: member.Replica{Name: "0", Phase: member.Joining},
		Plan: new(group.Plan)})
	s.replicas.BeginLoad()
	if g.State().Plan != nil {
		t.Error("a group that is not loaded now keeps what was read of its folder")
	}
}
