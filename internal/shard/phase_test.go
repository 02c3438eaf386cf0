package shard

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/follow"
	"sheaf.dev/sheaf/internal/shard/member"
)

// A replica that was found with only its Raft id is installed before it is loaded. The first load must ignore it: a
// separate load during the installation would fail, or would open the log that the installation has put there a second
// time.
func TestTheFirstLoadLeavesAloneWhatJoins(t *testing.T) {
	s := lone(t)
	state := placement.Group{Name: "0", UUID: uuid.New(), ConfIndex: 7, Members: with(placement.Member{
		Shard: "a", VolumeUUID: s.volume.Superblock().Volume, RaftID: 5, Role: placement.Learner,
	})}
	if err := (actions{s}).MakeFolder(state); err != nil {
		t.Fatal(err)
	}
	s.loading.beganAt = time.Time{} // a new start
	s.groups[state.UUID] = s.volume.find(state.UUID)
	s.mu.Lock()
	s.watcher.View = placement.View{
		Groups: map[string]placement.Group{"0": state}, Targets: map[string]placement.Target{},
		Shards: map[string]placement.Shard{},
	}
	s.watcher.Decide(s.watcher.View)
	s.mu.Unlock()
	if groups := s.loading.takePending(); len(groups) > 0 {
		t.Errorf("the first load loads %d groups", len(groups))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := does(s, s.watcher.Decide(s.watcher.View), s.groups[state.UUID]); got != "join" {
		t.Errorf("after that the shard does %q, want join", got)
	}
}

// A group that was made here counts as reported as soon as etcd names it here. What an etcd that was set back says has
// no such effect.
func TestWhatEtcdNamesHereWasReported(t *testing.T) {
	for held, want := range map[string]bool{"": false, "etcd was set back": true} {
		s := lone(t)
		g := &groupReplica{Replica: follow.Replica{Name: "0", UUID: uuid.New(), RaftID: 1}}
		made(g)
		s.groups[g.UUID] = g
		state := placement.Group{Name: "0", UUID: g.UUID, Members: with(placement.Member{
			Shard: "a", VolumeUUID: s.volume.Superblock().Volume, RaftID: 1,
		})}
		s.mu.Lock()
		s.watcher.Held = held
		s.watcher.Decide(placement.View{Groups: map[string]placement.Group{"0": state}})
		if g.NeverReported != want || g.Standing.Stray() || g.Phase != member.Loading {
			t.Errorf("%q: neverReported %t, standing %v, phase %v", held, g.NeverReported, g.Standing, g.Phase)
		}
		s.mu.Unlock()
	}
}

// The end of a load does not reverse a decision that was made while it ran.
func TestTheEndOfALoadTakesNoDecisionBack(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(s *Shard, g *groupReplica)
		want   member.Phase
	}{
		{"nothing was decided", func(*Shard, *groupReplica) {}, member.Serving},
		{"it was set aside", func(s *Shard, g *groupReplica) {
			serves(g) // its node runs a moment before its load is known to have ended
			s.watcher.Decide(placement.View{})
		}, member.Pending},
		{"it lacks entries", func(s *Shard, g *groupReplica) { g.Happens(member.Forgot, s.logger) }, member.MissingEntries},
		{"it was lost", func(s *Shard, g *groupReplica) { g.Happens(member.Missing, s.logger) }, member.Lost},
	} {
		s := lone(t)
		g := &groupReplica{Replica: follow.Replica{Name: "0", UUID: uuid.New(), RaftID: 1, Phase: member.Loading}}
		s.groups[g.UUID] = g
		s.mu.Lock()
		c.before(s, g)
		s.loading.ended(g, nil)
		if g.Phase != c.want {
			t.Errorf("%s: %v, want %v", c.name, g.Phase, c.want)
		}
		s.mu.Unlock()
	}
}
