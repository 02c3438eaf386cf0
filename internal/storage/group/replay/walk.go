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

// DamagedID is the index of a damaged entry, and the id of its record.
type DamagedID struct {
	ID     int64
	Index  uint64
	Damage *format.Damage
}

// badRange is a range of bad bytes in a segment, with all known facts about it.
type badRange struct {
	Offset, Bytes int64
	What          string
	// doubt means that the range may hold acknowledged data. Such a range does not end the log, whereas a torn write
	// does.
	doubt         bool
	known         *format.Entry // the entry without attributes and data, if its header is valid
	before, After uint64        // indexes of the whole entries before and after the range; After is 0 if no entry follows
	commit        uint64        // greatest commit index in the state records before the range
	// truncatedFrom is not 0 if the range may hold entries with which another leader truncated the log, because the entry
	// after the range has a different term. In that case, entries before the range may be void if their index is at or
	// above truncatedFrom.
	truncatedFrom uint64
}

// mayHideTruncation reports whether bad bytes may hide entries of a leader that truncated the log. They may if they
// are long enough for an entry and the term before them differs from the term after them. A term of 0 means that the
// term is not known.
func mayHideTruncation(bytes int64, before, after uint64) bool {
	return bytes >= format.FrameHeaderBytes && before != 0 && after != 0 && after != before
}

// Walk is the result of reading all frames of a segment.
type Walk struct {
	Rows    format.Rows
	Terms   []format.TermRun
	Last    uint64 // index of the last entry in file order, or FirstIndex - 1 if there is none
	Entries int64
	State   format.StateRecord
	States  bool  // a state record was found
	StateAt int64 // offset of the last state record, or 0 if there is none
	// StateFirst is the offset of the first state record; 0 if there is none. StateLast is the index of the last
	// entry before the last state record.
	StateFirst int64
	StateLast  uint64
	Term       uint64 // term of the last entry in file order
	Synced     int64  // greatest synced offset in any of the state records
	// SyncedIndex is the synced index in the same state record.
	SyncedIndex uint64
	Confs       []uint64 // indexes of membership changes
	Bad         []badRange
	Zeros       int64 // offset of the zeros at the end of the file, or the file's end if there are none
	// Check, if not nil, is called with each frame before the walk processes the frame. If Check returns false, the
	// walk ignores the frame.
	Check func(*segio.FrameStep) bool
	// If KeepOthers is set, Others collects the whole entries without a row, and Headers collects the entries that have
	// only a valid header.
	Others      []Other
	Headers     []Other
	KeepOthers  bool
	withoutRows bool // the walk does not fill Rows
	open        int  // index in Bad of the first range that is not followed by an entry yet
	// Gapless means that indexes are consecutive, as in a segment to which entries were only appended. A gap between
	// two indexes then means that entries are missing.
	Gapless bool
}

// Other is an entry that is not a record's version.
type Other struct {
	Index  uint64
	Offset int64
}

// Segment reads and checks all frames that the reader returns. It applies each frame to the result. If a frame makes
// entries void, their rows and terms are dropped. If rows is false, Segment collects no rows, because the caller has
// them from a hint.
func Segment(r *segio.FrameReader, first uint64, end int64, rows bool) (*Walk, error) {
	w := New(first, rows)
	return w, w.GoOn(r, first, end)
}

// New returns a walk that has not seen any frame. The argument first is the segment's first index.
func New(first uint64, rows bool) *Walk {
	return &Walk{Last: first - 1, withoutRows: !rows}
}

// NewActive returns a walk of a segment to which entries were only appended.
func NewActive(first uint64) *Walk {
	w := New(first, true)
	w.Gapless = true
	return w
}

// Behind returns a walk of an active segment that continues after the part that the hint covers. The result has the
// rows and terms of the hint.
func Behind(h *format.ActiveHint, first uint64) *Walk {
	return &Walk{
		Gapless: true, Rows: h.Table, Terms: slices.Clone(h.Terms), Last: h.Last,
		Term:    h.Terms[len(h.Terms)-1].Term,
		Entries: int64(h.Last - first + 1), Synced: h.End, SyncedIndex: h.Last,
	}
}

// GoOn continues a walk. It processes the reader's frames as Segment does.
func (w *Walk) GoOn(r *segio.FrameReader, first uint64, end int64) error {
	w.Zeros = end
	for r.Next() {
		w.Take(r.Step(), first, end)
	}
	return r.Err()
}

// Take processes one step of a reader. GoOn calls Take for each step.
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
		w.Bad = append(w.Bad, b) // b.commit is not needed, because the frame's header is valid and shows what was hit
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

// EndAt records which bytes are missing from a segment that must have the given number of bytes. It must be called
// after a walk to the end of the file.
func (w *Walk) EndAt(fileBytes, bytes int64) {
	if w.Zeros < fileBytes { // a complete segment has no preallocated space, so zeros at its end are bad
		w.Unknown(w.Zeros, fileBytes-w.Zeros, segio.FrameZeros.String(), false)
	}
	if fileBytes < bytes {
		w.Unknown(fileBytes, bytes-fileBytes, "the file ends before", false)
	}
}

// Whole returns ErrCorrupt unless the segment has exactly the given size and consists only of whole frames.
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

// Unknown records a range of bad bytes whose former content is unknown.
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

// follow drops the entries that e makes void, and records the index and term of e. Because terms never decrease in a
// log, an entry before e with a greater term is void, even if bad bytes hide the entry that made it void.
func (w *Walk) follow(first uint64, e *format.Entry) {
	if from := w.voidFrom(e); from <= w.Last {
		w.Truncate(first, from)
	}
	w.Last = e.Index
	w.Terms = format.AddTerm(w.Terms, e.Index, e.Term)
}

