package group

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sort"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/group/segio"
	"sheaf.dev/sheaf/internal/index"
)

var _ raft.Storage = (*Log)(nil)

// InitialState implements raft.Storage, as do FirstIndex, LastIndex, Term, Entries and Snapshot. Entries below the
// compaction floor answer raft.ErrCompacted. Entries that are not applied yet are served from memory.
func (l *Log) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	hard := l.w.hard
	return &raftpb.HardState{Term: &hard.Term, Vote: &hard.Vote, Commit: &hard.Commit}, raftpb.EnsureConfState(l.state.conf), nil
}

// FirstIndex implements raft.Storage.
func (l *Log) FirstIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state.floor + 1, nil
}

// LastIndex implements raft.Storage.
func (l *Log) LastIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state.last, nil
}

// Term implements raft.Storage.
func (l *Log) Term(at uint64) (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.term(at)
}

// term is Term. The caller holds mu.
func (l *Log) term(at uint64) (uint64, error) {
	st := &l.state
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

// Entries implements raft.Storage.
func (l *Log) Entries(lo, hi, maxBytes uint64) ([]*raftpb.Entry, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	l.mu.RLock()
	floor, last := l.state.floor, l.state.last
	out, more := l.tailEntries(nil, lo, hi, &maxBytes)
	tailFirst := l.state.tail.first
	inTail := l.state.tail.at(lo) != nil
	l.mu.RUnlock()
	switch {
	case lo <= floor:
		return nil, raft.ErrCompacted
	case hi > last+1:
		return nil, raft.ErrUnavailable
	case inTail || lo >= hi:
		return out, nil
	}
	err := l.readEntries(lo, min(hi, max(tailFirst, lo+1))-1, func(e *format.Entry, _ index.Loc) bool {
		r := format.RaftEntry(e)
		if e.Kind == format.KindConf {
			r.Data = bytes.Clone(r.Data)
		}
		more = take(&maxBytes, r, len(out) == 0)
		if more {
			out = append(out, r)
		}
		return more
	})
	if err != nil {
		l.noteDamageOf(err)
		return nil, fmt.Errorf("group %s: entries from index %d: %w", l.opts.Identity.Name, lo, err)
	}
	if len(out) == 0 {
		return nil, raft.ErrUnavailable
	}
	if next := lo + uint64(len(out)); more && next < hi {
		l.mu.RLock()
		defer l.mu.RUnlock()
		out, _ = l.tailEntries(out, next, hi, &maxBytes)
	}
	return out, nil
}

// tailEntries adds entries from memory. The caller holds mu.
func (l *Log) tailEntries(out []*raftpb.Entry, lo, hi uint64, room *uint64) (_ []*raftpb.Entry, more bool) {
	for at := lo; at < hi; at++ {
		t := l.state.tail.at(at)
		if t == nil {
			return out, true
		}
		if !take(room, t.raft, len(out) == 0) {
			return out, false
		}
		out = append(out, t.raft)
	}
	return out, true
}

// take counts an entry against the room; the first one always fits.
func take(room *uint64, r *raftpb.Entry, first bool) bool {
	size := uint64(len(r.Data)) + 24 // type, term and index in protobuf take no more
	if size > *room && !first {
		*room = 0
		return false
	}
	*room -= min(size, *room)
	return true
}

// Snapshot implements raft.Storage. Its data is empty: it only tells a member that is too far behind that it must be
// installed anew (Export, Install).
func (l *Log) Snapshot() (*raftpb.Snapshot, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	at := l.exportIndex()
	term, err := l.term(at)
	if err != nil || at == 0 || l.state.conf == nil {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: &at, Term: &term, ConfState: l.state.conf}}, nil
}

// exportIndex is the greatest applied index whose membership is known: SetConf follows Apply. The caller holds mu.
func (l *Log) exportIndex() uint64 {
	if len(l.state.confsAhead) > 0 {
		return l.state.confsAhead[0] - 1
	}
	return l.applied.Load()
}

