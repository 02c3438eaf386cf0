package group

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"sort"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/index"
)

// Seal seals the active segment (so that it gets a hint, and can be compacted) and begins a new one.
func (l *Log) Seal() error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if err := l.seal(); err != nil {
		return fmt.Errorf("group %s: seal: %w", l.opts.Identity.Name, err)
	}
	return nil
}

// seal is Seal. The caller holds wmu.
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
// entries from there on are void. The caller holds wmu. docs/format.md, write path: (1) sync, (2) exact size, (3) next
// segment, (4) manifest.
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
	err = l.writeManifest(func(m *format.Manifest) {
		m.Segments = append(m.Segments[:len(m.Segments)-1], sealed, next.manifest())
		m.HardState = l.hardForManifest()
	})
	if err != nil {
		l.discardUnlessListed(next)
		return err
	}
	l.dropHint()
	l.mu.Lock()
	old.last, old.bytes = sealed.LastIndex, sealed.Bytes
	old.counted(old.rows)
	l.begin(next, first)
	l.mu.Unlock()
	if f := old.file.Load(); f != nil {
		old.adviseRandom(f)
	}
	l.writeHintLater(old)
	return nil
}

// begin makes a new, empty segment the active one. The caller holds wmu and mu.
func (l *Log) begin(next *segment, first uint64) {
	w, st := &l.w, &l.state
	w.active, w.end, w.allocated, w.last = next, format.SegmentHeaderBytes, format.SegmentHeaderBytes, first-1
	w.journaled, w.started, w.batch = 0, 0, nil
	w.opened, w.inherited = 0, false
	st.end, st.syncedEnd, st.syncedLast = format.SegmentHeaderBytes, format.SegmentHeaderBytes, first-1
	st.segments = append(slices.Clip(st.segments), next)
	l.cutState(first)
	l.publishSegments()
}

// replaceSegments cuts the log below the active segment: segments that are void as a whole leave the manifest, a new
// one begins. The caller holds wmu.
func (l *Log) replaceSegments(first uint64, bytes int64) error {
	next, err := l.createSegment(first, bytes)
	if err != nil {
		return err
	}
	l.mu.RLock()
	keep := sort.Search(len(l.state.segments), func(i int) bool { return l.state.segments[i].first >= first })
	l.mu.RUnlock()
	err = l.writeManifest(func(m *format.Manifest) {
		m.Segments = append(m.Segments[:keep], next.manifest())
		m.HardState = l.hardForManifest()
	})
	if err != nil {
		l.discardUnlessListed(next)
		return err
	}
	l.dropHint()
	l.mu.Lock()
	void := l.state.segments[keep:]
	l.state.segments = l.state.segments[:keep]
	l.begin(next, first)
	l.clean()
	l.mu.Unlock()
	for _, s := range void {
		l.retireSegment(s)
	}
	return nil
}

// retireSegment removes the files of a segment that left the manifest, when the last reader has left it.
func (l *Log) retireSegment(s *segment) {
	s.retired = func() {
		l.removeFile(path.Base(s.path))
		l.removeFile(format.HintName(s.number))
	}
	s.unpin()
}

// publishSegments shows the present segments to readers without a lock. The caller holds mu.
func (l *Log) publishSegments() {
	all := append(slices.Clip(l.state.segments), l.incoming...)
	var top uint32
	for _, s := range all {
		top = max(top, s.ordinal)
	}
	table := make([]*segment, top+1)
	for _, s := range all {
		table[s.ordinal] = s
	}
	l.byOrdinal.Store(&table)
}

// segmentAt is the segment with an ordinal; nil where it is gone.
func (l *Log) segmentAt(ordinal uint32) *segment {
	table := *l.byOrdinal.Load()
	if int(ordinal) >= len(table) {
		return nil
	}
	return table[ordinal]
}

// writeHintLater writes the hint of a sealed segment off the hot path. Without it, the next load reads the segment.
func (l *Log) writeHintLater(s *segment) {
	if !s.pin() {
		return
	}
	l.hints.Go(func() {
		defer s.unpin()
		l.hintTurn.Lock()
		defer l.hintTurn.Unlock()
		if err := l.writeHint(s); err != nil {
			l.logger.Warn("hint was not written: the next load reads the segment instead", "group", l.opts.Identity.Name,
				"segment", s.number, "error", err)
		}
	})
}

// writeHint writes the hint of a sealed segment, with the used flags of now, from its rows or from the hint on disk.
func (l *Log) writeHint(s *segment) error {
	l.mu.RLock()
	rows, m, terms := s.rows, s.manifest(), l.termsOf(s)
	l.mu.RUnlock()
	if rows != nil && s.incomplete {
		return nil // the next load reads the segment, and finds the damage again
	}
	var h *format.Hint
	if rows == nil {
		var err error
		if h, err = format.ReadHint(l.fs, l.dir, m); errors.Is(err, format.ErrCorrupt) {
			h, err = l.remakeHint(s, m)
		}
		if err != nil {
			return err
		}
	} else {
		h = rows.Hint(m, terms)
	}
	unknown := s.used.notInHint()
	for i, place := range h.Places {
		if s.used.superseded(index.Loc(place).Offset()) {
			h.SetUsed(i, false)
		}
	}
	if err := format.WriteHint(l.fs, l.dir, s.number, h); err != nil {
		return err
	}
	s.used.written(unknown)
	l.mu.Lock()
	s.rows = nil
	l.mu.Unlock()
	return nil
}

// termsOf gives the term runs of a sealed segment. The caller holds mu.
func (l *Log) termsOf(s *segment) []format.TermRun {
	if s.terms != nil || s.last < s.first {
		return s.terms
	}
	return l.termsWithin(s.first, s.last)
}

// termsWithin gives the term runs between two indexes. The caller holds mu.
func (l *Log) termsWithin(first, last uint64) []format.TermRun {
	var out []format.TermRun
	if term := format.TermAt(l.state.terms, first); term != 0 {
		out = format.AddTerm(out, first, term)
	}
	for _, run := range l.state.terms {
		if first < run.FirstIndex && run.FirstIndex <= last {
			out = append(out, run)
		}
	}
	return out
}

// Close stops using the files. With hints, all is synced, the mark says so, and hints are written first, also that of
// the active segment, so that the next load reads little of it in Index residency; without, it only closes (fast
// stop). The active segment goes on with the next load: a start leaves no file behind. What was synced is safe either
// way.
func (l *Log) Close(hints bool) error {
	l.cancel()
	l.compacting.Lock() // until Compact has noticed: it must not write files any more
	defer l.compacting.Unlock()
	l.wmu.Lock()
	defer l.wmu.Unlock()
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
	l.hints.Wait()
	l.release()
	if err != nil {
		return fmt.Errorf("group %s: close: %w", l.opts.Identity.Name, err)
	}
	return nil
}

// rest brings the files to where the next load has least to do. The caller holds wmu.
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

// refreshHints writes hints anew whose used flags are much out of date. The caller holds wmu.
func (l *Log) refreshHints() {
	l.mu.RLock()
	segments := slices.Clone(l.state.segments)
	l.mu.RUnlock()
	for _, s := range segments {
		stale := s.used.notInHint()
		if s != l.w.active && stale > 0 && stale > s.rowCount.Load()/hintStalePart {
			l.writeHintLater(s)
		}
	}
}
