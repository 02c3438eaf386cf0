package group

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"sheaf.dev/sheaf/internal/index"
)

// lostRange is a range of bad bytes in a segment with what is known about it.
type lostRange struct {
	offset, bytes int64
	what          string
	doubt         bool   // what is acknowledged may be there: unlike a torn write, it is no end of the log
	known         *Entry // the header is whole: without attributes and data
	before, after uint64 // indexes of the whole entries around it; after 0: none follows
	commit        uint64 // of the state records in front of it
	// cutFrom, where it is not 0: another leader's entries may have been here, which made void what stands before from this index
	// on, because the term of what follows is another one.
	cutFrom uint64
}

// mayHideCut tells whether bad bytes have room for an entry and stand where the term changes, to a greater or a lower one. 0: not known.
func mayHideCut(bytes int64, before, after uint64) bool {
	return bytes >= FrameHeaderBytes && before != 0 && after != 0 && after != before
}

// segmentWalk is what reading all frames of a segment gives.
type segmentWalk struct {
	rows    rowTable
	terms   []TermRun
	last    uint64 // index of the last entry by place; first - 1: none
	entries int64
	state   StateRecord
	states  bool  // there was a state record
	stateAt int64 // offset of the last one; 0: none
	// stateFirst is the offset of the first one, 0: none; stateLast the index of the last entry in front of the last one.
	stateFirst int64
	stateLast  uint64
	term       uint64 // of the last entry by place
	synced     int64  // greatest synced offset of a state record
	// syncedIndex is the index of that record.
	syncedIndex uint64
	confs       []uint64 // indexes of membership changes
	bad         []lostRange
	zeros       int64 // offset of the zeros at the end; the end where there are none
	withoutRows bool  // rows stays empty
	gapless     bool  // indexes follow one another, as in a segment that was only appended to: what is between two is missing
}

// walkSegment reads frames until the reader ends, and checks them all. The effect on the log is followed: rows and terms
// of void entries are dropped. Without rows, where a hint has them, none are gathered.
func walkSegment(r *FrameReader, first uint64, end int64, rows bool) (*segmentWalk, error) {
	w := newWalk(first, rows)
	return w, w.goOn(r, first, end)
}

func newWalk(first uint64, rows bool) *segmentWalk {
	return &segmentWalk{last: first - 1, withoutRows: !rows}
}

// newActiveWalk is a walk of a segment that was only appended to.
func newActiveWalk(first uint64) *segmentWalk {
	w := newWalk(first, true)
	w.gapless = true
	return w
}

// goOn is walkSegment of the frames behind those that the walk has seen.
func (w *segmentWalk) goOn(r *FrameReader, first uint64, end int64) error {
	w.zeros = end
	open := 0 // bad ranges whose after is not known yet
	for r.Next() {
		step := r.Step()
		if e := &step.Entry; w.gapless && e.Index > w.last+1 && open == len(w.bad) {
			w.unknown(step.Offset, 0, "entries are missing", true)
		}
		switch step.Status {
		case FrameWhole:
			w.whole(first, step, open)
			if step.Entry.Kind != KindState {
				open = len(w.bad)
			}
		case FrameContent:
			e := step.Entry
			b := lostRange{
				offset: step.Offset, bytes: step.Bytes, what: step.Status.String() + unreadable(step), doubt: step.Unreadable, known: &e, before: w.last, after: e.Index,
			}
			w.bad = append(w.bad, b) // commit does not matter: where it stands is known
			if e.Kind != KindState {
				w.closeRanges(&e, open)
				open = len(w.bad)
				w.follow(first, &e)
			}
		case FrameZeros:
			if step.Offset+step.Bytes == end {
				w.zeros = step.Offset
				break
			}
			w.unknown(step.Offset, step.Bytes, step.Status.String(), false)
		default:
			w.unknown(step.Offset, step.Bytes, step.Status.String()+unreadable(step), step.Unreadable)
		}
	}
	return r.Err()
}

// unknown notes bad bytes that may have been anything.
func (w *segmentWalk) unknown(offset, bytes int64, what string, doubt bool) {
	w.bad = append(w.bad, lostRange{offset: offset, bytes: bytes, what: what, doubt: doubt, before: w.last, commit: w.state.Commit})
}

