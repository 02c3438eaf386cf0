package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"path"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// runRepairs repairs damaged replicas from the leader, as a shard does. It also checks that no replica becomes the
// leader while it is damaged.
func (w *world) runRepairs() {
	r := rand.New(rand.NewPCG(w.seed, 6))
	// following holds the damage that was known when a process started, or while it was a follower.
	following := map[*process][]format.Damage{}
	for tick := 1; w.sleep(100 * time.Millisecond); tick++ {
		for _, p := range w.processes() {
			if !p.log.Damaged() {
				delete(following, p)
				continue
			}
			if _, seen := following[p]; !seen {
				following[p] = p.loaded
			}
			following[p] = w.watchDamaged(p, following[p])
			if tick%3 == 0 {
				w.repair(p, r)
			}
		}
	}
}

// watchDamaged reports a violation if a replica leads although it was already damaged when it started or while it was
// a follower. If a replica finds the damage while it leads or while it is being elected, it may lead for a little
// longer, because it must first transfer the leadership. watchDamaged returns the damage with which the next call
// must compare.
func (w *world) watchDamaged(p *process, before []format.Damage) []format.Damage {
	damages := p.log.Stats().Damages
	s := p.replica.Status()
	same := func(d format.Damage) bool {
		return slices.ContainsFunc(before, func(b format.Damage) bool { return b.File == d.File && b.Offset == d.Offset })
	}
	for _, d := range damages {
		w.noteFound(p.machine, "otherwise", d.File)
		if s.Leader && s.LeaderID == p.raftID && same(d) {
			w.mu.Lock()
			dead := p.dead
			w.mu.Unlock()
			if !dead {
				w.violate(oracleDamaged, "%v: replica %x leads in term %d though it was damaged before: %v", p.machine, p.raftID,
					s.Term, d)
			}
		}
	}
	if s.LeaderID == 0 || s.LeaderID == p.raftID {
		return slices.DeleteFunc(before, func(b format.Damage) bool {
			return !slices.ContainsFunc(damages, func(d format.Damage) bool { return b.File == d.File && b.Offset == d.Offset })
		})
	}
	return damages
}

// repair tries once to repair a replica.
func (w *world) repair(p *process, r *rand.Rand) {
	leader := p.replica.Status().LeaderID
	if leader == 0 || leader == p.raftID {
		return // the leader must transfer its leadership before it can be repaired
	}
	w.mu.Lock()
	source := (*process)(nil)
	if m := w.at[leader]; m != nil && !w.partitioned[[2]int{m.number, p.machine.number}] &&
		!w.partitioned[[2]int{p.machine.number, m.number}] {
		source = m.process
	}
	w.mu.Unlock()
	if w.cfg.mutation == mutateRepair {
		source = w.farthestBehind(p)
	}
	if source == nil || source == p {
		return
	}
	repairs, err := p.log.Repairs(w.ctx)
	for _, repair := range repairs {
		if err != nil {
			break
		}
		w.breakPromises(p)
		err = p.log.RepairFrom(w.ctx, repair, repairSource{p, source, r})
		w.breakPromises(p)
		w.trace("%v: repair of %s, indexes %v, from %v: %v; there was %v", p.machine, repair.File, repair.Ranges,
			source.machine, err, p.log.Stats().Damages)
		if err == nil {
			w.fire("rot repaired")
		}
	}
	switch {
	case err == nil, w.ctx.Err() != nil, p.disk.Crashed(), source.disk.Crashed():
	case p.writesFailed.Load() && refusedToWrite(err):
	case errors.Is(err, format.ErrClosed), errors.Is(err, group.ErrRepairLater), errors.Is(err, errUnreachable),
		isDamage(err):
	case errors.Is(err, group.ErrRepairByInstall):
		w.trace("%v: %v", p.machine, err)
		w.fire("rot repaired by install")
		w.wait.Go(func() { p.reinstall(source.raftID) })
	case errors.Is(err, group.ErrVersionNotFound): // compaction removed the entry in the meantime
	default:
		w.violate(oracleRepair, "%v: repair from %v: %v", p.machine, source.machine, err)
	}
}

