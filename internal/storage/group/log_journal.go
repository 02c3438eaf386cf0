package group

import (
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// SyncShared makes everything appended durable with the volume's journal, in one sync together with the small batches
// of other groups. The segment itself is synced later, by the next Sync. When the group becomes idle, the caller must
// call Sync before Tick writes the mark. SyncShared returns false and does nothing if there is no journal, if the
// batch is large, or if the journal has no space for it. The caller must then call Sync.
func (l *Log) SyncShared() bool {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	w := &l.w
	return !l.closed.Load() && !w.folder.unsure && w.suspect == nil && w.dirty &&
		w.share.write(w.active, w.state.syncedEnd, w.end)
}

// clean records that everything written so far is durable. The caller holds mu.
func (w *writer) clean() {
	w.dirty = false
	w.share.durable()
}

// leaveJournal syncs the data that so far is durable only in the journal. Close calls it, because the journal can ask
// only an open log to sync. If the sync fails, the journal keeps the data until the next load. If the journal was
// closed before the log, leaveJournal syncs nothing, as if the process had been killed, and the journal keeps the
// data too. The caller holds mu.
func (w *writer) leaveJournal() {
	if !w.share.isOwed(w.state.syncedEnd) {
		return
	}
	if err := w.sync(); err != nil {
		w.folder.logger.Warn("the segment could not be synced: the journal keeps what was written last",
			"error", err)
	}
}

// share is the group's share of the volume's journal. This is the data that is durable in the journal, but not yet in
// the active segment. The methods of share write to the journal and ask the kernel to write the segment. They do not
// write to the segment themselves. Guarded by writer.mu.
type share struct {
	member *journal.Member // nil if there is no journal
	// through is the offset in the active segment up to which the journal has the unsynced data. It is 0 if the journal
	// has none.
	through int64
	started int64 // offset in the active segment up to which the kernel was asked to write
	// batch holds the frames that were written last, if they are contiguous in memory. batchAt is the offset of these
	// frames.
	batch   []byte
	batchAt int64
}

// begin records that a new segment is active, and that all of its content is durable.
func (h *share) begin() { h.through, h.started, h.batch = 0, 0, nil }

// write makes the active segment's bytes between the offsets synced and end durable in the journal. It returns false
// if it could not do so.
func (h *share) write(active *segment, synced, end int64) bool {
	if h.member == nil || h.member.MustSync() {
		return false
	}
	from := max(h.through, synced)
	if from == end {
		return true
	}
	if h.batch == nil || h.batchAt != from || from+int64(len(h.batch)) != end {
		return false
	}
	if err := h.member.Write(active.number, active.id, from, h.batch); err != nil {
		return false
	}
	h.through = end
	h.startWriting(active, synced)
	return true
}

// startBytes is the number of bytes that the journal may make durable before the kernel is asked to write them to the
// segment.
const startBytes = 256 << 10

// startWriting asks the kernel to start writing the data that only the journal has made durable. The journal requests a
// sync from all its groups at the same time, and every batch with a record from one of these groups waits for that
// sync. Writing early shortens that sync.
func (h *share) startWriting(active *segment, synced int64) {
	from, to := max(h.started, synced&^(format.BlockBytes-1)), h.through&^(format.BlockBytes-1)
	if to-from >= startBytes {
		vfs.StartWriting(active.file.Load(), from, to-from)
		h.started = to
	}
}

// durable tells the journal that all of its data for this group is durable in the segments.
func (h *share) durable() {
	if h.member != nil {
		h.member.Durable()
	}
}

// isOwed reports whether the open journal has data that is not durable in the active segment, which is synced up to
// the given offset.
func (h *share) isOwed(synced int64) bool {
	return h.member != nil && h.through > synced && !h.member.Ended()
}