// voidFrom returns the lowest index that e makes void.
func (w *Walk) voidFrom(e *format.Entry) uint64 {
	from := e.Index
	for n := len(w.Terms); n > 0 && (w.Terms[n-1].FirstIndex >= e.Index || w.Terms[n-1].Term > e.Term); n-- {
		from = min(from, w.Terms[n-1].FirstIndex)
	}
	return from
}

// Truncate makes void all entries whose indexes are at or above the argument from.
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

// Counts reports whether the whole entry at the given offset is valid. The argument version says whether the entry is a
// record's version. Other entries must have been kept in Others.
func (w *Walk) Counts(version bool, offset int64) bool {
	if version {
		return w.Rows.AtOffset(offset) >= 0
	}
	_, found := slices.BinarySearchFunc(w.Others, offset, func(o Other, offset int64) int {
		return cmp.Compare(o.Offset, offset)
	})
	return found
}

// closeRanges completes the bad ranges between the previous entry and e. It records that e is the entry after them.
func (w *Walk) closeRanges(e *format.Entry) {
	for i := w.open; i < len(w.Bad); i++ {
		b := &w.Bad[i]
		b.After = e.Index
		// The entry e may show that entries before the range are void. The entries that replaced them must then have been in
		// the range.
		if from := w.voidFrom(e); from < e.Index {
			b.before = min(b.before, from-1)
		}
		if b.known == nil && mayHideTruncation(b.Bytes, w.Term, e.Term) {
			// Committed entries are never void, so the truncation was above the commit index before the range.
			b.truncatedFrom = b.commit + 1
		}
	}
	w.Term, w.open = e.Term, len(w.Bad)
}

// Explain converts the bad ranges of a walk to damage. The argument lastIndex is the last index that was ever written
// before the end of the walked range. The hint supplies the ids, and may be nil. No entry is lost in a range between
// two entries with consecutive indexes, unless a new leader may have truncated the log in that range. The argument
// cuts says whether such truncations are possible.
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
			// No entry follows the range, so the range may hold entries with any later term.
			if mayHideTruncation(b.Bytes, w.Term, math.MaxUint64) {
				b.truncatedFrom = b.commit + 1
			}
		}
		d.IndexFirst, d.IndexLast = b.before+1, after-1
		if after <= b.before {
			// A leader has truncated the log in this range, so the range may have held any entry up to the last one.
			d.IndexLast = max(b.before, lastIndex)
		}
		if b.truncatedFrom != 0 && cuts && hint == nil {
			d.IndexFirst, d.IndexLast = min(d.IndexFirst, max(b.truncatedFrom, m.FirstIndex)), max(d.IndexLast, b.before)
		}
		// An entry follows the range. It limits the indexes of valid entries, because it made greater ones void.
		if b.After != 0 {
			d.IndexLast = min(d.IndexLast, w.mayEnd(lastIndex))
		}
		if hint != nil {
			for i, place := range hint.Places {
				if offset := index.Loc(place).Offset(); offset >= b.Offset && offset < b.Offset+b.Bytes {
					at := hint.FirstIndex + uint64(hint.Indexes[i])
					d.IDs = append(d.IDs, hint.IDs[i])
					ids = append(ids, DamagedID{hint.IDs[i], at, d})
					// This index may be outside the range of indexes found so far, because an entry before the bad
					// bytes may be whole but void.
					d.IndexFirst, d.IndexLast = min(d.IndexFirst, at), max(d.IndexLast, at)
				}
			}
			slices.Sort(d.IDs)
		}
		d.IDsUnknown = hint == nil && d.IndexFirst <= d.IndexLast
		if d.IndexLast < d.IndexFirst {
			d.IndexFirst, d.IndexLast = 0, 0 // no entry is lost, because the range held padding or a state record
		}
	}
	return out, ids
}

// IsBad reports whether an offset is in a bad range.
func (w *Walk) IsBad(offset int64) bool {
	return slices.ContainsFunc(w.Bad, func(b badRange) bool { return offset >= b.Offset && offset < b.Offset+b.Bytes })
}

// mayEnd returns the greatest index that the log's last entry can have. Any entry with a greater index is void,
// because a later entry has truncated the log.
func (w *Walk) mayEnd(lastIndex uint64) uint64 {
	if n := len(w.Bad); n > 0 && w.Bad[n-1].After == 0 {
		return max(w.Last, lastIndex)
	}
	return w.Last
}

// StateMissing reports whether bad bytes may have held a valid state frame. Only bytes after the last whole state
// frame count, and only if they are below the synced mark or unreadable.
func (w *Walk) StateMissing(synced int64) bool {
	for _, b := range w.Bad {
		if (b.known == nil || b.known.Kind == format.KindState) && b.Offset+b.Bytes > w.StateAt &&
			(b.Offset < synced || b.doubt) {
			return true
		}
	}
	return w.Zeros < synced
}

// mayReach returns the greatest index that an entry in unreadable bytes at the end may have had. It returns 0 if
// there are no such bytes.
func (w *Walk) mayReach() uint64 {
	n := len(w.Bad)
	if n == 0 || !w.Bad[n-1].doubt || w.Bad[n-1].After != 0 {
		return 0
	}
	return w.Bad[n-1].before + uint64(w.Bad[n-1].Bytes/format.FrameHeaderBytes)
}

// firstHole returns the offset at which a torn write ends the log. This is where the first bad bytes begin, or the
// synced mark if they begin below it, because the part below the mark is damage. Unreadable bytes do not count as a
// hole, because a torn write leaves readable bytes.
func (w *Walk) firstHole(synced int64) (offset int64, found bool) {
	for _, b := range w.Bad {
		if b.Offset+b.Bytes > synced && !b.doubt {
			return max(b.Offset, synced), true
		}
	}
	return 0, false
}