func (w *segmentWalk) whole(first uint64, step *FrameStep, open int) {
	e := &step.Entry
	if e.Kind == KindState {
		if s, err := DecodeStateRecord(e.Data); err == nil {
			w.state.MergeHardState(s)
			if !w.states {
				w.stateFirst = step.Offset
			}
			w.states, w.stateAt, w.stateLast = true, step.Offset, w.last
			if s.SyncedOffset >= w.synced {
				w.synced, w.syncedIndex = s.SyncedOffset, s.SyncedIndex
			}
		}
		return
	}
	w.closeRanges(e, open)
	w.follow(first, e)
	w.entries++
	switch e.Kind {
	case KindPut, KindDelete:
		if !w.withoutRows {
			w.rows.add(first, e, step.Offset, step.Bytes)
		}
	case KindRequest:
		w.rows.addRequest(e)
	case KindConf:
		w.confs = append(w.confs, e.Index)
	}
}

// follow makes void what an entry makes void, and notes its index and term. In a log terms do not fall: where a greater term stands
// before, bad bytes have hidden what made that void.
func (w *segmentWalk) follow(first uint64, e *Entry) {
	from, n := e.Index, len(w.terms)
	for ; n > 0 && (w.terms[n-1].FirstIndex >= e.Index || w.terms[n-1].Term > e.Term); n-- {
		from = min(from, w.terms[n-1].FirstIndex)
	}
	if from <= w.last {
		w.rows.cut(first, from)
		w.terms = w.terms[:n]
	}
	w.last = e.Index
	if n == 0 || w.terms[n-1].Term < e.Term {
		w.terms = append(w.terms, TermRun{FirstIndex: e.Index, Term: e.Term})
	}
}

// closeRanges notes the entry that follows bad ranges.
func (w *segmentWalk) closeRanges(e *Entry, open int) {
	for i := open; i < len(w.bad); i++ {
		b := &w.bad[i]
		b.after = e.Index
		if b.known == nil && mayHideCut(b.bytes, w.term, e.Term) {
			b.cutFrom = b.commit + 1 // no state record in front of it allows more
		}
	}
	w.term = e.Term
}

