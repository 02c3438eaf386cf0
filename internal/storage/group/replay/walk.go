package replay

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
)

// DamagedID is the id of a record with damage to one of its entries, and the index of that entry.
type DamagedID struct {
	ID     int64
	Index  uint64
	Damage *format.Damage
}

// badRange is a range of bad bytes in a segment, with all that is known about it.
type badRange struct {
	Offset, Bytes int64
	What          string
	doubt         bool          // the range may hold acknowledged data, so it does not end the log, unlike a torn write
	known         *format.Entry // the entry, without attributes and data, if its header is intact
	before, After uint64        // indexes of the whole entries on either side; after is 0 if no entry follows
	commit        uint64        // greatest commit index in the state records before the range
	// truncatedFrom is an index, or 0. If it is not 0, the entries before this range may be void from that index on.
	// The range may have held entries of another leader that truncated the log there, because the entry after the range
	// has a different term.
	truncatedFrom uint64
}

// mayHideTruncation reports whether bad bytes are long enough for an entry and lie where the term changes (it may rise
// or fall). A term of 0 is unknown.
func mayHideTruncation(bytes int64, before, after uint64) bool {
	return bytes >= format.FrameHeaderBytes && before != 0 && after != 0 && after != before
}

// Walk is the result of reading all frames of a segment.
type Walk struct {
	Rows    format.Rows
	Terms   []format.TermRun
	Last    uint64 // index of the last entry by place; first - 1 if there is none
	Entries int64
	State   format.StateRecord
	States  bool  // a state record was seen
	StateAt int64 // offset of the last state record; 0 if there is none
	// StateFirst is the offset of the first state record; 0 if there is none. StateLast is the index of the last
	// entry before the last state record.
	StateFirst int64
	StateLast  uint64
	Term       uint64 // term of the last entry by place
	Synced     int64  // greatest synced offset in any state record
	// SyncedIndex is the synced index in the same state record.
	SyncedIndex uint64
	Confs       []uint64 // indexes of membership changes
	Bad         []badRange
	Zeros       int64 // offset of the zeros at the end of the file; the file's end if there are none
	// Check, if set, is called with each frame before the walk processes it. If it returns false, the frame does not
	// count.
	Check func(*segio.FrameStep) bool
	// If KeepOthers is set, Others collects the whole entries without a row, and Headers the entries with only an
	// intact header.
	Others      []Other
	Headers     []Other
	KeepOthers  bool
	withoutRows bool // Rows remains empty
	open        int  // index in Bad of the first range that no entry follows yet
	// Gapless says that indexes are consecutive, as in a segment that was only appended to: a gap between two indexes
	// then means missing entries.
	Gapless bool
}

// Other is an entry that is not a version of a record.
type Other struct {
	Index  uint64
	Offset int64
}

// Segment reads and checks all frames until the reader ends. It applies the effect of each frame on the log: it drops
// rows and terms of void entries. If rows is false, Segment gathers no rows: the caller has them from a hint.
func Segment(r *segio.FrameReader, first uint64, end int64, rows bool) (*Walk, error) {
	w := New(first, rows)
	return w, w.GoOn(r, first, end)
}

// New returns a walk that has seen no frame yet. Its segment begins with index first.
func New(first uint64, rows bool) *Walk {
	return &Walk{Last: first - 1, withoutRows: !rows}
}

// NewActive returns a walk of a segment that was only appended to.
func NewActive(first uint64) *Walk {
	w := New(first, true)
	w.Gapless = true
	return w
}

// Behind returns a walk of a segment that was only appended to. The walk continues after the part of the segment that
// the hint covers. Its terms are those of the hint.
func Behind(h *format.ActiveHint, first uint64) *Walk {
	return &Walk{
		Gapless: true, Rows: h.Table, Terms: slices.Clone(h.Terms), Last: h.Last,
		Term:    h.Terms[len(h.Terms)-1].Term,
		Entries: int64(h.Last - first + 1), Synced: h.End, SyncedIndex: h.Last,
	}
}

