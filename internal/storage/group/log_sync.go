package group

import (
	"fmt"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Sync makes everything appended durable (fdatasync). If syncing the segment fails, Sync abandons the segment at its
// synced mark, and writes and syncs the unsynced entries in a new segment. Sync returns an error if that also fails.
func (l *Log) Sync() error { return l.write("sync", l.w.sync) }

// sync implements Sync. The caller holds mu.
func (w *writer) sync() error {
	if err := w.recover(); err != nil {
		return err
	}
	if !w.dirty {
		return nil
	}
	file := w.active.file.Load()
	w.allocation.ahead.zeros(file, w.state.syncedEnd, w.end, w.allocation.allocated)
	if err := file.Sync(); err != nil {
		w.folder.logger.Warn("sync failed: the segment is abandoned at its synced mark",
			"segment", w.active.number, "offset", w.state.syncedEnd, "error", err)
		w.suspect = err
		return w.recover()
	}
	w.syncedTo(w.end, w.last)
	w.hintWhileOpen()
	return nil
}

// syncedTo records that the active segment is on disk up to the offset end. The argument last is the index of the last
// entry before that offset. The caller holds mu.
func (w *writer) syncedTo(end int64, last uint64) {
	w.clean()
	w.state.synced(w.active, end, last)
}

// recover resolves an earlier failure. If writing a manifest has failed, it writes the manifest again. If the active
// segment must not be continued, it begins a new one. If recover returns no error, the active segment and the manifest
// can be used. The caller holds mu.
func (w *writer) recover() error {
	if w.folder.unsure {
		if err := w.folder.writeManifest(func(*format.Manifest) {}); err != nil {
			return err
		}
	}
	if w.suspect == nil {
		return nil
	}
	cause := w.suspect
	if err := w.continueLog(); err != nil {
		if err = format.MarkShortage(err); format.Passes(err) {
			return err
		}
		return fmt.Errorf("%w: %w; then: %w", ErrPoisoned, cause, err)
	}
	w.suspect = nil
	return nil
}

// amend calls recover, and then writes a changed manifest. The caller holds mu.
func (w *writer) amend(change func(*format.Manifest)) error {
	if err := w.recover(); err != nil {
		return err
	}
	return w.folder.writeManifest(func(m *format.Manifest) {
		change(m)
		w.state.beginHistory(m)
	})
}

// continueLog abandons the active file (rule 5). It seals the file at its synced mark, and writes the unsynced entries
// from memory to a new segment, which it syncs. It never reads the file to find out which bytes are on disk. The caller
// holds mu.
func (w *writer) continueLog() error {
	old := w.active
	w.state.mu.RLock()
	syncedEnd, syncedLast := w.state.syncedEnd, w.state.syncedLast
	from := w.state.syncedIndex + 1
	var unsynced []tailEntry
	if t := &w.state.tail; from <= w.state.last {
		unsynced = append(unsynced, t.entries[from-t.first:]...)
	}
	w.state.mu.RUnlock()

	var bytes int64
	for i := range unsynced {
		bytes += format.FrameBytes(len(unsynced[i].entry.Attributes), len(unsynced[i].entry.Data))
	}
	next, err := w.createSegment(from, bytes)
	if err != nil {
		return err
	}
	end, err := rewriteUnsynced(next, unsynced)
	if err != nil {
		w.folder.discard(next)
		return err
	}
	sealed := old.manifest()
	sealed.Bytes, sealed.LastIndex = syncedEnd, max(syncedLast, old.first-1)
	if err := w.list(next, len(w.folder.manifest.Segments)-1, sealed); err != nil {
		return err
	}
	w.hint.drop()
	last := next.first - 1
	if n := len(unsynced); n > 0 {
		last = unsynced[n-1].entry.Index
	}
	w.goOn(next, end, last)
	w.adoptContinued(old, next, sealed, unsynced)
	w.hints.writeLater(old)
	return nil
}

// rewriteUnsynced writes entries into a new segment, sets their locations, and syncs the segment. It returns the
// offset at which the last entry ends. If the disk is full, it returns ErrNoSpace.
func rewriteUnsynced(next *segment, unsynced []tailEntry) (end int64, err error) {
	var buf []byte
	for i := range unsynced {
		t := &unsynced[i]
		at := len(buf)
		buf = format.AppendFrame(buf, next.id, format.SegmentHeaderBytes+int64(at), &t.entry)
		t.loc = next.place(format.SegmentHeaderBytes+int64(at), int64(len(buf)-at), t.entry.Kind == format.KindDelete)
	}
	if next.image != nil {
		copy(next.image[format.SegmentHeaderBytes:], buf)
	}
	file := next.file.Load()
	if _, err = file.WriteAt(buf, format.SegmentHeaderBytes); err == nil {
		err = file.Sync()
	}
	if err != nil {
		return 0, format.MarkShortage(err)
	}
	return format.SegmentHeaderBytes + int64(len(buf)), nil
}

// adoptContinued updates the state in memory after the log has been continued in a new segment.
func (w *writer) adoptContinued(old, next *segment, sealed format.ManifestSegment, unsynced []tailEntry) {
	st := w.state
	st.mu.Lock()
	defer st.mu.Unlock()
	old.bytes, old.last = sealed.Bytes, sealed.LastIndex
	old.rows.TruncateUnsynced(old.first, sealed.Bytes)
	old.counted(old.rows)
	st.segments = append(st.segments[:len(st.segments):len(st.segments)], next)
	w.places.publish(st.listed())
	for i := range unsynced {
		t, e := &unsynced[i], &unsynced[i].entry
		old := st.tail.at(e.Index)
		if e.Kind == format.KindPut || e.Kind == format.KindDelete {
			next.rows.Add(next.first, e, t.loc.Offset(), format.FrameBytes(len(e.Attributes), len(e.Data)))
			if e.Index <= st.applied.Load() {
				st.moved(e.ID, old.loc, t.loc, e.Index)
				w.places.moved(e.ID, old.loc, t.loc)
			}
		}
		old.loc = t.loc
	}
	st.shifts++
	w.clean()
	st.end, st.syncedEnd, st.syncedLast, st.syncedIndex = w.end, w.end, w.last, st.last
	next.rows.Synced()
	st.trimTail()
}
