package shard

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/placementtest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// The registry in these tests has the same rules as the one in etcd.
func TestMemRegistryHasTheRulesOfEtcd(t *testing.T) {
	placementtest.Register(t, func(*testing.T) placementtest.Registry { return newRegistry(oneGroup, "a") })
}

// soon sets a short interval between a shard's steps.
func soon(cfg *Config) { cfg.stepEvery = 10 * time.Millisecond }

// rolledBack checks that the shard does not start, because its volume was rolled back.
func (f *fixture) rolledBack(what string) {
	f.t.Helper()
	s, err := Start(f.ctx(), f.cfg)
	if err == nil {
		s.Kill()
	}
	if !errors.Is(err, placement.ErrRolledBack) {
		f.t.Fatalf("%s: %v", what, err)
	}
}

// image copies a shard's disk. Nothing may be written to the disk during the copy, because a real image shows the
// disk at a single moment.
func (f *fixture) image() string {
	f.t.Helper()
	dir := f.t.TempDir()
	copyFolder(f.t, f.cfg.FS, dir, f.cfg.Dir)
	return dir
}

// steps waits until etcd has stored a step that the volume took after this call.
func (f *fixture) steps() {
	f.t.Helper()
	id := f.shard.volume.Superblock().Volume
	now := func() uint64 { return f.registered(id).Number }
	before := now()
	f.eventually("etcd is told of a later step", func() bool { return now() > before })
}

// settles waits until the volume takes no more steps and etcd has the last step. Nothing may be written to the volume
// meanwhile. A new step is visible first in the shard, then on the disk, and finally in etcd.
func (f *fixture) settles() {
	f.t.Helper()
	last, since, looks := volume.Step{}, time.Now(), 0
	f.eventually("nothing is written", func() bool {
		sb, _, err := volume.VerifySuperblock(f.cfg.FS, f.cfg.Dir)
		if err != nil || sb.Step != last || f.registered(sb.Volume) != placement.Step(sb.Step) {
			last, since, looks = sb.Step, time.Now(), 0
		}
		looks++ // checks are counted, because time also passes while the process is suspended
		return looks > 20 && time.Since(since) > 20*f.cfg.stepEvery
	})
}

// registered returns a volume's step in etcd.
func (f *fixture) registered(id uuid.UUID) placement.Step {
	f.registry.mu.Lock()
	defer f.registry.mu.Unlock()
	return f.registry.seen[id].Step
}

// The disk of one copy is restored from an image that was taken while its shard ran. The image lacks writes that were
// acknowledged afterwards, so the shard must not serve from it.
func TestRule7_AnImageOfARunningDiskIsNoticed(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(oneGroup, "s1"), soon).ready()
		f.put(1, data(1, 100))
		f.settles()
		image := f.image()
		f.put(1, data(1, 200))
		f.steps()
		f.shard.Kill()
		id := f.registry.now().Groups["0"].Members[0].VolumeUUID
		right := f.cfg.Dir
		f.cfg.Dir, f.cfg.Wanted.Volume = image, id
		f.rolledBack("start on the image")
		f.cfg.Dir = right
		f.again(nil).ready()
		f.holds(1, data(1, 200))
	})
}

// A backup of the disk was taken while the shard was stopped before its last run, so it is one generation behind. A
// shard starts on this backup at the same address.
func TestRule7_ABackupOfTheLastRunIsNoticed(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(oneGroup, "s1"), nil).ready()
		f.cfg.Listen = f.shard.Addr()
		f.put(1, data(1, 100))
		f.stop()
		image := f.image()
		f.again(nil).ready()
		f.put(1, data(1, 200))
		f.stop()
		f.cfg.Dir, f.cfg.Wanted.Volume = image, f.registry.now().Groups["0"].Members[0].VolumeUUID
		f.rolledBack("start on the backup")
	})
}

// One of three disks is restored while another copy is behind. Everything that was acknowledged before remains.
func TestRule7_ADiskOfThreeThatWasPutBackDoesNotVote(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := &cluster{t: t, registry: newRegistry(oneGroup, ""), shards: map[string]*fixture{},
			stopped: map[string]*fixture{}}
		c.registry.view.Meta.Copies = 3
		c.aim(abc...)
		for _, name := range abc {
			c.add(name, soon)
		}
		c.settled(abc...)
		c.put(1, data(1, 100))
		c.kill("b") // from now on, shard b misses writes
		c.put(2, data(2, 100))
		f := c.shards["c"]
		f.settles()
		image := f.image()
		c.put(1, data(1, 200))
		f.steps()
		c.kill("a")
		c.kill("c")
		before, volumeBefore := c.raftIDOn("c"), f.shard.volume.Superblock().Volume
		c.stopped["c"].cfg.Dir = image
		c.restart("b")
		c.restart("c")
		// While shard a is down, no shard can serve: only b and c run, and c may not vote because its disk was rolled back.
		if now := c.shards["c"].shard.volume.Superblock().Volume; now == volumeBefore {
			t.Error("c has the volume that it had before")
		}
		c.restart("a")
		c.eventually("c has another replica", func() bool { now := c.raftIDOn("c"); return now != 0 && now != before })
		c.settled(abc...)
		c.holds(1, data(1, 200))
		c.holds(2, data(2, 100))
	})
}