// damages says what the bad ranges of a walk mean. lastIndex is that of the last entry ever before the end of the range
// that was walked; hint, which may be nil, knows the ids. A range between two entries that follow one another lost none, unless
// it may hide that a new leader cut the log there: cuts says whether there can have been one.
func (w *segmentWalk) damages(group string, m ManifestSegment, lastIndex uint64, hint *Hint, cuts bool) (out []*Damage, ids []damagedID) {
	for _, b := range w.bad {
		d := &Damage{Group: group, File: SegmentName(m.Number), Offset: b.offset, Length: b.bytes, What: b.what}
		out = append(out, d)
		switch {
		case b.known != nil && (b.known.Kind == KindPut || b.known.Kind == KindDelete):
			d.IDs, d.IndexFirst, d.IndexLast = []int64{b.known.ID}, b.known.Index, b.known.Index
			ids = append(ids, damagedID{b.known.ID, b.known.Index, d})
			continue
		case b.known != nil:
			d.IndexFirst, d.IndexLast = b.known.Index, b.known.Index
			continue
		}
		after := b.after
		if after == 0 {
			after = lastIndex + 1
			if mayHideCut(b.bytes, w.term, math.MaxUint64) { // any term may follow
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
		if b.after != 0 { // what stands behind says where the log ends
			d.IndexLast = min(d.IndexLast, w.end(lastIndex))
		}
		if d.IndexLast < d.IndexFirst {
			d.IndexFirst, d.IndexLast = 0, 0 // padding or a state record: no entry is lost
			continue
		}
		if hint == nil {
			d.IDsUnknown = true
			continue
		}
		for i, place := range hint.Places {
			if at := index.Loc(place).Offset(); at >= b.offset && at < b.offset+b.bytes {
				d.IDs = append(d.IDs, hint.IDs[i])
				ids = append(ids, damagedID{hint.IDs[i], hint.FirstIndex + uint64(hint.Indexes[i]), d})
			}
		}
		slices.Sort(d.IDs)
	}
	return out, ids
}

// isBad tells whether a frame at offset is in a bad range.
func (w *segmentWalk) isBad(offset int64) bool {
	for _, b := range w.bad {
		if offset >= b.offset && offset < b.offset+b.bytes {
			return true
		}
	}
	return false
}

// end is the greatest index that the log may have there: another one was made void by what stands behind it.
func (w *segmentWalk) end(lastIndex uint64) uint64 {
	if n := len(w.bad); n > 0 && w.bad[n-1].after == 0 {
		return max(w.last, lastIndex)
	}
	return w.last
}

// lostState tells whether bytes are bad in which a state frame may have been that counts: below the synced mark, or such that cannot be
// read, behind the last one that is whole.
func (w *segmentWalk) lostState(synced int64) bool {
	for _, b := range w.bad {
		if (b.known == nil || b.known.Kind == KindState) && b.offset+b.bytes > w.stateAt && (b.offset < synced || b.doubt) {
			return true
		}
	}
	return w.zeros < synced
}

// recovered is what recovery of the last segment found.
type recovered struct {
	*segmentWalk
	end      int64 // the log goes on there
	voteLost bool  // see segmentWalk.lostState
	cut      bool  // a torn tail begins at end: it must be removed
	cutBytes int64
	reach    uint64 // no entry that counts has a greater index: whole ones behind bad bytes say so
	damages  []*Damage
	ids      []damagedID
}

// recoverActive is step 5 of the recovery in docs/format.md, but for the cut itself. size is where the data of the
// file ends; walk reads the segment up to an offset.
func (l *Log) recoverActive(s *segment, size int64, mark Mark, walk func(through int64) (*segmentWalk, error)) (*recovered, error) {
	w, err := walk(size)
	if err != nil {
		return nil, err
	}
	synced, syncedIndex := max(w.synced, SegmentHeaderBytes), w.syncedIndex
	if mark.Segment == s.id && mark.Offset >= synced {
		synced, syncedIndex = mark.Offset, mark.Index
	}
	out := &recovered{segmentWalk: w, voteLost: w.lostState(synced), end: max(min(w.zeros, size), SegmentHeaderBytes)}
	if hole, ok := w.firstHole(synced); ok {
		if out.segmentWalk, err = walk(hole); err != nil {
			return nil, err
		}
		out.end, out.cut, out.cutBytes = hole, true, size-hole
		if out.zeros < hole {
			out.end = out.zeros
		}
	}
	last := max(out.last, syncedIndex, out.mayReach())
	if out.end < synced { // zeros, or the end of the file, where there was something
		out.unknown(out.end, synced-out.end, "what was synced is gone", true)
		out.end = synced
	}
	if commit := max(l.w.manifest.HardState.Commit, out.state.Commit); commit > last {
		out.unknown(out.end, 0, "committed entries are gone", true)
		last, out.voteLost = commit, true // a vote may have stood behind them
	}
	out.reach = out.segmentWalk.end(last)
	out.damages, out.ids = out.segmentWalk.damages(l.opts.Identity.Name, s.manifest(), last, nil, l.w.manifest.mayHaveCuts())
	return out, nil
}

// lastIndex is the greatest index that counts, or counted before it was hit. Damage may name a greater one, of an entry
// that was made void.
func (r *recovered) lastIndex() uint64 {
	last := r.last
	for _, d := range r.damages {
		last = max(last, min(d.IndexLast, r.reach)) // what is lost at the end was there
	}
	return last
}

// mayHaveCuts tells whether a new leader may ever have cut the log: not as long as one voter was alone.
func (m *Manifest) mayHaveCuts() bool { return m.ConfIndex > 0 || len(votersOf(m.Conf)) > 1 }

// mayReach is the greatest index that an entry may have had in bytes at the end that cannot be read; 0: there are none.
func (w *segmentWalk) mayReach() uint64 {
	n := len(w.bad)
	if n == 0 || !w.bad[n-1].doubt || w.bad[n-1].after != 0 {
		return 0
	}
	return w.bad[n-1].before + uint64(w.bad[n-1].bytes/FrameHeaderBytes)
}

// firstHole finds the first bytes at or above the synced mark that a torn write may have left: the log ends there. What begins below the mark is
// damage up to the mark. Bytes that cannot be read are no hole: a torn write reads as what was there before.
func (w *segmentWalk) firstHole(synced int64) (offset int64, found bool) {
	for _, b := range w.bad {
		if b.offset+b.bytes > synced && !b.doubt {
			return max(b.offset, synced), true
		}
	}
	return 0, false
}

// walkFile reads all frames of a segment's file up to an offset. It reads past the page cache where it can: after a
// failed sync the cache holds what the disk does not (rule 5). rows as for walkSegment.
func (l *Log) walkFile(s *segment, through int64, rows bool) (*segmentWalk, error) {
	w := newWalk(s.first, rows)
	return w, l.walkFileOn(s, w, SegmentHeaderBytes, through)
}

// walkFileOn is walkFile from an offset on, with what is known of the frames before it.
func (l *Log) walkFileOn(s *segment, w *segmentWalk, from, through int64) error {
	f, err := l.fs.OpenDirect(s.path)
	if err != nil {
		return err
	}
	window := frameBuffers.Get().(*[]byte)
	defer frameBuffers.Put(window)
	r := NewFrameReader(f, s.id, from, through)
	r.UseBuffer(*window)
	err = w.goOn(r, s.first, through)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return nil
}
