package group

import (
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/group/format"
)

// Sync makes everything appended durable (fdatasync). Where a sync fails, the segment is abandoned at its synced mark
// and the unsynced entries are written and synced in a new segment; an error means that this failed too.
func (l *Log) Sync() error {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if err := l.sync(); err != nil {
		return fmt.Errorf("group %s: sync: %w", l.opts.Identity.Name, err)
	}
	return nil
}

// sync is Sync. The caller holds writer.mu.
func (l *Log) sync() error {
	if err := l.settle(); err != nil {
		return err
	}
	w := &l.w
	if !w.dirty {
		return nil
	}
	file := w.active.file.Load()
	w.ahead.zeros(file, l.state.syncedEnd, w.end, w.allocated, l.opts.Residency.zerosShare())
	if err := file.Sync(); err != nil {
		l.logger.Warn("sync failed: the segment is abandoned at its synced mark", "group", l.opts.Identity.Name,
			"segment", w.active.number, "offset", l.state.syncedEnd, "error", err)
		w.suspect = err
		return l.settle()
	}
	l.syncedTo(w.end, w.last)
	l.hintWhileOpen()
	return nil
}

// syncedTo notes that the active segment is on disk up to end, where last is its last entry. The caller holds
// writer.mu.
func (l *Log) syncedTo(end int64, last uint64) {
	l.clean()
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	l.state.syncedEnd, l.state.syncedLast = end, last
	l.state.syncedIndex = l.state.last
	l.w.active.rows.Synced()
	l.state.trimTail()
}

// settle ends what an earlier failure left open: a manifest that was perhaps replaced, an active segment that must not
// be continued. The caller holds writer.mu. After it, the active segment and the manifest are sound.
func (l *Log) settle() error {
	w := &l.w
	if l.folder.unsure {
		if err := l.folder.writeManifest(func(*format.Manifest) {}); err != nil {
			return err
		}
	}
	if w.suspect == nil {
		return nil
	}
	cause := w.suspect
	if err := l.continueLog(); err != nil {
		if errors.Is(err, format.ErrNoSpace) {
			return err
		}
		return fmt.Errorf("%w: %w; then: %w", ErrPoisoned, cause, err)
	}
	w.suspect = nil
	return nil
}

// continueLog abandons the active file (rule 5): it is sealed at its synced mark, and what is not synced is written and
// synced in a new segment, from memory. Nothing is read back to find out what is on disk. The caller holds writer.mu.
func (l *Log) continueLog() error {
	w := &l.w
	old := w.active
	l.state.mu.RLock()
	syncedEnd, syncedLast := l.state.syncedEnd, l.state.syncedLast
	from := l.state.syncedIndex + 1
	var unsynced []tailEntry
	if t := &l.state.tail; from <= l.state.last {
		unsynced = append(unsynced, t.entries[from-t.first:]...)
	}
	l.state.mu.RUnlock()

	var bytes int64
	for i := range unsynced {
		bytes += format.FrameBytes(len(unsynced[i].entry.Attributes), len(unsynced[i].entry.Data))
	}
	next, err := l.createSegment(from, bytes)
	if err != nil {
		return err
	}
	buf, err := l.rewriteUnsynced(next, unsynced)
	if err != nil {
		l.folder.discard(next)
		return err
	}
	sealed := old.manifest()
	sealed.Bytes, sealed.LastIndex = syncedEnd, max(syncedLast, old.first-1)
	err = l.folder.writeManifest(func(m *format.Manifest) {
		m.Segments = append(m.Segments[:len(m.Segments)-1], sealed, next.manifest())
		m.HardState = l.w.hardForManifest(l.state.applied.Load())
	})
	if err != nil {
		l.folder.discardUnlessListed(next)
		return err
	}
	w.active, w.end, w.allocated = next, format.SegmentHeaderBytes+int64(len(buf)), format.SegmentHeaderBytes+int64(len(buf))
	w.last, w.journaled, w.batch = next.first-1, 0, nil
	w.started = 0
	w.opened, w.inherited = 0, false
	l.dropHint()
	if n := len(unsynced); n > 0 {
		w.last = unsynced[n-1].entry.Index
	}
	l.adoptContinued(old, next, sealed, unsynced)
	l.hints.writeLater(old)
	return nil
}

// rewriteUnsynced writes entries into a new segment, syncs it and its name.
func (l *Log) rewriteUnsynced(next *segment, unsynced []tailEntry) ([]byte, error) {
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
	if _, err := file.WriteAt(buf, format.SegmentHeaderBytes); err != nil {
		return nil, format.NoSpace(err)
	}
	if err := file.Sync(); err != nil {
		return nil, format.NoSpace(err)
	}
	return buf, nil
}

// adoptContinued changes the state in memory after the log went on in a new segment.
func (l *Log) adoptContinued(old, next *segment, sealed format.ManifestSegment, unsynced []tailEntry) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	st := &l.state
	old.bytes, old.last = sealed.Bytes, sealed.LastIndex
	old.rows.CutUnsynced(old.first, sealed.Bytes)
	old.counted(old.rows)
	st.segments = append(st.segments[:len(st.segments):len(st.segments)], next)
	l.places.publish(l.state.listed())
	for i := range unsynced {
		t, e := &unsynced[i], &unsynced[i].entry
		old := st.tail.at(e.Index)
		if e.Kind == format.KindPut || e.Kind == format.KindDelete {
			next.rows.Add(next.first, e, t.loc.Offset(), format.FrameBytes(len(e.Attributes), len(e.Data)))
			if e.Index <= l.state.applied.Load() {
				st.moved(old.loc, t.loc, e.Index)
				l.places.moved(e.ID, old.loc, t.loc)
			}
		}
		old.loc = t.loc
	}
	l.clean()
	st.end, st.syncedEnd, st.syncedLast, st.syncedIndex = l.w.end, l.w.end, l.w.last, st.last
	next.rows.Synced()
	l.state.trimTail()
}