// GoOn does what Segment does, after the frames that the walk has already seen.
func (w *Walk) GoOn(r *segio.FrameReader, first uint64, end int64) error {
	w.Zeros = end
	for r.Next() {
		w.Take(r.Step(), first, end)
	}
	return r.Err()
}

// Take processes one step of a reader for GoOn.
func (w *Walk) Take(step *segio.FrameStep, first uint64, end int64) {
	if w.Check != nil && !w.Check(step) {
		return
	}
	if e := &step.Entry; w.Gapless && e.Index > w.Last+1 && !w.IsOpen() {
		w.Unknown(step.Offset, 0, "entries are missing before it", true)
	}
	switch step.Status {
	case segio.FrameWhole:
		w.whole(first, step)
	case segio.FrameContent:
		e := step.Entry
		b := badRange{
			Offset: step.Offset, Bytes: step.Bytes, What: step.Status.String() + segio.Unreadable(step), doubt: step.Unreadable,
			known: &e, before: w.Last, After: e.Index,
		}
		w.Bad = append(w.Bad, b) // the commit does not matter here, because the place of the range in the log is known
		if e.Kind == format.KindState {
			return
		}
		w.closeRanges(&e)
		w.follow(first, &e)
		if w.KeepOthers {
			w.Headers = append(w.Headers, Other{e.Index, step.Offset})
		}
	case segio.FrameZeros:
		if step.Offset+step.Bytes == end {
			w.Zeros = step.Offset
			return
		}
		w.Unknown(step.Offset, step.Bytes, step.Status.String(), false)
	default:
		w.Unknown(step.Offset, step.Bytes, step.Status.String()+segio.Unreadable(step), step.Unreadable)
	}
}

// EndAt records which bytes are missing from a segment that must have the given number of bytes. It is called after a
// walk to the end of the file.
func (w *Walk) EndAt(fileBytes, bytes int64) {
	if w.Zeros < fileBytes { // a segment that must be complete has no preallocated space at its end
		w.Unknown(w.Zeros, fileBytes-w.Zeros, segio.FrameZeros.String(), false)
	}
	if fileBytes < bytes {
		w.Unknown(fileBytes, bytes-fileBytes, "the file ends before", false)
	}
}

// Whole returns ErrCorrupt unless the segment has exactly the given number of bytes and consists of whole frames.
func (w *Walk) Whole(bytes int64) error {
	switch {
	case len(w.Bad) > 0:
		return fmt.Errorf("%w: %d bytes at offset %d: %s", format.ErrCorrupt, w.Bad[0].Bytes, w.Bad[0].Offset, w.Bad[0].What)
	case w.Zeros < bytes:
		return fmt.Errorf("%w: zeros from offset %d on", format.ErrCorrupt, w.Zeros)
	}
	return nil
}

// IsOpen reports whether there are bad bytes after the last entry.
func (w *Walk) IsOpen() bool { return w.open < len(w.Bad) }

// Unknown records bad bytes that may have held anything.
func (w *Walk) Unknown(offset, bytes int64, what string, doubt bool) {
	w.Bad = append(w.Bad, badRange{Offset: offset, Bytes: bytes, What: what, doubt: doubt, before: w.Last,
		commit: w.State.Commit})
}

func (w *Walk) whole(first uint64, step *segio.FrameStep) {
	e := &step.Entry
	if e.Kind == format.KindState {
		if s, err := format.DecodeStateRecord(e.Data); err == nil {
			w.State.MergeHardState(s)
			if !w.States {
				w.StateFirst = step.Offset
			}
			w.States, w.StateAt, w.StateLast = true, step.Offset, w.Last
			if s.SyncedOffset >= w.Synced {
				w.Synced, w.SyncedIndex = s.SyncedOffset, s.SyncedIndex
			}
		}
		return
	}
	w.closeRanges(e)
	w.follow(first, e)
	w.Entries++
	if w.KeepOthers && !e.Kind.IsVersion() {
		w.Others = append(w.Others, Other{e.Index, step.Offset})
	}
	switch e.Kind {
	case format.KindPut, format.KindDelete:
		if !w.withoutRows {
			w.Rows.Add(first, e, step.Offset, step.Bytes)
		}
	case format.KindRequest:
		w.Rows.AddRequest(e)
	case format.KindConf:
		w.Confs = append(w.Confs, e.Index)
	}
}

