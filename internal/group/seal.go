package group

import (
	"fmt"
	"slices"
	"sort"

	"sheaf.dev/sheaf/internal/group/format"
)

// Seal seals the active segment (so that it gets a hint, and can be compacted) and begins a new one.
func (l *Log) Seal() error {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if err := l.seal(); err != nil {
		return fmt.Errorf("group %s: seal: %w", l.opts.Identity.Name, err)
	}
	return nil
}

// seal is Seal. The caller holds writer.mu.
func (l *Log) seal() error {
	if err := l.settle(); err != nil {
		return err
	}
	if l.w.end == format.SegmentHeaderBytes {
		return nil
	}
	return l.roll(l.state.last+1, 0)
}

// roll seals the active segment and begins the next one, whose first index is given and which will hold bytes at least;
// entries from there on are void. The caller holds writer.mu. docs/format.md, write path: (1) sync, (2) exact size, (3)
// next segment, (4) manifest.
func (l *Log) roll(first uint64, bytes int64) error {
	w := &l.w
	old := w.active
	if err := l.sync(); err != nil {
		return err
	}
	if w.active != old {
		return nil // a failed sync has begun a new one already
	}
	if w.allocated != w.end {
		file := old.file.Load()
		if err := file.Truncate(w.end); err != nil {
			return format.NoSpace(err)
		}
		w.allocated = w.end
		if err := file.Sync(); err != nil {
			w.suspect = err
			return l.settle()
		}
	}
	next, err := l.createSegment(first, bytes)
	if err != nil {
		return err
	}
	sealed := old.manifest()
	sealed.Bytes, sealed.LastIndex = w.end, w.last
	err = l.folder.writeManifest(func(m *format.Manifest) {
		m.Segments = append(m.Segments[:len(m.Segments)-1], sealed, next.manifest())
		m.HardState = l.w.hardForManifest(l.state.applied.Load())
	})
	if err != nil {
		l.folder.discardUnlessListed(next)
		return err
	}
	l.dropHint()
	l.state.mu.Lock()
	old.last, old.bytes = sealed.LastIndex, sealed.Bytes
	old.counted(old.rows)
	l.begin(next, first)
	l.state.mu.Unlock()
	if f := old.file.Load(); f != nil {
		old.adviseRandom(f)
	}
	l.hints.writeLater(old)
	return nil
}

// begin makes a new, empty segment the active one. The caller holds writer.mu and state.mu.
func (l *Log) begin(next *segment, first uint64) {
	w, st := &l.w, &l.state
	w.active, w.end, w.allocated, w.last = next, format.SegmentHeaderBytes, format.SegmentHeaderBytes, first-1
	w.journaled, w.started, w.batch = 0, 0, nil
	w.opened, w.inherited = 0, false
	st.end, st.syncedEnd, st.syncedLast = format.SegmentHeaderBytes, format.SegmentHeaderBytes, first-1
	st.segments = append(slices.Clip(st.segments), next)
	st.cut(first)
	l.places.publish(l.state.listed())
}

// createSegment makes the file of the next segment, with room in memory for a first batch of bytes: durable, and not in
// the manifest yet. The caller holds writer.mu.
func (l *Log) createSegment(first uint64, bytes int64) (*segment, error) {
	s, err := l.folder.create(first, l.w.active.ordinal&^1+ordinalStep, false)
	if err != nil {
		return nil, err
	}
	if err := l.images.begin(s, max(l.opts.SegmentBytes, format.SegmentHeaderBytes+bytes)); err != nil {
		l.folder.discard(s)
		return nil, err
	}
	return s, nil
}

// replaceSegments cuts the log below the active segment: segments that are void as a whole leave the manifest, a new
// one begins. The caller holds writer.mu.
func (l *Log) replaceSegments(first uint64, bytes int64) error {
	next, err := l.createSegment(first, bytes)
	if err != nil {
		return err
	}
	l.state.mu.RLock()
	keep := sort.Search(len(l.state.segments), func(i int) bool { return l.state.segments[i].first >= first })
	l.state.mu.RUnlock()
	err = l.folder.writeManifest(func(m *format.Manifest) {
		m.Segments = append(m.Segments[:keep], next.manifest())
		m.HardState = l.w.hardForManifest(l.state.applied.Load())
	})
	if err != nil {
		l.folder.discardUnlessListed(next)
		return err
	}
	l.dropHint()
	l.state.mu.Lock()
	void := l.state.segments[keep:]
	l.state.segments = l.state.segments[:keep]
	l.begin(next, first)
	l.clean()
	l.state.mu.Unlock()
	for _, s := range void {
		l.folder.retire(s)
	}
	return nil
}

// Close stops using the files. With hints, all is synced, the mark says so, and hints are written first, also that of
// the active segment, so that the next load reads little of it in Index residency; without, it only closes (fast
// stop). The active segment goes on with the next load: a start leaves no file behind. What was synced is safe either
// way.
func (l *Log) Close(hints bool) error {
	l.cancel()
	l.compacting.Lock() // until Compact has noticed: it must not write files any more
	defer l.compacting.Unlock()
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.closed.Load() {
		return nil
	}
	var err error
	if hints {
		err = l.rest()
		l.refreshHints()
	}
	l.leaveJournal()
	l.closed.Store(true)
	l.changed.fire()
	l.hints.writing.Wait()
	l.release()
	if err != nil {
		return fmt.Errorf("group %s: close: %w", l.opts.Identity.Name, err)
	}
	return nil
}

// rest brings the files to where the next load has least to do. The caller holds writer.mu.
func (l *Log) rest() error {
	if err := l.sync(); err != nil {
		return err
	}
	if err := l.writeMark(); err != nil {
		return err
	}
	l.hintActive()
	l.keepHint()
	// The room behind the end is given back. It reads as zero before and after, so that need not be durable.
	return l.cutRoom()
}

// hintStalePart of the rows: a hint whose used flags lag by more is written again when the log is closed.
const hintStalePart = 64

// refreshHints writes hints anew whose used flags are much out of date. The caller holds writer.mu.
func (l *Log) refreshHints() {
	l.state.mu.RLock()
	segments := slices.Clone(l.state.segments)
	l.state.mu.RUnlock()
	for _, s := range segments {
		stale := s.used.notInHint()
		if s != l.w.active && stale > 0 && stale > s.rowCount.Load()/hintStalePart {
			l.hints.writeLater(s)
		}
	}
}
