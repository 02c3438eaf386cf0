package format

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"sheaf.dev/sheaf/internal/storage/index"
)

// Rows holds a segment's puts and deletes, sorted by location. The rows are stored column by column, without
// pointers. Existing rows never change, so later additions do not affect a copy of the struct.
type Rows struct {
	IDs     []int64
	Places  []uint64 // an index.Loc with ordinal 0 for each row
	Indexes []uint32 // index of each row's entry, minus the first index of the segment
	Blobs   []HintBlob
	// LastCommit is the greatest commit time of all entries so far. syncedCommit is the greatest commit time of those
	// entries that are synced.
	LastCommit, syncedCommit int64
	// Requests is the number of entries of KindRequest, which have no row.
	Requests uint32
}

// Hint returns a sealed segment's hint, in which the used flags of all rows are set.
func (r *Rows) Hint(m ManifestSegment, terms []TermRun) *Hint {
	n := len(r.IDs)
	type key struct {
		hash  uint64
		place uint64
		row   int32
	}
	keys := make([]key, n)
	for i, id := range r.IDs {
		keys[i] = key{index.Hash(id), r.Places[i], int32(i)}
	}
	slices.SortFunc(keys, func(a, b key) int {
		if c := cmp.Compare(a.hash, b.hash); c != 0 {
			return c
		}
		return cmp.Compare(a.place, b.place)
	})
	h := &Hint{
		Segment: m.ID, FirstIndex: m.FirstIndex, LastIndex: m.LastIndex, LastCommit: r.LastCommit, Bytes: m.Bytes,
		Requests: r.Requests,
		IDs:      make([]int64, n), Places: make([]uint64, n), Indexes: make([]uint32, n), Used: make([]uint64, (n+63)/64),
		Terms: terms, Blobs: r.Blobs,
	}
	for i, k := range keys {
		h.IDs[i], h.Places[i], h.Indexes[i] = r.IDs[k.row], r.Places[k.row], r.Indexes[k.row]
	}
	for i := range h.Used {
		h.Used[i] = math.MaxUint64
	}
	if n%64 != 0 {
		h.Used[n/64] = 1<<(n%64) - 1
	}
	return h
}

// IsEmpty reports whether the segment holds nothing that may still be needed.
func (r *Rows) IsEmpty() bool { return len(r.IDs) == 0 && r.Requests == 0 }

// AddRequest counts an entry of KindRequest, and takes its commit time into account.
func (r *Rows) AddRequest(e *Entry) {
	r.Requests++
	r.LastCommit = max(r.LastCommit, e.CommitTime)
}

// Add appends a row for the put or delete whose frame is at the given offset. The argument first is the segment's
// first index.
func (r *Rows) Add(first uint64, e *Entry, offset, length int64) {
	r.IDs = append(r.IDs, e.ID)
	r.Places = append(r.Places, uint64(index.MakeLoc(0, offset, length, e.Kind == KindDelete)))
	r.Indexes = append(r.Indexes, uint32(e.Index-first))
	r.LastCommit = max(r.LastCommit, e.CommitTime)
	if ref, _ := e.BlobRef(); ref != nil {
		r.Blobs = append(r.Blobs, HintBlob{Index: e.Index, Ref: *ref})
	}
}

// Truncate drops the rows of entries at or above an index. The columns keep their memory, because readers may still
// use the rows that they have seen.
func (r *Rows) Truncate(first, from uint64) {
	n := len(r.IDs)
	for n > 0 && first+uint64(r.Indexes[n-1]) >= from {
		n--
	}
	b := len(r.Blobs)
	for b > 0 && r.Blobs[b-1].Index >= from {
		b--
	}
	// The full slice expressions make the next append copy the columns, so that it does not overwrite rows that a reader
	// may still use.
	r.IDs, r.Places, r.Indexes, r.Blobs = r.IDs[:n:n], r.Places[:n:n], r.Indexes[:n:n], r.Blobs[:b:b]
}

// Synced records that the entries of all rows so far, and all entries of KindRequest so far, are on disk.
func (r *Rows) Synced() { r.syncedCommit = r.LastCommit }

// TruncateUnsynced drops the rows of frames at or after an offset. Everything before that offset was synced.
func (r *Rows) TruncateUnsynced(first uint64, offset int64) {
	r.LastCommit = r.syncedCommit
	n := sort.Search(len(r.Places), func(i int) bool { return index.Loc(r.Places[i]).Offset() >= offset })
	if n < len(r.IDs) {
		r.Truncate(first, first+uint64(r.Indexes[n]))
	}
}

// MemoryBytes returns how many bytes of memory the columns take.
func (r *Rows) MemoryBytes() int64 {
	return 8*int64(cap(r.IDs)+cap(r.Places)) + 4*int64(cap(r.Indexes)) + 48*int64(cap(r.Blobs))
}

// AtOrBelow returns the last row whose index is at or below the given index, or -1 if there is none.
func (r *Rows) AtOrBelow(first, at uint64) int {
	if at < first {
		return -1
	}
	return sort.Search(len(r.Indexes), func(i int) bool { return first+uint64(r.Indexes[i]) > at }) - 1
}

// AtOffset returns the row whose frame is at an offset, or -1 if there is none.
func (r *Rows) AtOffset(offset int64) int {
	i := sort.Search(len(r.Places), func(i int) bool { return index.Loc(r.Places[i]).Offset() >= offset })
	if i == len(r.Places) || index.Loc(r.Places[i]).Offset() != offset {
		return -1
	}
	return i
}
