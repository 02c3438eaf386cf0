package shard

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/placement"
)

// An etcd that was rebuilt without some shards names their members, but does not know where they are. A shard that
// comes back takes its place again: it has not left.
func TestAMemberThatEtcdLooksForTakesItsPlace(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, hash4, abc)
		c.settled(abc...)
		for id := range int64(8) {
			c.put(id, data(id, 100))
		}
		before := c.registry.now().Groups
		for _, name := range abc {
			c.kill(name)
		}
		c.registry.change(func(v *placement.View) {
			for name, g := range v.Groups {
				g.Members = append([]placement.Member(nil), g.Members...)
				for i := range g.Members {
					if g.Members[i].Shard != "a" {
						g.Members[i].Shard, g.Members[i].VolumeUUID = "", uuid.Nil
					}
				}
				g.Revision = int64(v.Epoch)
				v.Groups[name] = g
			}
		})
		// There is no leader that could remove a member before both have reported where they are.
		c.restart("b")
		c.restart("c")
		c.restart("a")
		c.settled(abc...)
		for name, g := range c.registry.now().Groups {
			if !sameMembersOf(g, before[name]) {
				t.Errorf("group %s: members %+v, were %+v", name, g.Members, before[name].Members)
			}
		}
		for _, name := range abc {
			if trash := trashOf(t, c.shards[name]); len(trash) > 0 {
				t.Errorf("%s has thrown %v away", name, trash)
			}
		}
		for id := range int64(8) {
			c.holds(id, data(id, 100))
		}
	})
}

// Somebody wrote a membership to etcd that is older than the group's own, and lacks a member. The shard of that member
// reports it: nothing is deleted, and the group can be moved again.
func TestAMemberThatEtcdDoesNotNameSaysWhereItIs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, oneGroup, abc, "d")
		c.settled(abc...)
		for id := range int64(8) {
			c.put(id, data(id, 100))
		}
		before := c.registry.now().Groups["0"]
		for _, name := range abc { // whoever ran remembers where the members are
			c.kill(name)
		}
		c.registry.change(func(v *placement.View) {
			g := v.Groups["0"]
			g.Members = slices.DeleteFunc(slices.Clone(g.Members), func(m placement.Member) bool { return m.Shard == "c" })
			g.ConfIndex--
			g.Revision = int64(v.Epoch)
			v.Groups["0"] = g
		})
		for _, name := range abc {
			c.restart(name)
		}
		c.settled(abc...)
		if after := c.registry.now().Groups["0"]; !sameMembersOf(after, before) {
			t.Errorf("members %+v, were %+v", after.Members, before.Members)
		}
		for _, name := range abc {
			if trash := trashOf(t, c.shards[name]); len(trash) > 0 {
				t.Errorf("%s has thrown %v away", name, trash)
			}
		}
		c.aim("a", "b", "d")
		c.settled("a", "b", "d")
		for id := range int64(8) {
			c.holds(id, data(id, 100))
		}
	})
}

// If the others already have a leader, the returning shard still takes its place: they wait for its report.
func TestALeaderWaitsForTheClaimOfAShardThatHasJustCome(t *testing.T) {
	lost := placement.Member{RaftID: 5}
	state := groupView{
		Group:  placement.Group{Members: []placement.Member{{Shard: "a", RaftID: 1}, lost}},
		Target: []string{"a", "b"},
		Shards: map[string]placement.Shard{"a": {Name: "a", VolumeUUID: uuid.New()}},
	}
	g := &lead{}
	longAgo := time.Now().Add(-time.Hour)
	for _, c := range []struct {
		what  string
		since time.Time
		come  string // the shard that has come besides
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
