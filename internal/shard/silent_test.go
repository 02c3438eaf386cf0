package shard

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/shard/host"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// A leader whose disk hangs gives up the lead although nothing is written: reads at it would wait as long as the disk,
// and its heartbeats keep the other members from an election.
func TestALeaderWhoseDiskHangsGivesUpTheLead(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, hash4, abc)
		c.settled(abc...)
		c.kill("a")
		var disk *vfstest.Faulty
		a := c.stopped["a"].again(func(cfg *Config) {
			disk = vfstest.NewFaulty(cfg.FS)
			cfg.FS = disk
		})
		c.shards["a"] = a
		leads := func(group string, shards ...string) bool {
			return slices.ContainsFunc(shards, func(name string) bool {
				g := c.shards[name].shard.routes.Load().byName[group]
				sv := g.served.Load()
				return sv != nil && sv.replica.Status().Leader
			})
		}
		c.eventually("a leads group 0", func() bool { return leads("0", "a") })
		time.Sleep(time.Minute) // until nothing is written any more

		hung := make(chan struct{})
		hang := disk.Add(&vfstest.Fault{Match: func(vfstest.Op) bool { return true }, Effect: vfstest.EffectPass,
			Before: func(vfstest.Op) { <-hung }})
		answers := sync.OnceFunc(func() {
			hang.Remove()
			close(hung)
		})
		t.Cleanup(answers)
		time.Sleep(20 * time.Second)
		if !leads("0", "a") || leads("0", "b", "c") {
			t.Fatal("the lead has changed without a reason, so that this test would prove nothing")
		}
		forHost{a.shard}.Problem(host.VolumeSilent, errors.New("a read of its superblock takes more than 15s"))
		c.eventually("another shard leads group 0", func() bool { return leads("0", "b", "c") })
		time.Sleep(20 * time.Second)
		if !leads("0", "b", "c") {
			t.Error("the lead went back to the shard whose disk hangs")
		}

		answers()
		forHost{a.shard}.Problem(host.VolumeSilent, nil)
		c.eventually("a leads group 0 again", func() bool { return leads("0", "a") })
	})
}
