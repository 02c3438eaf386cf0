package shard

import (
	"context"
	"testing"

	"sheaf.dev/sheaf/internal/placement"
)

// gated is a registry that delays a shard's reports about its groups until the gate is opened.
type gated struct {
	*memRegistry
	came chan struct{} // closed when the shard is about to report its first group
	let  chan struct{} // closed to open the gate
}

func newGated(r *memRegistry) *gated {
	return &gated{r, make(chan struct{}), make(chan struct{})}
}

func (g *gated) PutGroup(ctx context.Context, state placement.Group) (placement.Group, error) {
	select {
	case <-g.came:
	default:
		close(g.came)
	}
	select {
	case <-g.let:
		return g.memRegistry.PutGroup(ctx, state)
	case <-ctx.Done():
		return state, ctx.Err()
	}
}

// While one shard creates a group, the group is assigned to another shard, which creates the group, too. The shard
// that reports the group to etcd first owns it. The owner may then add a replica on the other shard before that shard
// has learned that it is not the owner. The other shard must not mistake the group that it created itself for the new
// replica without its data. It moves its own group to the trash, so that the replica can be installed.
func TestAGroupThatTwoShardsMakeMovesOn(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(placement.Routing{Mode: placement.Hash, Groups: 1}, "")
		c := &cluster{t: t, registry: registry, shards: map[string]*fixture{}, stopped: map[string]*fixture{}}
		first, second := newGated(registry), newGated(registry)
		c.aim("c")
		c.add("c", func(cfg *Config) { cfg.Placement = first })
		c.add("a", func(cfg *Config) { cfg.Placement = second })
		<-first.came
		c.aim("a")
		<-second.came // the second shard has created the group, and receives no further views
		close(first.let)
		c.eventually("c gives a a replica", func() bool {
			members := registry.now().Groups["0"].Members
			return len(members) == 2 && members[1].Shard == "a" && members[1].Role == placement.Learner
		})
		close(second.let)
		c.settled("a")
		c.put(1, data(1, 100))
		c.holds(1, data(1, 100))
		a := c.shards["a"]
		c.eventually("nothing is wrong", func() bool {
			st := a.shard.Status()
			return len(st.GetShard().Problems) == 0 && len(st.Strays) == 0 && len(st.Groups) == 1
		})
		if trash := trashOf(t, a); len(trash) != 1 {
			t.Errorf("in the trash of a is %v, want what it had made", trash)
		}
	})
}
