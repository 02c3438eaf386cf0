package shard

import (
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// One group on a volume has lost entries that it had acknowledged, and on which its leader still relies. Its replica
// must be replaced by a new one.
func TestAReplicaThatForgotWhatItAcknowledgedIsReplaced(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, oneGroup)
		leader, follower := "", ""
		c.eventually("one leads", func() bool {
			for _, name := range abc {
				if c.shards[name].served(0).Replica().Status().Leader {
					leader = name
				} else {
					follower = name
				}
			}
			return leader != ""
		})
		c.put(1, data(1, 100))
		f := c.shards[follower]
		applied := func() uint64 { return f.served(0).Log().AppliedIndex() }
		c.eventually("the follower has it", func() bool {
			return applied() == c.shards[leader].served(0).Log().AppliedIndex()
		})
		image := f.image()
		c.fill(10, 200)
		c.eventually("all have all", func() bool {
			return !slices.ContainsFunc(abc, func(name string) bool {
				return c.shards[name].served(0).Log().AppliedIndex() < applied()
			}) &&
				applied() == c.shards[leader].served(0).Log().AppliedIndex()
		})
		before, all := c.raftIDOn(follower), applied()
		id := c.registry.now().Groups["0"].UUID
		replaced := func() bool { now := c.raftIDOn(follower); return now != 0 && now != before }
		// If another leader is elected in the meantime, it does not rely on the lost entries, and sends them again. In that
		// case the test makes another attempt.
		for end := time.Now().Add(2 * time.Minute); !replaced(); {
			if time.Now().After(end) {
				t.Fatal("no leader has counted on what the replica forgot")
			}
			c.kill(follower)
			groups := filepath.Join(c.stopped[follower].cfg.Dir, "groups")
			removeFolder(t, f.cfg.FS, groups)
			copyFolder(t, f.cfg.FS, groups, filepath.Join(image, "groups"))
			c.restart(follower)
			c.eventually("it is replaced, or has all again", func() bool {
				sv := f.shard.replicas.Routes().Served(id)
				return replaced() || sv != nil && sv.Log().AppliedIndex() >= all
			})
		}
		c.settled(abc...)
		c.filled(10, 200)
	})
}
