package group

import (
	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/journal"
	"sheaf.dev/sheaf/internal/vfs"
)

// joinJournal takes a log that is to be opened into the journal of its volume; nil: there is none.
func joinJournal(opts Options) (*journal.Member, error) {
	if opts.Journal == nil {
		return nil, nil
	}
	return opts.Journal.Join(opts.Identity.Group, func(share journal.Share) error { return Redo(opts.FS, opts.Dir, share) })
}

// SyncShared makes everything appended durable by the journal of the volume, in one sync with the small batches of
// other groups. The segment itself is synced later: by the next Sync, which must come before the mark of a quiet group
// is written (Tick). False: nothing was done, because there is no journal, the batch is large, or the journal needs its
// room; call Sync.
func (l *Log) SyncShared() bool {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return !l.closed.Load() && l.syncJournal()
}

// syncJournal has the journal make durable what neither it nor the segment has; false: it does not. The caller holds
// writer.mu.
func (l *Log) syncJournal() bool {
	w := &l.w
	if l.journal == nil || l.folder.unsure || w.suspect != nil || !w.dirty || l.journal.MustSync() {
		return false
	}
	from := max(w.journaled, l.state.syncedEnd)
	if from == w.end {
		return true
	}
	if w.batch == nil || w.batchAt != from || from+int64(len(w.batch)) != w.end {
		return false
	}
	s := w.active
	if err := l.journal.Write(s.number, s.id, from, w.batch); err != nil {
		return false
	}
	w.journaled = w.end
	l.startWriting()
	return true
}

// startBytes is how much the journal may make durable before the kernel begins to write it to the segment.
const startBytes = 256 << 10

// startWriting has the kernel begin to write what only the journal made durable, so that not all is left to the sync
// for which the journal asks of all groups at once, and which every batch waits for that has a record in one of them.
// The caller holds writer.mu.
func (l *Log) startWriting() {
	w := &l.w
	from, to := max(w.started, l.state.syncedEnd&^(format.BlockBytes-1)), w.end&^(format.BlockBytes-1)
	if to-from >= startBytes {
		vfs.StartWriting(w.active.file.Load(), from, to-from)
		w.started = to
	}
}

// clean notes that nothing is left to be synced. The caller holds writer.mu.
func (l *Log) clean() {
	l.w.dirty = false
	if l.journal != nil {
		l.journal.Settled()
	}
}

// leaveJournal syncs what only the journal has made durable, as a log that is closed is not asked for it any more.
// Where that fails, the journal keeps it until the next load; so it does where it was closed before the log, as if the
// process were killed. The caller holds writer.mu.
func (l *Log) leaveJournal() {
	if l.journal == nil || l.w.journaled <= l.state.syncedEnd || l.journal.Ended() {
		return
	}
	if err := l.sync(); err != nil {
		l.logger.Warn("the segment could not be synced: the journal keeps what was written last", "group", l.opts.Identity.Name, "error", err)
	}
}
