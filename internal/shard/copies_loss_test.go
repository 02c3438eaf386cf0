package shard

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/replicas"
)

// If a replica is missing on its volume, or if the volume itself is lost, a new replica takes its place without the
// help of an operator.
func TestALostReplicaIsReplaced(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, hash4)
		c.fill(20, 1000)
		before := c.registry.now().Groups
		replaced := func() bool {
			for name, g := range c.registry.now().Groups {
				for i, m := range g.Members {
					if len(g.Members) != 3 || m.Role != placement.Voter {
						return false
					}
					for _, old := range before[name].Members {
						if g.Members[i].Shard == "c" && old.RaftID == m.RaftID {
							return false
						}
					}
				}
			}
			return true
		}
		c.kill("c")
		f := c.stopped["c"]
		removeFolder(t, f.cfg.FS, filepath.Join(f.cfg.Dir, "groups"))
		must(t, f.cfg.FS.MkdirAll(filepath.Join(f.cfg.Dir, "groups")))
		c.restart("c")
		c.eventually("the folders are replaced", replaced)
		c.settled(abc...)

		before = c.registry.now().Groups
		c.kill("c")
		f.cfg.Dir = t.TempDir()
		c.restart("c")
		c.eventually("the volume is replaced", replaced)
		c.settled(abc...)
		c.kill("b")
		c.filled(20, 1000)
	})
}

// countHandler is a slog handler that counts the records with a certain message.
type countHandler struct {
	slog.Handler
	message string
	seen    *atomic.Int64
}

func (h countHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.seen.Add(1)
	}
	return h.Handler.Handle(ctx, r)
}

func (h countHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return countHandler{h.Handler.WithAttrs(attrs), h.message, h.seen}
}

func (h countHandler) WithGroup(name string) slog.Handler {
	return countHandler{h.Handler.WithGroup(name), h.message, h.seen}
}

// A scrub finds bad bytes in the files of a follower, and they are repaired from the leader's copy.
func TestDamageIsFoundAndRepairedFromAnotherCopy(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, placement.Routing{Mode: placement.Hash, Groups: 1})
		c.fill(100, 3000)
		blob := data(500, 2<<20)
		c.upload(500, blob)
		id := c.registry.now().Groups["0"].UUID
		c.eventually("all have everything", func() bool { // one copy may still lag behind
			applied := map[uint64]bool{}
			for _, name := range abc {
				if sv := c.shards[name].shard.replicas.Routes().Served(id); sv != nil {
					applied[sv.Log().AppliedIndex()] = true
				} else {
					applied[0] = true
				}
			}
			return len(applied) == 1 && !applied[0]
		})
		c.kill("c")
		f := c.stopped["c"]
		files := filesBelow(t, f.cfg.FS, filepath.Join(f.cfg.Dir, "groups"))
		// The damage must be reported exactly once, when it is found, no matter how soon it is repaired.
		var found atomic.Int64
		f.cfg.Logger = slog.New(countHandler{f.cfg.Logger.Handler(), "damage found while reading everything", &found})
		f.cfg.scrubPause, f.cfg.repairEvery, f.cfg.scrubBytesPerSecond = 50*time.Millisecond, 50*time.Millisecond, 1<<30
		c.restart("c")
		damaged := 0
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if files[name] < 24<<10 || damaged == 3 {
				continue
			}
			file, err := f.cfg.FS.OpenWrite(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			must(t, err)
			_, err = file.WriteAt([]byte("these bytes are bad"), 20_000)
			must(t, errors.Join(err, file.Close()))
			damaged++
		}
		if damaged < 2 {
			t.Fatalf("only %d of %v were damaged", damaged, files)
		}
		c.eventually("it is found", func() bool { return found.Load() > 0 })
		c.eventually("all of it is repaired", func() bool {
			sv := c.shards["c"].shard.replicas.Routes().Served(id)
			if sv == nil || sv.Log().Damaged() {
				return false
			}
			report, err := sv.Log().Verify(t.Context(), 0) // Verify finds damage that no scrub has reached yet
			return err == nil && len(report.Damages) == 0
		})
		c.kill("a")
		c.filled(100, 3000)
		c.holds(500, blob)
	})
}

