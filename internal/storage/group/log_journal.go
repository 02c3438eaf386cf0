package group

import (
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// joinJournal takes a log that is to be opened into the journal of its volume; nil: there is none.
func joinJournal(opts Options) (*journal.Member, error) {
	if opts.Journal == nil {
		return nil, nil
	}
	return opts.Journal.Join(opts.Identity.Group, func(share journal.Share) error {
		return Redo(opts.FS, opts.Dir, share)
	})
}

// SyncShared makes everything appended durable by the journal of the volume, in one sync with the small batches of
// other groups. The segment itself is synced later: by the next Sync, which must come before the mark of a quiet group
// is written (Tick). False: nothing was done, because there is no journal, the batch is large, or the journal needs its
// room; call Sync.
func (l *Log) SyncShared() bool {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return !l.closed.Load() && l.w.syncShared()
}

// syncShared is SyncShared. The caller holds mu.
func (w *writer) syncShared() bool {
	return !w.folder.unsure && w.suspect == nil && w.dirty && w.share.write(w.active, w.state.syncedEnd, w.end)
}

// clean notes that nothing is left to be synced. The caller holds mu.
func (w *writer) clean() {
	w.dirty = false
	w.share.settled()
}

// leaveJournal syncs what only the journal has made durable, as a log that is closed is not asked for it any more.
// Where that fails, the journal keeps it until the next load; so it does where it was closed before the log, as if the
// process were killed. The caller holds mu.
func (w *writer) leaveJournal() {
	if !w.share.isOwed(w.state.syncedEnd) {
		return
	}
	if err := w.sync(); err != nil {
		w.folder.logger.Warn("the segment could not be synced: the journal keeps what was written last", "group",
			w.folder.identity.Name, "error", err)
	}
}

// share is the group's share of the journal of the volume: what is durable there, and not yet in the active segment. It
// touches the journal, and tells the kernel to write the segment; it writes nothing there itself. Guarded by writer.mu.
type share struct {
	member  *journal.Member // nil: there is no journal
	through int64           // offset in the active segment up to which the journal has what is not synced; 0: nothing
	started int64           // offset in the active segment up to which the kernel was told to begin to write
	batch   []byte          // the frames that were written last, where they are in memory as one; they stand at batchAt
	batchAt int64
}

// begin is about a new active segment, of which all is durable.
func (h *share) begin() { h.through, h.started, h.batch = 0, 0, nil }

// write has the journal make durable what the active segment holds from synced to end; false: it does not.
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

// startBytes is how much the journal may make durable before the kernel begins to write it to the segment.
const startBytes = 256 << 10

// startWriting has the kernel begin to write what only the journal made durable. Not all of it is left to the sync for
// which the journal asks of all groups at once: every batch waits for that one that has a record in one of them.
func (h *share) startWriting(active *segment, synced int64) {
	from, to := max(h.started, synced&^(format.BlockBytes-1)), h.through&^(format.BlockBytes-1)
	if to-from >= startBytes {
		vfs.StartWriting(active.file.Load(), from, to-from)
		h.started = to
	}
}

// settled tells the journal that all that it has of the group stands, durably, in the segments.
func (h *share) settled() {
	if h.member != nil {
		h.member.Settled()
	}
}

// isOwed tells whether the journal, which is open, has what the active segment, synced up to an offset, has not.
func (h *share) isOwed(synced int64) bool {
	return h.member != nil && h.through > synced && !h.member.Ended()
}
