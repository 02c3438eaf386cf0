package group

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
)

// state is shared by the readers and the writer. It records which entries exist, where they are, and which of them are
// on disk. If the caller of a method must hold mu, the method's comment says so. The other methods lock mu themselves.
type state struct {
	// mu guards all fields below that are not atomic. It is held only for operations in memory, and never during I/O. It
	// is locked after writer.mu.
	mu sync.RWMutex

	segments  []*segment // in log order; the last one is active
	tail      tail
	terms     []format.TermRun // term runs of all entries above the compaction floor, and of the entry at the floor
	last      uint64           // index of the last entry
	end       int64            // offset at which the last frame of the active segment ends
	floor     uint64           // Raft's compaction floor, which is the first index - 1
	floorTerm uint64
	// syncedEnd is an offset in the active segment before which everything is on disk. syncedLast is the index of the
	// last entry in file order before syncedEnd. syncedIndex is the greatest index on disk, in any segment.
	syncedEnd   int64
	syncedLast  uint64
	syncedIndex uint64
	lastCommit  int64 // greatest commit time of any entry; the leader must not use an earlier one for the next entry
	conf        *raftpb.ConfState
	confIndex   uint64
	confsAhead  []uint64 // indexes of applied membership changes that have not been passed to SetConf yet
	snapshots   map[ScanID]*snapshot
	placesMax   int    // snapshotPlacesMax, or a smaller limit in tests
	closed      uint64 // number of snapshots that were closed or have expired, and are therefore not in snapshots
	looked      looked
	incoming    []*segment // new segments of a swap in progress, which are published but not in segments yet
	shifting    bool       // whether a swap is in progress, so that locations of applied versions change
	shifts      uint64     // how often locations of applied versions have begun to change

	// applied is the index of the last applied entry. It is written with mu held.
	applied atomic.Uint64
	ages    ages // the times at which entries were applied
	// tombstoneLimit is the limit that was last set with SetTombstoneLimit.
	tombstoneLimit atomic.Uint64
	hold           atomic.Pointer[Hold] // the hold last set with SetHold, or nil if none was set
}

// through returns the last index in segment i that no later segment has made void.
func (st *state) through(i int) uint64 {
	if i+1 < len(st.segments) {
		return st.segments[i+1].first - 1
	}
	return math.MaxUint64
}

// term implements Term. The caller holds mu.
func (st *state) term(at uint64) (uint64, error) {
	switch {
	case at < st.floor:
		return 0, raft.ErrCompacted
	case at > st.last:
		return 0, raft.ErrUnavailable
	case at == st.floor:
		return st.floorTerm, nil
	}
	if term := format.TermAt(st.terms, at); term != 0 {
		return term, nil
	}
	return st.floorTerm, nil
}

// termsOf returns the term runs of a sealed segment. The caller holds mu.
func (st *state) termsOf(s *segment) []format.TermRun {
	if s.terms != nil || s.last < s.first {
		return s.terms
	}
	return st.termsWithin(s.first, s.last)
}

// termsWithin returns the term runs between two indexes. The caller holds mu.
func (st *state) termsWithin(first, last uint64) []format.TermRun {
	var out []format.TermRun
	if term := format.TermAt(st.terms, first); term != 0 {
		out = format.AddTerm(out, first, term)
	}
	for _, run := range st.terms {
		if first < run.FirstIndex && run.FirstIndex <= last {
			out = append(out, run)
		}
	}
	return out
}

// addTerm records the term of the next entry. The caller holds mu.
func (st *state) addTerm(at, term uint64) {
	if runs := st.terms; len(runs) == 0 || runs[len(runs)-1].Term != term {
		st.terms = append(st.terms, format.TermRun{FirstIndex: at, Term: term})
	}
}

// truncate removes the entries at or above an index from memory. These entries must not be committed. The active
// segment still contains them. The caller holds mu.
func (st *state) truncate(from uint64) {
	st.tail.truncate(from)
	active := st.segments[len(st.segments)-1]
	active.rows.Truncate(active.first, from)
	st.terms = slices.Clip(format.TruncateTerms(st.terms, from))
	st.last = min(st.last, from-1)
	st.syncedIndex = min(st.syncedIndex, from-1)
}

