package shard

import (
	"testing"
	"testing/synctest"
)

// TestAGroupThatEndedAndIsNotDeletedGoesOn checks that the leader resumes a group that has ended, where etcd does not
// say that the group is deleted, and that reads in a group that has ended are refused until then.
func TestAGroupThatEndedAndIsNotDeletedGoesOn(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, hash1, abc)
		c.settled(abc...)
		for _, name := range abc {
			s := c.shards[name].shard
			for _, g := range s.routes.Load().byUUID {
				sv := g.served.Load()
				if !sv.replica.Status().Leader {
					continue
				}
				g.deleting.Store(true) // as deleteGroup does
				if err := sv.replica.End(t.Context(), sv.log.Blank); err != nil {
					t.Fatal(err)
				}
				if sv.Barrier(t.Context()) == nil || sv.ReadHere(t.Context()) == nil {
					t.Error("a read in an ended group is allowed")
				}
				synctest.Wait()
				if !sv.replica.Ended() {
					t.Error("the group was resumed while it was being deleted")
				}
				g.deleting.Store(false)
				s.steerer.ask(g)
				c.put(1, []byte("x"))
				c.holds(1, []byte("x"))
				return
			}
		}
		t.Fatal("no shard leads")
	})
}
