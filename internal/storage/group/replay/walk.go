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

// DamagedID is a record whose entry with an index was hit.
type DamagedID struct {
	ID     int64
	Index  uint64
	Damage *format.Damage
}

// badRange is a range of bad bytes in a segment with what is known about it.
type badRange struct {
	Offset, Bytes int64
	What          string
	doubt         bool          // what is acknowledged may be there: unlike a torn write, it is no end of the log
	known         *format.Entry // the header is whole: without attributes and data
	before, After uint64        // indexes of the whole entries around it; after 0: none follows
	commit        uint64        // of the state records in front of it
	// cutFrom, where it is not 0: another leader's entries may have been here, which made void what stands before from
	// this index on, because the term of what follows is another one.
	cutFrom uint64
}

// mayHideCut tells whether bad bytes have room for an entry and stand where the term changes, to a greater or a lower
// one. 0: not known.
func mayHideCut(bytes int64, before, after uint64) bool {
	return bytes >= format.FrameHeaderBytes && before != 0 && after != 0 && after != before
}

// Walk is what reading all frames of a segment gives.
type Walk struct {
	Rows    format.Rows
	Terms   []format.TermRun
	Last    uint64 // index of the last entry by place; first - 1: none
	Entries int64
	State   format.StateRecord
	States  bool  // there was a state record
	StateAt int64 // offset of the last one; 0: none
	// StateFirst is the offset of the first one, 0: none; StateLast the index of the last entry in front of the last
	// one.
	StateFirst int64
	StateLast  uint64
	Term       uint64 // of the last entry by place
	Synced     int64  // greatest synced offset of a state record
	// SyncedIndex is the index of that record.
	SyncedIndex uint64
	Confs       []uint64 // indexes of membership changes
	Bad         []badRange
	Zeros       int64 // offset of the zeros at the end; the end where there are none
	// Check, where it is set, sees each frame first; false: it does not count.
	Check func(*segio.FrameStep) bool
	// Where KeepOthers is set, Others are the whole entries without a row, and Headers those of which only the header
	// is whole.
	Others      []Other
	Headers     []Other
	KeepOthers  bool
	withoutRows bool // rows stays empty
	open        int  // bad ranges from it on have no entry behind them yet
	// indexes follow one another, as in a segment that was only appended to: what is between two is missing
	Gapless bool
}

// Other is an entry that is no version of a record.
type Other struct {
	Index  uint64
	Offset int64
}

// Segment reads frames until the reader ends, and checks them all. The effect on the log is followed: rows and terms
// of void entries are dropped. Without rows, where a hint has them, none are gathered.
func Segment(r *segio.FrameReader, first uint64, end int64, rows bool) (*Walk, error) {
	w := New(first, rows)
	return w, w.GoOn(r, first, end)
}

// New is a walk of a segment that begins with index first, before its first frame.
func New(first uint64, rows bool) *Walk {
	return &Walk{Last: first - 1, withoutRows: !rows}
}

// NewActive is a walk of a segment that was only appended to.
func NewActive(first uint64) *Walk {
	w := New(first, true)
	w.Gapless = true
	return w
}

// Behind is NewActive behind what a hint tells of, which has terms.
func Behind(h *format.ActiveHint, first uint64) *Walk {
	return &Walk{
		Gapless: true, Rows: *h.Table.Snapshot(), Terms: slices.Clone(h.Terms), Last: h.Last,
		Term:    h.Terms[len(h.Terms)-1].Term,
		Entries: int64(h.Last - first + 1), Synced: h.End, SyncedIndex: h.Last,
	}
}

// GoOn is Segment of the frames behind those that the walk has seen.
func (w *Walk) GoOn(r *segio.FrameReader, first uint64, end int64) error {
	w.Zeros = end
	for r.Next() {
		w.Take(r.Step(), first, end)
	}
	return r.Err()
}

// Take is one step of GoOn.
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
		w.Bad = append(w.Bad, b) // commit does not matter: where it stands is known
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

// EndAt notes what a segment lacks that is to have so many bytes, after a walk to the end of its file.
func (w *Walk) EndAt(fileBytes, bytes int64) {
	if w.Zeros < fileBytes { // where all is to be there, there is no room at the end
		w.Unknown(w.Zeros, fileBytes-w.Zeros, segio.FrameZeros.String(), false)
	}
	if fileBytes < bytes {
		w.Unknown(fileBytes, bytes-fileBytes, "the file ends before", false)
	}
}

// Whole is ErrCorrupt for a segment of which not all of so many bytes are whole frames.
func (w *Walk) Whole(bytes int64) error {
	switch {
	case len(w.Bad) > 0:
		return fmt.Errorf("%w: %d bytes at offset %d: %s", format.ErrCorrupt, w.Bad[0].Bytes, w.Bad[0].Offset, w.Bad[0].What)
	case w.Zeros < bytes:
		return fmt.Errorf("%w: zeros from offset %d on", format.ErrCorrupt, w.Zeros)
	}
	return nil
}

// IsOpen tells whether bad bytes stand behind the last entry.
func (w *Walk) IsOpen() bool { return w.open < len(w.Bad) }

// Unknown notes bad bytes that may have been anything.
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

// follow makes void what an entry makes void, and notes its index and term. In a log terms do not fall: where a greater
// term stands before, bad bytes have hidden what made that void.
func (w *Walk) follow(first uint64, e *format.Entry) {
	if from := w.voidFrom(e); from <= w.Last {
		w.Cut(first, from)
	}
	w.Last = e.Index
	w.Terms = format.AddTerm(w.Terms, e.Index, e.Term)
}

