package group

import (
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
)

// tailEntry is an entry in memory that is not applied or not synced yet.
type tailEntry struct {
	raft  *raftpb.Entry
	entry format.Entry // decoded; aliases raft.Data
	loc   index.Loc    // place of the entry's frame
}

// tail is the end of the log in memory: consecutive entries from first on. Entries are added at its end and removed
// from its beginning.
type tail struct {
	first   uint64
	entries []tailEntry
}

// push appends entries. If the tail is empty, they begin with index first.
func (t *tail) push(first uint64, batch []tailEntry) {
	if len(t.entries) == 0 {
		t.first = first
	}
	t.entries = append(t.entries, batch...)
}

// at returns an entry; nil if it is not in memory.
func (t *tail) at(at uint64) *tailEntry {
	if at < t.first || at-t.first >= uint64(len(t.entries)) {
		return nil
	}
	return &t.entries[at-t.first]
}

// truncate drops the entries from an index on.
func (t *tail) truncate(from uint64) {
	if from >= t.first && from-t.first < uint64(len(t.entries)) {
		clear(t.entries[from-t.first:])
		t.keep(t.entries[:from-t.first])
	}
}

// trim drops the entries up to an index.
func (t *tail) trim(through uint64) {
	if through < t.first {
		return
	}
	n := min(through-t.first+1, uint64(len(t.entries)))
	clear(t.entries[:n]) // the array is still used, and must not keep the data of removed entries in memory
	t.keep(t.entries[n:])
	t.first = through + 1
}

// keep stores the remaining entries. The tail of an idle group keeps no array.
func (t *tail) keep(entries []tailEntry) {
	if t.entries = entries; len(entries) == 0 {
		t.entries = nil
	}
}
