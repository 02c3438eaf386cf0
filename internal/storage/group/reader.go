package group

import (
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"sort"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
)

// reader reads a log's segments. It returns entries in log order, the versions of a record, and the blobs to which
// they refer. It is safe for concurrent use while the log is open.
type reader struct {
	group   string
	state   *state
	damages *damages
	hints   *hints
}

// view is a pinned segment, and the state of the segment at one moment.
type view struct {
	*segment
	m       format.ManifestSegment
	through uint64 // entries above this index are void, or do not exist
	end     int64  // offset at which the last frame ends
	rows    *format.Rows
	active  bool
	// scan means that a scan reads the view, so that its reads may bypass the page cache.
	scan bool
}

// views pins the segments that hold indexes from lo to hi. The caller must call unpin on each view.
func (r *reader) views(lo, hi uint64) []view {
	r.state.mu.RLock()
	defer r.state.mu.RUnlock()
	var out []view
	for i, s := range r.state.segments {
		v := view{segment: s, m: s.manifest(), through: min(r.state.through(i), r.state.last), end: s.bytes}
		if s.bytes == 0 {
			v.active, v.end = true, r.state.end
		}
		if s.first > hi || v.through < lo || !s.pin() {
			continue
		}
		if s.rows != nil {
			rows := *s.rows // rows that are added later do not change this copy
			v.rows = &rows
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

// frames calls fn for each frame that begins at or after an offset, until fn returns false.
func (v view) frames(from int64, fn func(step *segio.FrameStep) bool) error {
	return v.framesOf(from, v.end, nil, fn)
}

// framesOf is like frames, but stops at the offset `to`, at which a frame must end. If the function pass is not nil,
// framesOf skips the content of the frames for which pass returns true.
func (v view) framesOf(from, to int64, pass, fn func(step *segio.FrameStep) bool) error {
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
	// The file has become shorter than the view.
	if r.Err() == nil && missing.Bytes > 0 {
		fn(&missing)
	}
	return r.Err()
}

// damage returns the damage that a step of a walk has found.
func (v view) damage(group string, step *segio.FrameStep) format.Damage {
	d := format.Damage{Group: group, File: format.SegmentName(v.number), Offset: step.Offset, Length: step.Bytes,
		What: step.Status.String()}
	if step.Status == segio.FrameContent && step.Entry.Kind.IsVersion() {
		d.IDs = []int64{step.Entry.ID}
	}
	return d
}

// walkEntries calls fn for the entries with indexes from lo to hi in order, until fn returns false. The function fn
// must not use an entry after it has returned. If pass is nil, bad bytes between the entries and missing entries are
// errors. If pass is not nil, walkEntries calls it for bad bytes, and skips missing entries. If it then cannot read a
// file, it continues with the next file, and returns the error at the end.
func (r *reader) walkEntries(lo, hi uint64, pass func(format.Damage), fn func(*format.Entry, index.Loc) bool) error {
	if lo > hi {
		return nil
	}
	views := r.views(lo, hi)
	defer unpinAll(views)
	next, stopped, gaps := lo, false, pass != nil
	var damage, unread error
	for _, v := range views {
		if stopped || next > v.through {
			continue
		}
		through := min(hi, v.through)
		if !gaps {
			if err := r.damages.inRange(v, next, through); err != nil {
				return err
			}
		}
		err := v.frames(r.startOf(v, next), func(step *segio.FrameStep) bool {
			e := &step.Entry
			switch {
			case step.Status == segio.FrameZeros || step.Status == segio.FrameBad || step.Status == segio.FrameContent &&
				e.Index >= next:
				if gaps {
					pass(v.damage(r.group, step))
				} else if step.Status != segio.FrameContent || e.Index == next {
					damage = &format.DamageError{Damage: v.damage(r.group, step)}
				}
				return true // the damaged entry may be void, and the valid one may follow
			case step.Status != segio.FrameWhole || e.Kind == format.KindState || e.Index < next || e.Index > through ||
				!r.isValid(e):
				return true
			case (e.Index > next || e.Kind == format.KindRequest) && !gaps:
				return false // compaction has dropped this entry
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

// isValid reports whether an entry that was read from a segment is not void. A void entry has a different term than the
// valid entry with the same index. The only exception is an entry that was appended again later. Its two frames hold
// equal entries, so either may be used. isValid also compares entries below Raft's floor, because compaction leaves
// void entries in segments that it skips.
func (r *reader) isValid(e *format.Entry) bool {
	r.state.mu.RLock()
	defer r.state.mu.RUnlock()
	term := format.TermAt(r.state.terms, e.Index)
	return term == 0 || e.Index > r.state.last || term == e.Term
}

const checkpointBytes = 1 << 20

// startOf returns an offset from which a reader of the view must start to find the entry with the given index. A
// frame begins at this offset, at or before the entry's frame.
func (r *reader) startOf(v view, at uint64) int64 {
	if v.rows != nil {
		if i := v.rows.AtOrBelow(v.first, at); i >= 0 {
			return index.Loc(v.rows.Places[i]).Offset()
		}
		return format.SegmentHeaderBytes
	}
	points := r.checkpointsOf(v)
	i := sort.Search(len(points), func(i int) bool { return points[i].index > at }) - 1
	if i < 0 {
		return format.SegmentHeaderBytes
	}
	return points[i].offset
}

// boundOf returns an offset in the view after which there are only void entries and entries above the given index.
// This works because entries that are not void are in index order.
func (r *reader) boundOf(v view, through uint64) int64 {
	if through >= v.through {
		return v.end
	}
	if v.rows != nil {
		if i := v.rows.AtOrBelow(v.first, through) + 1; i < len(v.rows.Places) {
			return min(v.end, index.Loc(v.rows.Places[i]).Offset())
		}
		return v.end
	}
	points := r.checkpointsOf(v)
	if i := sort.Search(len(points), func(i int) bool { return points[i].index > through }); i < len(points) {
		return min(v.end, points[i].offset)
	}
	return v.end
}

// checkpointsOf returns a sealed segment's checkpoints. The first call derives them from the hint. It returns none if
// there is no hint.
func (r *reader) checkpointsOf(v view) []checkpoint {
	v.checkpointsOnce.Lock()
	defer v.checkpointsOnce.Unlock()
	if v.checkpoints != nil || v.active {
		return v.checkpoints
	}
	h, err := r.hints.of(v)
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

// history calls fn for each of a record's versions with an index from lo to hi, newest first, until fn returns false.
func (r *reader) history(id int64, lo, hi uint64, fn func(v view, at uint64, loc index.Loc) (bool, error)) error {
	views := r.views(lo, hi)
	defer unpinAll(views)
	for i := len(views) - 1; i >= 0; i-- {
		v := views[i]
		rows, err := r.versionsIn(v, id)
		if err != nil {
			return err
		}
		for j := len(rows) - 1; j >= 0; j-- {
			r := rows[j]
			if r.index < lo || r.index > min(hi, v.through) {
				continue
			}
			more, err := fn(v, r.index, r.loc)
			if err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// versionsIn returns a record's versions in a segment, oldest first.
func (r *reader) versionsIn(v view, id int64) ([]row, error) {
	var out []row
	if v.rows != nil {
		for i, other := range v.rows.IDs {
			if other == id {
				out = append(out, row{id, v.first + uint64(v.rows.Indexes[i]), index.Loc(v.rows.Places[i]).In(v.ordinal)})
			}
		}
		return out, nil
	}
	h, err := r.hints.of(v)
	if err != nil {
		return nil, err
	}
	hash := index.Hash(id)
	from := sort.Search(len(h.IDs), func(i int) bool { return index.Hash(h.IDs[i]) >= hash })
	for i := from; i < len(h.IDs) && index.Hash(h.IDs[i]) == hash; i++ {
		if h.IDs[i] == id {
			out = append(out, row{id, h.FirstIndex + uint64(h.Indexes[i]), index.Loc(h.Places[i]).In(v.ordinal)})
		}
	}
	return out, nil
}

// rowsOf returns a segment's puts and deletes, and the blobs to which they refer. The versions of a record are sorted
// by location.
func (r *reader) rowsOf(v view) (format.Rows, error) {
	if v.rows != nil {
		return *v.rows, nil
	}
	h, err := r.hints.of(v)
	if err != nil {
		return format.Rows{}, fmt.Errorf("%s: %w", path.Base(v.path), err)
	}
	return format.Rows{IDs: h.IDs, Places: h.Places, Indexes: h.Indexes, Blobs: h.Blobs}, nil
}
