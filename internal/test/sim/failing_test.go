package sim

import (
	"errors"
	"math/rand/v2"
	"path"
	"slices"
	"syscall"
	"time"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// fullDisk makes a process's disk refuse new data for a while. The disk refuses either all data, or only data that
// needs a new file or newly allocated space.
func (w *world) fullDisk(_ *operator, r *rand.Rand) bool {
	kinds := []vfstest.OpKind{vfstest.OpCreate, vfstest.OpWrite, vfstest.OpAllocate}
	if r.IntN(3) == 0 {
		kinds = []vfstest.OpKind{vfstest.OpCreate, vfstest.OpAllocate}
	}
	return w.fail(r, "a full disk refused", func(op vfstest.Op) bool {
		return slices.Contains(kinds, op.Kind)
	}, &vfstest.Fault{Err: syscall.ENOSPC})
}

// failSync makes one or more of the next syncs fail. In some cases the unsynced data is lost as on Linux, that is, it
// can still be read until the power is cut. In the other cases the sync returns an error and loses nothing, and the
// data may even have been written.
func (w *world) failSync(_ *operator, r *rand.Rand) bool {
	effect, how := vfstest.EffectDrop, "a sync failed and lost what it was to write: "
	switch r.IntN(4) {
	case 0:
		effect, how = vfstest.EffectDone, "a sync failed and wrote: "
	case 1:
		effect, how = vfstest.EffectNone, "a sync failed: "
	}
	return w.failOnce(r, vfstest.OpSync, how, effect)
}

// failWrite makes one or several of the next writes fail. After the error, none, half or all of the bytes are on the
// disk.
func (w *world) failWrite(_ *operator, r *rand.Rand) bool {
	effect := []vfstest.Effect{vfstest.EffectNone, vfstest.EffectPart, vfstest.EffectDone}[r.IntN(3)]
	return w.failOnce(r, vfstest.OpWrite, "a write failed: ", effect)
}

// failOnce makes a few operations of one kind fail, either on files of one kind or on all files.
func (w *world) failOnce(r *rand.Rand, kind vfstest.OpKind, how string, effect vfstest.Effect) bool {
	what := []string{"segment", "segment", "journal", "mark", ""}[r.IntN(5)]
	fault := &vfstest.Fault{Skip: r.Int64N(4), Count: []int64{1, 1, 2, 5}[r.IntN(4)], Effect: effect}
	if r.IntN(6) == 0 {
		fault.Err = syscall.ENOSPC
	}
	return w.fail(r, how+nameOf(what), func(op vfstest.Op) bool {
		return op.Kind == kind && (what == "" || fileKind(op.Name) == what)
	}, fault)
}

func nameOf(kind string) string {
	if kind == "" {
		return "any file"
	}
	return kind
}

// fileKind returns the kind of a file that the committer writes to, or "" for any other file.
func fileKind(name string) string {
	base := path.Base(name)
	_, isSegment := format.ParseSegmentName(base)
	switch {
	case isSegment:
		return "segment"
	case journal.IsName(base):
		return "journal"
	case base == format.MarkName:
		return "mark"
	}
	return ""
}

// fail injects a fault into the disk of a running process, and removes it after some time.
func (w *world) fail(r *rand.Rand, what string, match func(vfstest.Op) bool, fault *vfstest.Fault) bool {
	all := w.processes()
	if len(all) == 0 {
		return false
	}
	p := all[r.IntN(len(all))]
	if leader := w.leader(); leader != nil && r.IntN(3) == 0 {
		p = leader
	}
	fault.Match = match
	fault.Before = func(op vfstest.Op) {
		p.writesFailed.Store(true)
		w.trace("%v: %s: %v", p.machine, what, op)
	}
	full := errors.Is(fault.Err, syscall.ENOSPC)
	if full {
		p.full.Add(1)
	}
	p.faulty.Add(fault)
	lasts := between(r, 50*time.Millisecond, 3*time.Second)
	w.wait.Go(func() {
		w.sleep(lasts)
		fault.Remove()
		if full {
			p.full.Add(-1)
		}
		if fault.Fired() > 0 {
			w.fire(what)
		}
	})
	return true
}

// refusedToWrite reports whether an error means that a disk refused a write.
func refusedToWrite(err error) bool {
	return errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, group.ErrPoisoned)
}

// fullReportMax is the maximum time for which a replica may still report a full disk after there is free space again.
// By then it must have resumed its work.
const fullReportMax = 10 * time.Second

// watchFailed restarts each process whose replica has failed, because only a restart can determine the actual content
// of the disk.
func (w *world) watchFailed() {
	r := rand.New(rand.NewPCG(w.seed, 8))
	// for each process, the time since which it has reported a full disk although there is free space
	stuck := map[*process]time.Time{}
	for w.sleep(100 * time.Millisecond) {
		for _, p := range w.processes() {
			err := p.replica.Status().Err
			if errors.Is(err, format.ErrNoSpace) {
				since, known := stuck[p]
				switch {
				case p.full.Load() > 0:
					delete(stuck, p)
				case !known:
					stuck[p] = time.Now()
				case time.Since(since) > fullReportMax:
					w.violate(oracleDisk, "%v: there is room for %v, and its replica does not go on: %v", p.machine,
						fullReportMax, err)
					w.restartFailed(p, r)
				}
				continue
			}
			delete(stuck, p)
			switch {
			case err == nil || p.disk.Crashed():
			case p.writesFailed.Load():
				w.restartFailed(p, r)
			default:
				w.violate(oracleDisk, "%v: its replica has failed, and its disk is good: %v", p.machine, err)
			}
		}
	}
}

func (w *world) restartFailed(p *process, r *rand.Rand) {
	m := p.machine
	w.mu.Lock()
	if m.process != p {
		w.mu.Unlock()
		return
	}
	end := m.kill()
	if r.IntN(3) == 0 { // a power cut loses data that was only in the page cache
		m.disk = m.disk.CrashClone(survival(r))
	}
	w.mu.Unlock()
	end()
	w.fire("a failed replica began anew")
	w.startLater(m, between(r, time.Millisecond, 500*time.Millisecond))
}
