package group

import (
	"slices"
	"sort"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Seal seals the active segment, so that it gets a hint and can be compacted, and begins a new active segment.
func (l *Log) Seal() error { return l.write("seal", l.w.seal) }

// seal implements Seal. The caller holds mu.
func (w *writer) seal() error {
	if err := w.recover(); err != nil {
		return err
	}
	if w.end == format.SegmentHeaderBytes {
		return nil
	}
	return w.roll(w.state.last+1, 0)
}

// roll seals the active segment and begins the next one. The argument first is the first index of the next segment, so
// that entries at or above this index become void. The next segment has space for at least the given number of bytes.
// The caller holds mu. The numbers in this function are the steps of the write path in docs/format.md: (1) sync, (2)
// truncate to the exact size, (3) create the next segment, and (4) write the manifest.
func (w *writer) roll(first uint64, bytes int64) error {
	old := w.active
	if err := w.sync(); err != nil {
		return err
	}
	if w.active != old {
		return nil // the sync has failed, and has therefore begun a new segment already
	}
	if w.allocation.allocated != w.end {
		file := old.file.Load()
		if err := w.allocation.truncate(file, w.end); err != nil {
			return format.MarkShortage(err)
		}
		if err := file.Sync(); err != nil {
			w.suspect = err
			return w.recover()
		}
	}
	next, err := w.createSegment(first, bytes)
	if err != nil {
		return err
	}
	sealed := old.manifest()
	sealed.Bytes, sealed.LastIndex = w.end, w.last
	if err := w.list(next, len(w.folder.manifest.Segments)-1, sealed); err != nil {
		return err
	}
	w.hint.drop()
	w.state.mu.Lock()
	old.last, old.bytes = sealed.LastIndex, sealed.Bytes
	old.counted(old.rows)
	w.begin(next, first)
	w.state.mu.Unlock()
	if f := old.file.Load(); f != nil {
		vfs.ReadAtRandom(f)
	}
	w.hints.writeLater(old)
	return nil
}

// list writes the manifest that makes a new segment the active one. This is the commit point. The argument keep says
// how many segments of the old manifest remain in the new one, counted from the first. They are followed by the
// segment that is sealed at the same time, if any, and by the new segment. If writing the manifest fails, list
// discards the new segment, unless the new manifest may be on disk nevertheless. The caller holds mu.
func (w *writer) list(next *segment, keep int, sealed ...format.ManifestSegment) error {
	err := w.folder.writeManifest(func(m *format.Manifest) {
		m.Segments = append(append(m.Segments[:keep], sealed...), next.manifest())
		m.HardState = w.hardForManifest()
		w.state.beginHistory(m)
	})
	if err != nil {
		w.folder.discardUnlessListed(next)
	}
	return err
}

// goOn makes the segment next the active one, so that the log continues in that segment at the offset end. Everything
// before this offset must be durable. The argument last is the index of the last entry before the offset. The caller
// holds mu.
func (w *writer) goOn(next *segment, end int64, last uint64) {
	w.active, w.end, w.last = next, end, last
	w.allocation.begin(end)
	w.share.begin()
}

// begin makes a new, empty segment the active one. The caller holds mu and state.mu.
func (w *writer) begin(next *segment, first uint64) {
	st := w.state
	w.goOn(next, format.SegmentHeaderBytes, first-1)
	st.end, st.syncedEnd, st.syncedLast = format.SegmentHeaderBytes, format.SegmentHeaderBytes, first-1
	st.segments = append(slices.Clip(st.segments), next)
	st.truncate(first)
	w.places.publish(st.listed())
}

// createSegment creates the file of the next segment, with memory for a first batch of the given number of bytes. The
// file is durable, but is not in the manifest yet. The caller holds mu.
func (w *writer) createSegment(first uint64, bytes int64) (*segment, error) {
	s, err := w.folder.create(first, w.active.ordinal&^1+ordinalStep, false)
	if err != nil {
		return nil, err
	}
	if err := w.images.begin(s, max(w.segmentBytes, format.SegmentHeaderBytes+bytes)); err != nil {
		w.folder.discard(s)
		return nil, err
	}
	return s, nil
}

// replaceSegments truncates the log at the index first, which must be below all entries of the active segment. It
// removes segments that become completely void from the manifest, and begins a new segment. The caller holds mu.
func (w *writer) replaceSegments(first uint64, bytes int64) error {
	next, err := w.createSegment(first, bytes)
	if err != nil {
		return err
	}
	w.state.mu.RLock()
	keep := sort.Search(len(w.state.segments), func(i int) bool { return w.state.segments[i].first >= first })
	w.state.mu.RUnlock()
	if err := w.list(next, keep); err != nil {
		return err
	}
	w.hint.drop()
	w.state.mu.Lock()
	void := w.state.segments[keep:]
	w.state.segments = w.state.segments[:keep]
	w.begin(next, first)
	w.clean()
	w.state.mu.Unlock()
	for _, s := range void {
		w.folder.retire(s)
	}
	return nil
}

// Close closes the log and its files. If hints is true, Close first syncs everything, and writes the mark and the
// hints. These include the hint of the active segment, so the next load in Index residency reads little of that
// segment. If hints is false, Close only closes the files. Synced data is safe in both cases. The next load continues
// the active segment, so that restarts do not add files.
func (l *Log) Close(hints bool) (err error) {
	defer l.addNames("close", &err)
	l.cancel()
	// Because l.ctx is canceled, Compact ends soon and then releases this lock. After that, it writes no more files.
	l.compacting.Lock()
	defer l.compacting.Unlock()
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.closed.Load() {
		return nil
	}
	if hints {
		err = l.tidy()
		l.hints.refresh(l.w.active)
	}
	l.w.leaveJournal()
	l.closed.Store(true)
	l.changed.fire()
	l.hints.writing.Wait()
	l.release()
	return err
}

// tidy prepares the files so that the next load has little work. The caller holds writer.mu.
func (l *Log) tidy() error {
	if err := l.w.sync(); err != nil {
		return err
	}
	if err := l.marks.follow(&l.state); err != nil {
		return err
	}
	l.w.growHint()
	l.w.hint.keep()
	return l.w.allocation.giveBack(l.w.active.file.Load(), l.w.end)
}
