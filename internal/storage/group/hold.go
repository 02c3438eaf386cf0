package group

import (
	"fmt"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Hold keeps history for a reader that is behind, such as an archive. While a hold is on, a compaction keeps a version
// of a record if the entry that superseded it has an index above Index.
type Hold struct {
	Index uint64
	On    bool // false: compaction is free, and Index is not used
}

// SetHold sets the hold, which the next Compact obeys; it may be lower than before. SetHold is cheap and writes
// nothing. The log does not store the hold: a log that once had one, and was loaded again, keeps all history above its
// history floor until SetHold is called, because the hold is unknown until then.
func (l *Log) SetHold(h Hold) { l.state.hold.Store(&h) }

// HistoryFloor returns the history floor: reads of the group as of an index at or above it are exact, which means that
// for each record, its newest version at or below that index (or its absence) is still stored. The result known is
// false while no hold was ever on, or while that is not durable yet (BeginHistory): history below the applied index may
// then be incomplete. The floor never falls, except by an install.
func (l *Log) HistoryFloor() (floor uint64, known bool) {
	if h := l.folder.history.Load(); h != nil {
		return h.floor, true
	}
	return 0, false
}

// historyFloor is the history floor in the manifest on disk.
type historyFloor struct{ floor uint64 }

// historyOf returns the history floor of a manifest; nil if the manifest has none.
func historyOf(m *format.Manifest) *historyFloor {
	if !m.HistoryKnown {
		return nil
	}
	return &historyFloor{m.HistoryFloor}
}

// BeginHistory makes the history floor known and durable if a hold is on and the log has no history floor yet: the
// floor becomes the applied index. Otherwise BeginHistory does nothing. Without this call, the next write of the
// manifest by a compaction, a seal or a membership change does the same.
func (l *Log) BeginHistory() error {
	err := l.editor.beginHistory()
	l.addNames("history", &err)
	return err
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

// beginsHistory reports whether a hold is on, so that the manifest must have a history floor.
func (st *state) beginsHistory() bool {
	h := st.hold.Load()
	return h != nil && h.On
}

// beginHistory gives a manifest that is about to be written a history floor, if a hold is on and there is none yet. The
// applied index is sound, because whatever was dropped before was superseded by an applied entry. The caller holds
// writer.mu.
func (st *state) beginHistory(m *format.Manifest) {
	if !m.HistoryKnown && st.beginsHistory() {
		m.HistoryKnown, m.HistoryFloor = true, st.applied.Load()
	}
}
