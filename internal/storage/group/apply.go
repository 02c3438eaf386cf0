package group

import (
	"fmt"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
)

// applyChunk is how many entries are applied before readers get the lock again.
const applyChunk = 256

// Apply makes all entries up to the index through visible. The caller guarantees that these entries are committed. When
// Apply returns, the index of the group's records includes them. Apply passes the entries in order to the function
// each, which may be nil and must not change the log.
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

// applier makes committed entries visible. It uses the index, the snapshots that see superseded versions, and the set
// of blobs that entries refer to, but no file. The caller holds writer.mu.
type applier struct {
	state  *state
	places *places
	blobs  *blobSet
}

// chunk adds entries to the index.
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

// version makes a place the newest one of a record. The caller holds state.mu.
func (a applier) version(id int64, loc index.Loc) error {
	old, won, err := a.places.table.Max(id, loc)
	if err != nil || old == 0 || !won {
		return err
	}
	a.places.supersede(a.places.segment(old.Ordinal()), old)
	a.state.superseded(old)
	return nil
}
