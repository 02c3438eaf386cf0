package shard

import (
	"testing"

	"sheaf.dev/sheaf/internal/placement"
)

// restless returns awake, the number of the shard's groups that are not at rest. It also returns looked, which is 1
// if the shard still examines any of its groups from time to time, and 0 otherwise.
func restless(f *fixture) (awake, looked int) {
	for _, g := range f.shard.replicas.Routes().ByUUID {
		if sv := g.Served(); sv == nil || !sv.Replica().Members().Quiet {
			awake++
		}
	}
	if !f.shard.steerer.Idle() {
		looked++
	}
	return awake, looked
}

// A shard that is down does not keep the groups on other shards from coming to rest, and no leader repeatedly
// examines the groups that this shard should lead. When the shard is back, it leads them.
func TestAShardThatIsDownLetsOthersRest(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, placement.Routing{Mode: placement.Hash, Groups: 12})
		ledAsWanted := func() bool {
			v := c.registry.now()
			for name, g := range v.Groups {
				if g.Leader != v.Targets[name].Shards[0] {
					return false
				}
			}
			return true
		}
		resting := func() bool {
			for _, f := range c.shards {
				if awake, looked := restless(f); awake+looked > 0 {
					return false
				}
			}
			return true
		}
		c.eventually("the targets lead, and all rest", func() bool { return ledAsWanted() && resting() })
		c.kill("c")
		c.put(1, data(1, 100))
		c.eventually("the others lead what c led, and all rest", func() bool {
			for _, g := range c.registry.now().Groups {
				if g.Leader == "c" {
					return false
				}
			}
			return resting()
		})
		c.restart("c")
		c.eventually("the targets lead again, and all rest", func() bool { return ledAsWanted() && resting() })
	})
}