// Bad bytes in the files of a leader must be found even if nobody reads or writes its group. The leader then
// transfers the leadership, and is repaired from the copy of the new leader.
func TestDamageOfALeaderThatRestsIsRepaired(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, placement.Routing{Mode: placement.Hash, Groups: 1})
		c.fill(20, 3000)
		c.eventually("all rest", func() bool {
			for _, f := range c.shards {
				if awake, looked := restless(f); awake+looked > 0 {
					return false
				}
			}
			return true
		})
		g := c.registry.now().Groups["0"]
		leader := c.shards[g.Leader]
		sv := leader.shard.replicas.Routes().Served(g.UUID)
		hit := 0
		for name, size := range filesBelow(t, leader.cfg.FS, filepath.Join(leader.cfg.Dir, "groups")) {
			if size < 24<<10 {
				continue
			}
			file, err := leader.cfg.FS.OpenWrite(name)
			must(t, err)
			_, err = file.WriteAt([]byte("these bytes are bad"), 20_000)
			must(t, errors.Join(err, file.Close()))
			hit++
		}
		report, err := sv.Log().Verify(t.Context(), 0)
		must(t, err)
		if hit == 0 || len(report.Damages) == 0 || !sv.Replica().Members().Quiet {
			t.Fatalf("%d files are hit, %d places of damage; rests: %v", hit, len(report.Damages), sv.Replica().Members().Quiet)
		}
		c.eventually("all of it is repaired", func() bool { return !sv.Log().Damaged() })
		report, err = sv.Log().Verify(t.Context(), 0)
		must(t, err)
		if len(report.Damages) > 0 {
			t.Errorf("%v", report.Damages)
		}
		c.filled(20, 3000)
	})
}

// If a volume was rolled back to an earlier state, its replicas have forgotten votes or entries. They must never vote
// again. They rejoin as new replicas instead.
func TestAVolumeThatWasRolledBackJoinsAnew(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, hash4)
		c.fill(20, 100)
		c.kill("c")
		f := c.stopped["c"]
		earlier := t.TempDir()
		copyFolder(t, f.cfg.FS, earlier, f.cfg.Dir)
		c.restart("c")
		c.fill(20, 200)
		before := c.registry.now()
		c.kill("c")
		f.cfg.Dir = earlier
		c.restart("c")
		c.eventually("new replicas are on c", func() bool {
			for name, g := range c.registry.now().Groups {
				m, ok := replicas.MemberOf(g, "c")
				old, _ := replicas.MemberOf(before.Groups[name], "c")
				if !ok || m.Role != placement.Voter || m.RaftID == old.RaftID || m.VolumeUUID == old.VolumeUUID {
					return false
				}
			}
			return true
		})
		c.settled(abc...)
		c.eventually("the old ones are in the trash", func() bool { return len(trashOf(t, f)) == 4 })
		c.kill("a")
		c.filled(20, 200)
	})
}

// If the only copy of a group is on a volume that was rolled back, the copy must neither be taken for a current one
// nor deleted.
func TestTheOnlyCopyOnAVolumeThatWasRolledBackIsLost(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := newCluster(t, hash4, []string{"a"})
		c.settled("a")
		c.put(1, data(1, 100))
		c.kill("a")
		f := c.stopped["a"]
		earlier := t.TempDir()
		copyFolder(t, f.cfg.FS, earlier, f.cfg.Dir)
		c.restart("a")
		c.put(1, data(1, 200))
		c.kill("a")
		now := f.cfg.Dir
		f.cfg.Dir = earlier
		c.restart("a")
		a := c.shards["a"]
		_, err := a.records.Get(a.ctx(), &recordv1.GetRequest{Key: key(1)})
		want(t, err, codes.DataLoss, reason.Damaged)
		if folders := filesIn(t, f.cfg.FS, filepath.Join(earlier, "groups")); len(folders) != 4 {
			t.Errorf("left are %v", folders)
		}
		c.kill("a")
		f.cfg.Dir = now // puts the right volume back
		c.restart("a")
		c.holds(1, data(1, 200))
	})
}
