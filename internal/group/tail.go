package group

import (
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/index"
)

// tailEntry is an entry in memory: not applied, or not synced yet.
type tailEntry struct {
	raft  *raftpb.Entry
	entry Entry     // decoded; aliases raft.Data
	loc   index.Loc // its place
}

// tail is the end of the log in memory: consecutive entries from first on. Entries come at its end and go at its start all the time, so it
// uses its array again.
type tail struct {
	first   uint64
	entries []tailEntry
	array   []tailEntry // that entries are a part of, from its start on; of length 0
}

// push adds entries; where there are none yet, from index first on.
func (t *tail) push(first uint64, batch []tailEntry) {
	if len(t.entries) == 0 {
		t.first, t.entries = first, t.array
	}
	if n := len(t.entries); n+len(batch) > cap(t.entries) && 2*n <= cap(t.array) { // much of the array, before them, is free
		begin := cap(t.array) - cap(t.entries)
		copy(t.array[:n], t.entries)
		clear(t.array[max(n, begin) : begin+n])
		t.entries = t.array[:n]
	}
	before := cap(t.entries)
	if t.entries = append(t.entries, batch...); cap(t.entries) != before {
		t.array = t.entries[:0]
	}
}

// release lets go of the array where nothing is in it.
func (t *tail) release() {
	if len(t.entries) == 0 {
		t.entries, t.array = nil, nil
	}
}

// at gives an entry; nil where it is not in memory.
func (t *tail) at(at uint64) *tailEntry {
	if at < t.first || at-t.first >= uint64(len(t.entries)) {
		return nil
	}
	return &t.entries[at-t.first]
}

// cut drops the entries from an index on.
func (t *tail) cut(from uint64) {
	if from >= t.first && from-t.first < uint64(len(t.entries)) {
		clear(t.entries[from-t.first:])
		t.entries = t.entries[:from-t.first]
	}
}

// trim drops the entries up to an index.
func (t *tail) trim(through uint64) {
	if through < t.first {
		return
	}
	n := min(through-t.first+1, uint64(len(t.entries)))
	clear(t.entries[:n]) // the array lives on; what it points to need not
	t.entries = t.entries[n:]
	t.first = through + 1
}