// voidFrom is the first index that an entry shows to be void.
func (w *Walk) voidFrom(e *format.Entry) uint64 {
	from := e.Index
	for n := len(w.Terms); n > 0 && (w.Terms[n-1].FirstIndex >= e.Index || w.Terms[n-1].Term > e.Term); n-- {
		from = min(from, w.Terms[n-1].FirstIndex)
	}
	return from
}

// Cut makes void what has an index from one on.
func (w *Walk) Cut(first, from uint64) {
	w.Rows.Cut(first, from)
	w.Others, w.Headers = cutOthers(w.Others, from), cutOthers(w.Headers, from)
	w.Terms = format.CutTerms(w.Terms, from)
}

func cutOthers(others []Other, from uint64) []Other {
	n := len(others)
	for n > 0 && others[n-1].Index >= from {
		n--
	}
	return others[:n]
}

// Counts tells whether the whole frame of an entry at an offset does: of a version, or of another one, which was kept.
func (w *Walk) Counts(version bool, offset int64) bool {
	if version {
		return w.Rows.AtOffset(offset) >= 0
	}
	_, found := slices.BinarySearchFunc(w.Others, offset, func(o Other, offset int64) int {
		return cmp.Compare(o.Offset, offset)
	})
	return found
}

// closeRanges notes the entry that follows bad ranges.
func (w *Walk) closeRanges(e *format.Entry) {
	for i := w.open; i < len(w.Bad); i++ {
		b := &w.Bad[i]
		b.After = e.Index
		if from := w.voidFrom(e); from < e.Index { // what made that void, and took its place, was here
			b.before = min(b.before, from-1)
		}
		if b.known == nil && mayHideCut(b.Bytes, w.Term, e.Term) {
			b.cutFrom = b.commit + 1 // no state record in front of it allows more
		}
	}
	w.Term, w.open = e.Term, len(w.Bad)
}

// Explain says what the bad ranges of a walk mean. lastIndex is that of the last entry ever before the end of the range
// that was walked; hint, which may be nil, knows the ids. A range between two entries that follow one another lost
// none, unless it may hide that a new leader cut the log there: cuts says whether there can have been one.
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
			if mayHideCut(b.Bytes, w.Term, math.MaxUint64) { // any term may follow
				b.cutFrom = b.commit + 1
			}
		}
		d.IndexFirst, d.IndexLast = b.before+1, after-1
		if after <= b.before {
			d.IndexLast = max(b.before, lastIndex) // the log was cut here: anything may have been between
		}
		if b.cutFrom != 0 && cuts && hint == nil {
			d.IndexFirst, d.IndexLast = min(d.IndexFirst, max(b.cutFrom, m.FirstIndex)), max(d.IndexLast, b.before)
		}
		if b.After != 0 { // what stands behind says where the log ends
			d.IndexLast = min(d.IndexLast, w.mayEnd(lastIndex))
		}
		if hint != nil {
			for i, place := range hint.Places {
				if offset := index.Loc(place).Offset(); offset >= b.Offset && offset < b.Offset+b.Bytes {
					at := hint.FirstIndex + uint64(hint.Indexes[i])
					d.IDs = append(d.IDs, hint.IDs[i])
					ids = append(ids, DamagedID{hint.IDs[i], at, d})
					d.IndexFirst, d.IndexLast = min(d.IndexFirst, at), max(d.IndexLast, at) // a whole void one may be in front
				}
			}
			slices.Sort(d.IDs)
		}
		d.IDsUnknown = hint == nil && d.IndexFirst <= d.IndexLast
		if d.IndexLast < d.IndexFirst {
			d.IndexFirst, d.IndexLast = 0, 0 // padding or a state record: no entry is lost
		}
	}
	return out, ids
}

// IsBad tells whether a frame at offset is in a bad range.
func (w *Walk) IsBad(offset int64) bool {
	for _, b := range w.Bad {
		if offset >= b.Offset && offset < b.Offset+b.Bytes {
			return true
		}
	}
	return false
}

// mayEnd is the greatest index that the log may have there: another one was made void by what stands behind it.
func (w *Walk) mayEnd(lastIndex uint64) uint64 {
	if n := len(w.Bad); n > 0 && w.Bad[n-1].After == 0 {
		return max(w.Last, lastIndex)
	}
	return w.Last
}

// LostState tells whether bytes are bad in which a state frame may have been that counts: below the synced mark, or
// such that cannot be read, behind the last one that is whole.
func (w *Walk) LostState(synced int64) bool {
	for _, b := range w.Bad {
		if (b.known == nil || b.known.Kind == format.KindState) && b.Offset+b.Bytes > w.StateAt &&
			(b.Offset < synced || b.doubt) {
			return true
		}
	}
	return w.Zeros < synced
}

// mayReach is the greatest index that an entry may have had in bytes at the end that cannot be read; 0: there are none.
func (w *Walk) mayReach() uint64 {
	n := len(w.Bad)
	if n == 0 || !w.Bad[n-1].doubt || w.Bad[n-1].After != 0 {
		return 0
	}
	return w.Bad[n-1].before + uint64(w.Bad[n-1].Bytes/format.FrameHeaderBytes)
}

// firstHole finds the first bytes at or above the synced mark that a torn write may have left: the log ends there. What
// begins below the mark is damage up to the mark. Bytes that cannot be read are no hole: a torn write reads as what was
// there before.
func (w *Walk) firstHole(synced int64) (offset int64, found bool) {
	for _, b := range w.Bad {
		if b.Offset+b.Bytes > synced && !b.doubt {
			return max(b.Offset, synced), true
		}
	}
	return 0, false
}