// raftIDOn returns the Raft id of the group's replica on the current volume of a shard, or 0 if there is none.
func (c *cluster) raftIDOn(name string) uint64 {
	for _, m := range c.registry.now().Groups["0"].Members {
		if m.Shard == name && m.VolumeUUID != uuid.Nil {
			return m.RaftID
		}
	}
	return 0
}

// While etcd does not respond, the volume's step rises at most once: the shard keeps the step that it could not yet
// write to etcd. When etcd responds again, the shard takes further steps.
func TestAShardWithoutEtcdKeepsItsStep(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(oneGroup, "s1"), soon).ready()
		f.put(1, data(1, 100))
		f.settles()
		f.registry.setDown(true)
		told := func(what string) bool {
			return slices.ContainsFunc(f.shard.Status().GetShard().Problems, func(p string) bool {
				return strings.Contains(p,
					what)
			})
		}
		f.put(1, data(1, 200))
		f.eventually("it says so", func() bool { return told("reporting the step of the volume to etcd") })
		before, _, err := volume.VerifySuperblock(f.cfg.FS, f.cfg.Dir)
		if known := f.registered(before.Volume); err != nil || before.Step.Number != known.Number+1 ||
			placement.Step(before.Registered) != known {
			t.Fatalf("it is in step %+v, and etcd knows %+v: %v", before, known, err)
		}
		for n := range int64(5) {
			f.put(1, data(1, 300+int(n)))
		}
		now, _, err := volume.VerifySuperblock(f.cfg.FS, f.cfg.Dir)
		if err != nil || now.Step != before.Step || now.Registered != before.Registered {
			t.Errorf("without etcd it is in step %+v, was %+v, %v", now, before, err)
		}
		f.registry.setDown(false)
		f.steps()
		f.eventually("it is well", func() bool { return !told("") })
		f.shard.Kill()
		f.again(nil).ready()
		f.holds(1, data(1, 304))
	})
}

// TestTheTimeForWhichAnImagePassesForTheDisk checks how long an image can be mistaken for the disk, according to the
// rules in docs/operations/troubleshooting.md. The volume takes a step at most stepEvery after a write, even after the
// first write that ends an idle period. While the shard is idle, nothing is written. After an etcd outage, the volume
// takes the step that was due, and then the next one. The test runs with the default interval between steps, which
// must be at most 5 s, with a shorter one, and with a longer one.
func TestTheTimeForWhichAnImagePassesForTheDisk(t *testing.T) {
	for _, every := range []time.Duration{0, 100 * time.Millisecond, 20 * time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { imagePasses(t, every) })
		})
	}
}

// imagePasses runs a volume whose steps are taken at the given interval, or at the default interval if that is 0.
func imagePasses(t *testing.T, every time.Duration) {
	registry := newRegistry(oneGroup, "a")
	cfg := Config{Name: "a", Dir: "/v", Listen: "x", Placement: registry, FS: vfstest.NewMem(), stepEvery: every}
	cfg.setDefaults()
	if every = cmp.Or(every, 5*time.Second); cfg.stepEvery > every {
		t.Fatalf("a step is taken every %v", cfg.stepEvery)
	}
	s := newShard(cfg)
	defer s.cancel()
	var err error
	s.volume.Volume, err = volume.Open(volume.Options{FS: cfg.FS, Dir: cfg.Dir, Store: uuid.New(), Shard: "a",
		Create: true, ReserveBytes: 1})
	must(t, err)
	defer s.volume.Close()
	s.committer = replica.NewCommitter()
	defer s.committer.Close()
	known := s.id.Registration(s.volume.Superblock())
	known.Boot = s.boot
	stop, err := registry.RegisterShard(s.ctx, known)
	must(t, err)
	defer stop()
	s.wait.Go(func() { s.stepAll(s.ctx, known) })
	defer s.wait.Wait()
	defer s.cancel()
	in := func(registered, here uint64) {
		t.Helper()
		synctest.Wait()
		registry.mu.Lock()
		defer registry.mu.Unlock()
		if got := registry.seen[known.VolumeUUID].Step; got.Number != registered || s.volume.Step().Number != here {
			t.Fatalf("etcd has step %d, the volume is in step %d; want %d and %d", got.Number, s.volume.Step().Number,
				registered, here)
		}
	}
	write := func() { s.installer.tookOver.Add(1) }
	in(1, 1)
	time.Sleep(time.Hour)
	in(1, 1)
	time.Sleep(time.Second)
	write()
	time.Sleep(every)
	in(2, 2)
	time.Sleep(time.Hour)
	in(2, 2)
	registry.setDown(true)
	for range 20 {
		write()
		time.Sleep(every)
	}
	in(2, 3)
	registry.setDown(false)
	time.Sleep(2 * every)
	in(4, 4)
}