// farthestBehind returns the process, other than p, that has applied the fewest entries. That process is the worst
// source for a repair.
func (w *world) farthestBehind(p *process) (source *process) {
	for _, other := range w.processes() {
		if other != p && (source == nil || other.log.AppliedIndex() < source.log.AppliedIndex()) {
			source = other
		}
	}
	return source
}

func isDamage(err error) bool {
	var damage *format.DamageError
	return errors.As(err, &damage)
}

// repairSource is the replica from which another replica is repaired.
type repairSource struct {
	to, from *process
	random   *rand.Rand
}

// Entries implements group.RepairSource.
func (s repairSource) Entries(_ context.Context, span group.IndexRange) (out group.RangeAnswer, err error) {
	w := s.to.machine.world
	w.sleep(between(s.random, time.Millisecond, 5*time.Millisecond))
	for out.Through = span.First - 1; out.Through < span.Last; {
		got, err := s.from.log.ReadRange(group.IndexRange{First: out.Through + 1, Last: span.Last}, 4<<10)
		if err != nil {
			return out, err
		}
		out.Entries, out.Applied = append(out.Entries, got.Entries...), got.Applied
		if got.Through <= out.Through {
			break // the source has not applied the remaining entries
		}
		out.Through = got.Through
	}
	if w.cfg.mutation == mutateRepair {
		// Pretend that the source has applied as much as the damaged replica.
		out.Through, out.Applied = max(out.Through, span.Last), s.to.log.AppliedIndex()
	}
	return out, nil
}

// FetchBlob implements group.RepairSource.
func (s repairSource) FetchBlob(_ context.Context, ref format.BlobRef) error {
	s.to.machine.world.sleep(between(s.random, time.Millisecond, 5*time.Millisecond))
	return s.from.copyBlob(s.to, ref)
}

// truncateTail truncates the log at the first damage in its active segment. A faulty program would do the same if it
// mistook acknowledged entries for a torn write.
func truncateTail(disk *vfstest.Mem) bool {
	manifest, err := format.ReadManifest(disk, groupDir)
	if err != nil || len(manifest.Segments) == 0 {
		return false
	}
	s := &manifest.Segments[len(manifest.Segments)-1]
	end, bad := int64(format.SegmentHeaderBytes), false
	walk := walkFile(disk, s, func(step *segio.FrameStep) {
		bad = bad || step.Offset != end
		if !bad {
			end = step.Offset + step.Bytes
		}
	})
	f, err := disk.OpenWrite(path.Join(groupDir, format.SegmentName(s.Number)))
	if !walk || err != nil {
		return false
	}
	defer f.Close()
	return errors.Join(f.Truncate(end), f.Sync(), disk.Remove(path.Join(groupDir, format.MarkName)),
		disk.SyncDir(groupDir)) == nil
}

// rejoin handles a disk that cannot be loaded because its last entries or its vote are damaged. The replica is
// installed again from a member that has all entries that the replica may have acknowledged. If its vote cannot be
// determined, the replica is given up after a while, and another incarnation replaces it.
func (m *machine) rejoin(disk *vfstest.Mem, file format.ReplicaFile, epoch int) {
	w := m.world
	w.mu.Lock()
	if m.rejoining == disk {
		w.mu.Unlock()
		return
	}
	m.rejoining = disk
	w.mu.Unlock()
	w.noteFound(m, "at load, in the tail", "")
	w.wait.Go(func() {
		w.sleep(3 * time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		if m.rejoining == disk {
			m.rejoining = nil
		}
		if m.disk == disk && m.process == nil && w.ctx.Err() == nil {
			m.kill()
			m.empty()
			m.raftID = 0
			w.lost[file.RaftID] = true
			w.fired["rotten replica given up"]++
		}
	})
	m.install(disk, file, epoch, 0)
}