// push adds a batch that was written to the active segment. The argument end is the offset at which the segment ends
// after the batch. Entries that the batch makes void are dropped.
func (st *state) push(active *segment, batch []tailEntry, end int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.end = end
	if len(batch) == 0 {
		return
	}
	first := batch[0].entry.Index
	if first <= st.last {
		st.truncate(first)
	}
	st.tail.push(first, batch)
	for i := range batch {
		e := &batch[i].entry
		st.addTerm(e.Index, e.Term)
		st.lastCommit = max(st.lastCommit, e.CommitTime)
		if e.Kind == format.KindPut || e.Kind == format.KindDelete {
			active.rows.Add(active.first, e, batch[i].loc.Offset(), format.FrameBytes(len(e.Attributes), len(e.Data)))
		}
	}
	st.last = batch[len(batch)-1].entry.Index
}

// synced records that the active segment is on disk up to the offset end. The argument last is the index of the last
// entry before that offset.
func (st *state) synced(active *segment, end int64, last uint64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.syncedEnd, st.syncedLast = end, last
	st.syncedIndex = st.last
	active.rows.Synced()
	st.trimTail()
}

// syncedMark returns a mark for the part of the active segment that is on disk.
func (st *state) syncedMark() format.Mark {
	st.mu.RLock()
	defer st.mu.RUnlock()
	mark := format.Mark{Offset: st.syncedEnd, Index: st.syncedLast}
	if n := len(st.segments); n > 0 {
		mark.Segment = st.segments[n-1].id
	}
	return mark
}

// trimTail frees the memory of entries that are both applied and synced. The caller holds mu.
func (st *state) trimTail() {
	st.tail.trim(min(st.applied.Load(), st.syncedIndex))
}

// tailEntries appends entries from memory to out. The caller holds mu.
func (st *state) tailEntries(out []*raftpb.Entry, lo, hi uint64, budget *uint64) (_ []*raftpb.Entry, more bool) {
	for at := lo; at < hi; at++ {
		t := st.tail.at(at)
		if t == nil {
			return out, true
		}
		if !take(budget, t.raft, len(out) == 0) {
			return out, false
		}
		out = append(out, t.raft)
	}
	return out, true
}

// exportIndex returns the greatest applied index at which the membership is known. This may be below the applied index,
// because SetConf may be called some time after Apply. The caller holds mu.
func (st *state) exportIndex() uint64 {
	if len(st.confsAhead) > 0 {
		return st.confsAhead[0] - 1
	}
	return st.applied.Load()
}

// appliedWithConf returns the applied index, and whether all membership changes up to it were passed to SetConf.
func (st *state) appliedWithConf() (applied uint64, known bool) {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.applied.Load(), len(st.confsAhead) == 0
}

// forgotten returns an index. No replica remembers the request id of an entry at or below this index any longer, not
// even a replica that rebuilds its request window from this log.
func (st *state) forgotten(w format.RequestWindow) uint64 {
	applied := st.applied.Load()
	behind := func(writes int) uint64 { return applied - min(applied, uint64(writes)) }
	old := max(st.ages.through(w.Age), min(st.ages.through(w.AgeMin), behind(w.Writes)))
	return max(old, behind(w.WritesMax))
}

// tombstoneMax returns the greatest tombstone floor that the members allow. The caller holds mu.
func (st *state) tombstoneMax() uint64 {
	members := slices.Concat(st.conf.GetVoters(), st.conf.GetLearners(), st.conf.GetVotersOutgoing(),
		st.conf.GetLearnersNext())
	slices.Sort(members)
	if len(slices.Compact(members)) <= 1 {
		return math.MaxUint64
	}
	return st.tombstoneLimit.Load()
}

// edgeOf returns a location that separates a segment's entries at or below an index from later entries. The caller
// holds mu.
func (st *state) edgeOf(s *segment, at uint64) index.Loc {
	for i := range st.tail.entries { // all entries that are not applied are in memory
		if t := &st.tail.entries[i]; t.entry.Index > at && t.loc.Ordinal() == s.ordinal {
			return t.loc - 1<<16 // a location just before that of the first entry above the index
		}
	}
	if s.bytes == 0 {
		return index.MakeLoc(s.ordinal, st.end-8, 0, false)
	}
	// A compaction rewrites this segment into one with the next odd ordinal. Because the location has that ordinal, it
	// is also above all entries of the rewritten segment.
	return index.MakeLoc(s.ordinal|1, index.OffsetMax, 0, false)
}

