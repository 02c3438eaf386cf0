package shard

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// While some shards were down, etcd was rebuilt. It lists the members on these shards, but their locations are
// missing. When such a shard comes back, it reports its member, which continues as before, because it has never left
// the group.
func TestAMemberThatEtcdLooksForTakesItsPlace(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, hash4)
		c.fill(8, 100)
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
		// Until both shards have reported their members, no leader exists that could remove a member.
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
		c.filled(8, 100)
	})
}

// In this test, etcd holds an older membership than the group itself, and that membership lacks one member. The shard
// of the missing member reports it. Nothing is deleted, and the group can be moved again.
func TestAMemberThatEtcdDoesNotNameSaysWhereItIs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, oneGroup, abc, "d")
		c.settled(abc...)
		c.fill(8, 100)
		before := c.registry.now().Groups["0"]
		for _, name := range abc { // a running shard would remember where the members are
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
		c.filled(8, 100)
	})
}
