package shard

import (
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// An etcd that was rebuilt without some shards names their members, and does not know where they are. A shard that comes back
// takes its place again: it has not left.
func TestAMemberThatEtcdLooksForTakesItsPlace(t *testing.T) {
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
	// Nobody leads, and could remove a member, before both have said where they are.
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
}