// follow drops the entries that e makes void, and records its index and term. Terms never decrease in a log: if an
// entry before e has a greater term, that entry is void, and bad bytes hide the entry that made it void.
func (w *Walk) follow(first uint64, e *format.Entry) {
	if from := w.voidFrom(e); from <= w.Last {
		w.Truncate(first, from)
	}
	w.Last = e.Index
	w.Terms = format.AddTerm(w.Terms, e.Index, e.Term)
}

// voidFrom returns the first index that e shows to be void.
func (w *Walk) voidFrom(e *format.Entry) uint64 {
	from := e.Index
	for n := len(w.Terms); n > 0 && (w.Terms[n-1].FirstIndex >= e.Index || w.Terms[n-1].Term > e.Term); n-- {
		from = min(from, w.Terms[n-1].FirstIndex)
	}
	return from
}

// Truncate makes the entries from the given index on void.
func (w *Walk) Truncate(first, from uint64) {
	w.Rows.Truncate(first, from)
	w.Others, w.Headers = truncateOthers(w.Others, from), truncateOthers(w.Headers, from)
	w.Terms = format.TruncateTerms(w.Terms, from)
}

func truncateOthers(others []Other, from uint64) []Other {
	n := len(others)
	for n > 0 && others[n-1].Index >= from {
		n--
	}
	return others[:n]
}

// Counts reports whether the entry with a whole frame at the given offset counts. The entry is either a version of a
// record, or another entry that was kept.
func (w *Walk) Counts(version bool, offset int64) bool {
	if version {
		return w.Rows.AtOffset(offset) >= 0
	}
	_, found := slices.BinarySearchFunc(w.Others, offset, func(o Other, offset int64) int {
		return cmp.Compare(o.Offset, offset)
	})
	return found
}

// closeRanges records e as the entry that follows the open bad ranges.
func (w *Walk) closeRanges(e *format.Entry) {
	for i := w.open; i < len(w.Bad); i++ {
		b := &w.Bad[i]
		b.After = e.Index
		// If e shows that entries before the range are void, the range held the entries that replaced them.
		if from := w.voidFrom(e); from < e.Index {
			b.before = min(b.before, from-1)
		}
		if b.known == nil && mayHideTruncation(b.Bytes, w.Term, e.Term) {
			b.truncatedFrom = b.commit + 1 // an entry up to the commit before the range cannot become void
		}
	}
	w.Term, w.open = e.Term, len(w.Bad)
}

