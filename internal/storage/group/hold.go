package group

import (
	"fmt"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Hold keeps history for a reader that has not read all entries yet, such as an archive. While a hold is in force, a
// compaction keeps a version of a record if the entry that superseded it has an index above Index.
type Hold struct {
	Index uint64
	On    bool // if it is false, compaction ignores Index and may drop all history
}

// SetHold sets the hold that the next Compact obeys. It may be lower than the previous one. SetHold is cheap and writes
// nothing, because the log does not store the hold. If a log that has had a hold is loaded again, it keeps all history
// above its history floor until SetHold is called, because the hold is not known until then.
func (l *Log) SetHold(h Hold) { l.state.hold.Store(&h) }

// HistoryFloor returns the history floor. Reads of the group's state as of an index at or above the floor are exact.
// For each record that existed as of that index, the newest version at or below the index is still stored. The result
// known is false if no hold was ever in force, or if the floor is not durable yet (BeginHistory). History below the
// applied index may then be incomplete. The floor never becomes lower, except by an install and
// by EndHistory.
func (l *Log) HistoryFloor() (floor uint64, known bool) {
	if h := l.folder.history.Load(); h != nil {
		return h.floor, true
	}
	return 0, false
}

// DeletesFloor returns an index up to which deletes may be missing, because compaction has dropped their tombstones or
// because they were lost and the loss was accepted. After an accepted loss, it is the index behind which the log goes
// on, because a reader may have read more of the lost entries than this log ever had. A reader that has read the log up
// to a lower index must not continue from there: it may have read a put of a record whose delete is missing, and would
// never learn of the delete. The history floor does not tell this, because it says nothing about what such a reader has
// read before. The result is 0 if no delete is missing.
func (l *Log) DeletesFloor() uint64 { return l.folder.deletesFloor.Load() }

// historyFloor is the history floor in the manifest on disk.
type historyFloor struct{ floor uint64 }

// historyOf returns a manifest's history floor, or nil if it has none.
func historyOf(m *format.Manifest) *historyFloor {
	if !m.HistoryKnown {
		return nil
	}
	return &historyFloor{m.HistoryFloor}
}

// BeginHistory durably sets the history floor to the applied index if a hold is in force and the log has no history
// floor yet. Otherwise BeginHistory does nothing. Without this call, the next write of the manifest by a compaction, a
// seal or a membership change sets the floor.
func (l *Log) BeginHistory() error {
	err := l.editor.beginHistory()
	l.addNames("history", &err)
	return err
}

// SettleHistory does the same as BeginHistory, and returns the history floor. When it returns, a hold that was set
// before the call is in force: only a compaction that ignores holds raises the floor above it.
func (l *Log) SettleHistory() (floor uint64, err error) {
	if err := l.BeginHistory(); err != nil {
		return 0, err
	}
	// A compaction that had compared with the hold of before has written its manifest when this lock is free.
	if err := l.editor.w.whileOpen(func() error { return nil }); err != nil {
		l.addNames("history", &err)
		return 0, err
	}
	floor, known := l.HistoryFloor()
	if !known {
		return 0, fmt.Errorf("group %s: history: no hold is in force", l.opts.Identity.Name)
	}
	return floor, nil
}

// EndHistory ends the hold, and durably removes the history floor: nothing needs the history of the group any more. A
// hold that is set later begins with a new floor. If the floor cannot be removed, compaction obeys no hold until the
// log is loaded again, and EndHistory can be repeated.
func (l *Log) EndHistory() error {
	l.SetHold(Hold{})
	err := l.editor.endHistory()
	l.addNames("history", &err)
	return err
}

// endHistory implements Log.EndHistory.
func (e *editor) endHistory() error {
	if e.folder.history.Load() == nil {
		return nil
	}
	err := e.w.whileOpen(func() error {
		return e.w.amend(func(m *format.Manifest) { m.HistoryKnown, m.HistoryFloor = false, 0 })
	})
	if err != nil {
		return fmt.Errorf("history floor: %w", format.MarkShortage(err))
	}
	e.state.mu.Lock()
	defer e.state.mu.Unlock()
	e.state.endPast(everything)
	return nil
}

// beginHistory implements Log.BeginHistory.
func (e *editor) beginHistory() error {
	if !e.state.beginsHistory() || e.folder.history.Load() != nil {
		return nil
	}
	err := e.w.whileOpen(func() error { return e.w.amend(func(*format.Manifest) {}) })
	if err != nil {
		return fmt.Errorf("history floor: %w", format.MarkShortage(err))
	}
	return nil
}

// holdIndex returns the index of the hold, or the constant everything if no hold is known to be in force.
func (st *state) holdIndex() uint64 {
	if h := st.hold.Load(); h != nil && h.On {
		return h.Index
	}
	return everything
}

// beginsHistory reports whether a hold is in force, so that the manifest must have a history floor.
func (st *state) beginsHistory() bool {
	h := st.hold.Load()
	return h != nil && h.On
}

// beginHistory sets the history floor in a manifest that is about to be written, if a hold is in force and the
// manifest has no floor yet. The applied index is a valid floor, because every version that was dropped so far had
// been superseded by an applied entry. The caller holds writer.mu.
func (st *state) beginHistory(m *format.Manifest) {
	if !m.HistoryKnown && st.beginsHistory() {
		m.HistoryKnown, m.HistoryFloor = true, st.applied.Load()
	}
}
