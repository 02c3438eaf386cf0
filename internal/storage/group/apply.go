package group

import (
	"fmt"
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
)

// applyChunk is the number of entries that are applied before the lock is released for a moment, so that readers can
// take it.
const applyChunk = 256

// Apply applies all entries up to the given index, so that readers see them. The caller guarantees that these entries
// are committed. When Apply returns, the group's record index includes them. If each is not nil, Apply calls it for
// every entry, in order. This function must not change the log.
func (l *Log) Apply(through uint64, each func(*format.Entry)) error {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if through > l.state.last {
		return fmt.Errorf("group %s: apply: index %d is behind the last one, %d", l.opts.Identity.Name, through, l.state.last)
	}
	a := applier{state: &l.state, places: &l.places, blobs: &l.blobs}
	for at := l.state.applied.Load() + 1; at <= through; {
		chunk := l.state.tail.entries[at-l.state.tail.first:]
		chunk = chunk[:min(uint64(len(chunk)), through-at+1, applyChunk)]
		if err := a.chunk(chunk); err != nil {
			return fmt.Errorf("group %s: apply: %w", l.opts.Identity.Name, err)
		}
		if each != nil {
			for i := range chunk {
				each(&chunk[i].entry)
			}
		}
		at += uint64(len(chunk))
	}
	l.state.ages.note(l.state.applied.Load())
	l.state.mu.Lock()
	l.state.trimTail()
	l.state.mu.Unlock()
	l.changed.fire()
	l.w.hintWhileOpen()
	return nil
}

// applier makes committed entries visible. It updates three things: the index, the snapshots that see superseded
// versions, and the set of blobs to which entries refer. It uses no file. The caller holds writer.mu.
type applier struct {
	state  *state
	places *places
	blobs  *blobSet
}

// chunk adds entries to the index while it holds state.mu.
func (a applier) chunk(entries []tailEntry) error {
	a.state.mu.Lock()
	defer a.state.mu.Unlock()
	for i := range entries {
		t := &entries[i]
		if t.entry.Kind == format.KindPut || t.entry.Kind == format.KindDelete {
			if err := a.version(t.entry.ID, t.loc); err != nil {
				return err
			}
			if ref, _ := t.entry.BlobRef(); ref != nil {
				a.blobs.refer(*ref)
			}
		}
		if t.entry.Kind == format.KindConf && t.entry.Index > a.state.confIndex {
			a.state.confsAhead = append(a.state.confsAhead, t.entry.Index)
		}
		a.state.applied.Store(t.entry.Index)
	}
	return nil
}

// version records the location of a record's newest version, and marks the previous version as superseded. The caller
// holds state.mu.
func (a applier) version(id int64, loc index.Loc) error {
	old, won, err := a.places.table.Max(id, loc)
	if err != nil || old == 0 || !won {
		return err
	}
	a.places.supersede(a.places.segment(old.Ordinal()), old)
	a.state.superseded(id, old)
	return nil
}

// ages records when this process applied entries, measured with the monotonic clock. It is safe for concurrent use.
type ages struct {
	mu sync.Mutex
	// marks is in ascending order. The last mark is for the last entry. The times of the other marks are at least ageStep
	// apart.
	marks []ageMark
}

// ageMark is a time at which all entries up to an index had been applied.
type ageMark struct {
	index uint64
	at    time.Time
}

const ageStep = 5 * time.Second

// note records that all entries up to an index are applied now.
func (a *ages) note(index uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if n := len(a.marks); n >= 2 && now.Sub(a.marks[n-2].at) < ageStep {
		a.marks[n-1] = ageMark{index, now}
		return
	}
	old := 0
	for old+1 < len(a.marks) && now.Sub(a.marks[old+1].at) >= format.DefaultRequestWindow.Age {
		old++
	}
	a.marks = append(a.marks[:0], a.marks[old:]...)
	a.marks = append(a.marks, ageMark{index, now})
}

// through returns the greatest index up to which all entries were applied at least the given time ago. It returns 0 if
// no such index is known.
func (a *ages) through(age time.Duration) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := len(a.marks) - 1; i >= 0; i-- {
		if time.Since(a.marks[i].at) >= age {
			return a.marks[i].index
		}
	}
	return 0
}