// Explain converts the bad ranges of a walk to damage. lastIndex is the index of the last entry that was ever written
// before the end of the walked range. hint supplies the ids, and may be nil. A range between two consecutive entries
// lost no entry, unless the range may hide that a new leader truncated the log there; cuts says whether a truncation is
// possible.
func (w *Walk) Explain(group string, m format.ManifestSegment, lastIndex uint64, hint *format.Hint,
	cuts bool) (out []*format.Damage, ids []DamagedID) {
	for _, b := range w.Bad {
		d := &format.Damage{Group: group, File: format.SegmentName(m.Number), Offset: b.Offset, Length: b.Bytes, What: b.What}
		out = append(out, d)
		switch {
		case b.known != nil && (b.known.Kind == format.KindPut || b.known.Kind == format.KindDelete):
			d.IDs, d.IndexFirst, d.IndexLast = []int64{b.known.ID}, b.known.Index, b.known.Index
			ids = append(ids, DamagedID{b.known.ID, b.known.Index, d})
			continue
		case b.known != nil:
			d.IndexFirst, d.IndexLast = b.known.Index, b.known.Index
			continue
		}
		after := b.After
		if after == 0 {
			after = lastIndex + 1
			if mayHideTruncation(b.Bytes, w.Term, math.MaxUint64) { // no term follows, so any term is possible
				b.truncatedFrom = b.commit + 1
			}
		}
		d.IndexFirst, d.IndexLast = b.before+1, after-1
		if after <= b.before {
			// The log was truncated here, so the range may have held any entry up to the last one.
			d.IndexLast = max(b.before, lastIndex)
		}
		if b.truncatedFrom != 0 && cuts && hint == nil {
			d.IndexFirst, d.IndexLast = min(d.IndexFirst, max(b.truncatedFrom, m.FirstIndex)), max(d.IndexLast, b.before)
		}
		if b.After != 0 { // the entry after the range shows where the log ends
			d.IndexLast = min(d.IndexLast, w.mayEnd(lastIndex))
		}
		if hint != nil {
			for i, place := range hint.Places {
				if offset := index.Loc(place).Offset(); offset >= b.Offset && offset < b.Offset+b.Bytes {
					at := hint.FirstIndex + uint64(hint.Indexes[i])
					d.IDs = append(d.IDs, hint.IDs[i])
					ids = append(ids, DamagedID{hint.IDs[i], at, d})
					// A whole but void entry before the range may have a greater index.
					d.IndexFirst, d.IndexLast = min(d.IndexFirst, at), max(d.IndexLast, at)
				}
			}
			slices.Sort(d.IDs)
		}
		d.IDsUnknown = hint == nil && d.IndexFirst <= d.IndexLast
		if d.IndexLast < d.IndexFirst {
			d.IndexFirst, d.IndexLast = 0, 0 // the range held padding or a state record: no entry is lost
		}
	}
	return out, ids
}

// IsBad reports whether a frame at offset is in a bad range.
func (w *Walk) IsBad(offset int64) bool {
	return slices.ContainsFunc(w.Bad, func(b badRange) bool { return offset >= b.Offset && offset < b.Offset+b.Bytes })
}

// mayEnd returns the greatest index that the end of the log may have. A later entry has made any greater index void.
func (w *Walk) mayEnd(lastIndex uint64) uint64 {
	if n := len(w.Bad); n > 0 && w.Bad[n-1].After == 0 {
		return max(w.Last, lastIndex)
	}
	return w.Last
}

// StateMissing reports whether bad bytes may have held a state frame that counts: those below the synced mark, or
// unreadable ones after the last whole state frame.
func (w *Walk) StateMissing(synced int64) bool {
	for _, b := range w.Bad {
		if (b.known == nil || b.known.Kind == format.KindState) && b.Offset+b.Bytes > w.StateAt &&
			(b.Offset < synced || b.doubt) {
			return true
		}
	}
	return w.Zeros < synced
}

// mayReach returns the greatest index of an entry that unreadable bytes at the end may have held; 0 if there are no
// such bytes.
func (w *Walk) mayReach() uint64 {
	n := len(w.Bad)
	if n == 0 || !w.Bad[n-1].doubt || w.Bad[n-1].After != 0 {
		return 0
	}
	return w.Bad[n-1].before + uint64(w.Bad[n-1].Bytes/format.FrameHeaderBytes)
}

// firstHole finds the first bytes at or above the synced mark that a torn write may have left: the log ends there. A
// range that begins below the mark is damage up to the mark. Bytes that cannot be read are not a hole, because a torn
// write leaves the bytes that were there before, which can be read.
func (w *Walk) firstHole(synced int64) (offset int64, found bool) {
	for _, b := range w.Bad {
		if b.Offset+b.Bytes > synced && !b.doubt {
			return max(b.Offset, synced), true
		}
	}
	return 0, false
}