// AppliedIndex is the index of the last entry applied.
func (l *Log) AppliedIndex() uint64 { return l.applied.Load() }

// LastCommitTime is the commit time of the last entry appended, for the leader to go on from.
func (l *Log) LastCommitTime() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state.lastCommit
}

// RecentRequests gives the applied puts and deletes with a request id that a window may remember, oldest first, so that
// the replica can rebuild it after a restart. What cannot be read is left out. now is Unix ns by the machine's clock.
//
// How old they are is told by the commit times of the log: between two entries no more than commitStepMax passes, so
// that a jump of these, by a clock that was wrong, makes nothing old. Rather too much is given than too little. The
// machine's clock counts only where it is ahead by clockErrorMax: segments that are older are not read.
func (l *Log) RecentRequests(w RequestWindow, now int64) iter.Seq[format.Request] {
	return func(yield func(format.Request) bool) {
		if err := l.enter(); err != nil {
			return
		}
		defer l.leave()
		since := now - int64(w.Age+clockErrorMax)
		through := l.applied.Load()
		from := l.firstSince(through-min(through, uint64(w.WritesMax))+1, through, since)
		var pieces [][]format.Request // the newest first
		span, next := time.Duration(0), through+1
		var begin int64 // commit time of the first write in the last piece; 0: none was seen
		for size := uint64(64); next > from && span < w.Age && (span < w.AgeMin || through-next < uint64(w.Writes)); size *= 2 {
			hi := next - 1
			next = max(from, next-min(next, size))
			piece, err := l.requestsIn(next, hi, since)
			if err != nil {
				l.logger.Warn("request ids could not be read: a repeated write may be written again", "group", l.opts.Identity.Name, "error", err)
			}
			if begin != 0 && piece.last != 0 {
				span += commitStep(piece.last, begin)
			}
			if piece.first != 0 {
				begin = piece.first
			}
			span += piece.span
			pieces = append(pieces, piece.requests)
		}
		for _, requests := range slices.Backward(pieces) {
			for _, r := range requests {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// requestPiece is what requestsIn finds.
type requestPiece struct {
	requests    []format.Request
	first, last int64         // commit times, of all writes; 0: there are none
	span        time.Duration // that passed between them in the log
}

// requestsIn reads the requests in a part of the log that were committed since a time.
func (l *Log) requestsIn(lo, hi uint64, since int64) (p requestPiece, err error) {
	// Damage that is found is noted: the replica asks again when it is repaired.
	err = l.walkEntries(lo, hi, l.noteDamage, func(e *format.Entry, _ index.Loc) bool {
		if !e.Kind.IsVersion() && e.Kind != format.KindRequest || e.CommitTime < since {
			return true
		}
		if p.first == 0 {
			p.first = e.CommitTime
		} else {
			p.span += commitStep(p.last, e.CommitTime)
		}
		p.last = e.CommitTime
		if e.RequestID != [16]byte{} {
			p.requests = append(p.requests, format.RequestOf(e))
		}
		return true
	})
	return p, err
}

// commitStep is the time that passed in the log between two writes that follow each other.
func commitStep(before, after int64) time.Duration {
	return min(max(0, time.Duration(after-before)), commitStepMax)
}

// firstSince raises from to the begin of the first segment that holds an entry committed since then: commit times never
// decrease in a log.
func (l *Log) firstSince(from, through uint64, since int64) uint64 {
	views := l.views(from, through)
	defer unpinAll(views)
	for i := len(views) - 1; i >= 0; i-- {
		v := views[i]
		if v.active || v.rows != nil {
			continue // young enough to have no hint: it is read
		}
		if h, err := l.hintOf(v); err == nil && h.LastCommit != 0 && h.LastCommit < since { // 0: compaction left nothing
			return max(from, v.through+1)
		}
	}
	return from
}

// view is a pinned segment with the state that belongs to it at one moment.
type view struct {
	*segment
	m       format.ManifestSegment
	through uint64 // entries above it are void, or not there
	end     int64  // behind the last frame
	rows    *format.Rows
	active  bool
	scan    bool // it is read for a scan: perhaps once
}

// views pins the segments that hold indexes from lo to hi. The caller calls unpin on each.
func (l *Log) views(lo, hi uint64) []view {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var out []view
	for i, s := range l.state.segments {
		v := view{segment: s, m: s.manifest(), through: min(l.through(i), l.state.last), end: s.bytes}
		if s.bytes == 0 {
			v.active, v.end = true, l.state.end
		}
		if s.first > hi || v.through < lo || !s.pin() {
			continue
		}
		if s.rows != nil {
			v.rows = s.rows.Snapshot()
		}
		out = append(out, v)
	}
	return out
}

func unpinAll(views []view) {
	for _, v := range views {
		v.unpin()
	}
}

// frames walks the frames of a view from an offset on until fn answers false.
func (l *Log) frames(v view, from int64, fn func(step *segio.FrameStep) bool) error {
	return l.framesOf(v, from, v.end, nil, fn)
}

// framesOf is frames up to an offset, where a frame ends. It does not look at the content of those that pass, which may
// be nil, says of.
func (l *Log) framesOf(v view, from, to int64, pass, fn func(step *segio.FrameStep) bool) error {
	var r *segio.FrameReader
	var size int64
	if v.image != nil {
		size = int64(len(v.image))
		r = segio.NewFrameReaderBytes(v.image[:min(to, size)], v.id, from)
	} else {
		f, err := v.reader()
		if err != nil {
			return err
		}
		if size, err = f.Size(); err != nil {
			return err
		}
		var src io.ReaderAt = f
		end := min(to, max(size, from))
		if v.scan && v.cold != nil {
			if ahead := v.cold.ReadInOrder(from, end); ahead != nil {
				defer ahead.Close()
				src = ahead
			}
		}
		window := segio.FrameBuffers.Get().(*[]byte)
		defer segio.FrameBuffers.Put(window)
		r = segio.NewFrameReader(src, v.id, from, end)
		r.UseBuffer(*window)
	}
	missing := segio.FrameStep{Status: segio.FrameBad, Offset: max(size, from), Bytes: to - max(size, from)}
	r.Pass = pass
	for r.Next() {
		if !fn(r.Step()) {
			return nil
		}
	}
	if r.Err() == nil && missing.Bytes > 0 { // the file is shorter than it was
		fn(&missing)
	}
	return r.Err()
}

// readEntries gives the entries with indexes from lo to hi in order, none left out, until fn answers false. They are
// valid until the next one. Bad bytes among them are an error.
func (l *Log) readEntries(lo, hi uint64, fn func(*format.Entry, index.Loc) bool) error {
	return l.walkEntries(lo, hi, nil, fn)
}

// walkEntries is readEntries that, where pass is not nil, passes over what is not there, and tells it of bad bytes.
// Then it goes on behind a file that cannot be read at all, and gives that error in the end.
func (l *Log) walkEntries(lo, hi uint64, pass func(format.Damage), fn func(*format.Entry, index.Loc) bool) error {
	if lo > hi {
		return nil
	}
	views := l.views(lo, hi)
	defer unpinAll(views)
	next, stopped, gaps := lo, false, pass != nil
	var damage, unread error
	for _, v := range views {
		if stopped || next > v.through {
			continue
		}
		through := min(hi, v.through)
		if !gaps {
			if err := l.doubtRange(v, next, through); err != nil {
				return err
			}
		}
		err := l.frames(v, l.startOf(v, next), func(step *segio.FrameStep) bool {
			e := &step.Entry
			switch {
			case step.Status == segio.FrameZeros || step.Status == segio.FrameBad || step.Status == segio.FrameContent && e.Index >= next:
				if gaps {
					pass(v.damage(l.opts.Identity.Name, step))
				} else if step.Status != segio.FrameContent || e.Index == next {
					damage = &format.DamageError{Damage: v.damage(l.opts.Identity.Name, step)}
				}
				return true // an entry that stands behind it may be the one that counts
			case step.Status != segio.FrameWhole || e.Kind == format.KindState || e.Index < next || e.Index > through || !l.isValid(e):
				return true
			case (e.Index > next || e.Kind == format.KindRequest) && !gaps:
				return false // a gap: compaction has left no entry there
			}
			damage = nil
			next = e.Index + 1
			if !fn(e, v.place(step.Offset, step.Bytes, e.Kind == format.KindDelete)) {
				stopped = true
			}
			return !stopped && next <= through
		})
		if err != nil && !gaps {
			return err
		}
		unread = errors.Join(unread, err)
	}
	switch {
	case gaps:
		return unread
	case stopped || next > hi:
		return nil
	case damage != nil:
		return damage
	}
	return fmt.Errorf("entry with index %d is missing", next)
}

// damage is a step of a walk as damage.
func (v view) damage(group string, step *segio.FrameStep) format.Damage {
	d := format.Damage{Group: group, File: format.SegmentName(v.number), Offset: step.Offset, Length: step.Bytes, What: step.Status.String()}
	if step.Status == segio.FrameContent && step.Entry.Kind.IsVersion() {
		d.IDs = []int64{step.Entry.ID}
	}
	return d
}

// isValid tells whether an entry read from a segment is not void: one that was cut off has another term, or came again
// later and is the same then, byte for byte, at another place. Compaction leaves void ones in segments that it passes
// over, so Raft's floor does not matter.
func (l *Log) isValid(e *format.Entry) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	term := format.TermAt(l.state.terms, e.Index)
	return term == 0 || e.Index > l.state.last || term == e.Term
}

const checkpointBytes = 1 << 20

// startOf is an offset in a view at or before the entry with an index.
func (l *Log) startOf(v view, at uint64) int64 {
	if v.rows != nil {
		if i := v.rows.AtOrBelow(v.first, at); i >= 0 {
			return index.Loc(v.rows.Places[i]).Offset()
		}
		return format.SegmentHeaderBytes
	}
	points := l.checkpointsOf(v)
	i := sort.Search(len(points), func(i int) bool { return points[i].index > at }) - 1
	if i < 0 {
		return format.SegmentHeaderBytes
	}
	return points[i].offset
}

// boundOf is an offset in a view behind all that stands in it of entries up to an index, but for void ones: those that
// are not void rise in index as they rise in place.
func (l *Log) boundOf(v view, through uint64) int64 {
	if through >= v.through {
		return v.end
	}
	if v.rows != nil {
		if i := v.rows.AtOrBelow(v.first, through) + 1; i < len(v.rows.Places) {
			return min(v.end, index.Loc(v.rows.Places[i]).Offset())
		}
		return v.end
	}
	points := l.checkpointsOf(v)
	if i := sort.Search(len(points), func(i int) bool { return points[i].index > through }); i < len(points) {
		return min(v.end, points[i].offset)
	}
	return v.end
}

// checkpointsOf makes the checkpoints of a sealed segment from its hint, once. None where there is no hint.
func (l *Log) checkpointsOf(v view) []checkpoint {
	v.checkpointsOnce.Lock()
	defer v.checkpointsOnce.Unlock()
	if v.checkpoints != nil || v.active {
		return v.checkpoints
	}
	h, err := l.hintOf(v)
	if err != nil {
		return nil
	}
	lowest := make(map[int64]checkpoint)
	for i, place := range h.Places {
		offset := index.Loc(place).Offset()
		c, ok := lowest[offset/checkpointBytes]
		if !ok || offset < c.offset {
			lowest[offset/checkpointBytes] = checkpoint{index: h.FirstIndex + uint64(h.Indexes[i]), offset: offset}
		}
	}
	v.checkpoints = []checkpoint{}
	for _, c := range lowest {
		v.checkpoints = append(v.checkpoints, c)
	}
	slices.SortFunc(v.checkpoints, func(a, b checkpoint) int { return int(a.offset - b.offset) })
	return v.checkpoints
}