// expireSnapshots drops the snapshots that were not used within their time to live. The caller holds mu.
func (st *state) expireSnapshots(now time.Time) {
	for id, s := range st.snapshots {
		if s.isOver(now) {
			delete(st.snapshots, id)
			st.closed++
		}
	}
}

// limitSnapshots drops a snapshot if the maximum number of snapshots has been reached. The caller holds mu.
func (st *state) limitSnapshots() {
	if len(st.snapshots) < snapshotsMax {
		return
	}
	var oldest ScanID
	var found *snapshot
	for id, s := range st.snapshots {
		if found == nil || s.readers == 0 && found.readers > 0 ||
			(s.readers == 0) == (found.readers == 0) && s.used.Before(found.used) {
			oldest, found = id, s
		}
	}
	delete(st.snapshots, oldest)
	st.closed++
}

// superseded must be called when the version at a location stops being its record's newest. Each snapshot that sees
// the version then holds its location. If the snapshots together hold too many locations, the snapshot with the most
// locations is closed. The caller holds mu.
func (st *state) superseded(id int64, old index.Loc) {
	places := 0
	var most *snapshot
	for _, s := range st.snapshots {
		s.supersede(id, old)
		if places += len(s.held); most == nil || len(s.held) > len(most.held) {
			most = s
		}
	}
	if places > st.placesMax {
		most.gone, most.held = true, nil
	}
}

// closedSnapshots returns how many snapshots were closed or have expired. The caller holds mu.
func (st *state) closedSnapshots(now time.Time) uint64 {
	closed := st.closed
	for _, s := range st.snapshots {
		if s.isOver(now) {
			closed++
		}
	}
	return closed
}

// useSnapshot calls the function use with an open snapshot while it holds mu, and records that the snapshot was used
// now. It returns ErrCursorExpired if the snapshot no longer exists.
func (st *state) useSnapshot(id ScanID, now time.Time, use func(*snapshot)) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.expireSnapshots(now)
	s := st.snapshots[id]
	if s == nil {
		return ErrCursorExpired
	}
	s.used = now
	use(s)
	return nil
}

// moved updates the snapshots when an applied version moves to a new location. If the version is dropped, the argument
// `to` is 0. The caller holds mu.
func (st *state) moved(id int64, from, to index.Loc, at uint64) {
	for _, s := range st.snapshots {
		s.moved(id, from, to, at)
	}
}

// tailEntry is an entry in memory that is not applied yet or not synced yet.
type tailEntry struct {
	raft  *raftpb.Entry
	entry format.Entry // the decoded entry, which aliases raft.Data
	loc   index.Loc    // location of the entry's frame
}

// tail is the end of the log in memory. It holds consecutive entries, and the field first is the index of the first of
// them. Entries are added at its end and removed from its beginning.
type tail struct {
	first   uint64
	entries []tailEntry
}

// push appends entries. The argument first is the index of the first of them.
func (t *tail) push(first uint64, batch []tailEntry) {
	if len(t.entries) == 0 {
		t.first = first
	}
	t.entries = append(t.entries, batch...)
}

// at returns the entry with the given index, or nil if the entry is not in memory.
func (t *tail) at(at uint64) *tailEntry {
	if at < t.first || at-t.first >= uint64(len(t.entries)) {
		return nil
	}
	return &t.entries[at-t.first]
}

// truncate drops the entries at or above an index.
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
	// The array is still used, and would keep the data of the removed entries in memory.
	clear(t.entries[:n])
	t.keep(t.entries[n:])
	t.first = through + 1
}

// keep stores the remaining entries. If none remains, as in an idle group, the tail keeps no array.
func (t *tail) keep(entries []tailEntry) {
	if t.entries = entries; len(entries) == 0 {
		t.entries = nil
	}
}
