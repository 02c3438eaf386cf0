package group

import (
	"sort"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
)

// committed is the part of the log that was committed up to a time. Commit times never decrease in a group.
type committed struct {
	// through is an index: every stored put and delete at or below it was committed at or before the time. It may be
	// lower than it could be, but it is never higher.
	through uint64
	// next is the commit time of the first entry above through; 0 if there is none.
	next int64
}

// committedBy finds the part of the log, up to an applied index, that was committed at or before a time in Unix
// nanoseconds. It needs the commit times that the segments are known by, and reads some frames of at most one segment.
func (r *reader) committedBy(at int64, applied uint64) (committed, error) {
	views := r.views(0, applied)
	defer unpinAll(views)
	for _, v := range views {
		if v.greatestCommit() <= at {
			continue // segments are in order, and the last one that is read decides
		}
		return r.committedIn(v, at, min(v.through, applied))
	}
	return committed{through: applied}, nil
}

// greatestCommit returns the greatest commit time in the segment, or a greater one.
func (v view) greatestCommit() int64 {
	if v.rows != nil {
		return v.rows.LastCommit
	}
	return v.lastCommit.Load()
}

// committedIn does what committedBy does, for a segment with an entry that was committed later. All entries before the
// segment were committed at or before the time.
func (r *reader) committedIn(v view, at int64, through uint64) (committed, error) {
	points := r.checkpointsOf(v)
	if v.rows != nil {
		points = make([]checkpoint, len(v.rows.Places))
		for i, place := range v.rows.Places {
			points[i] = checkpoint{v.first + uint64(v.rows.Indexes[i]), index.Loc(place).Offset()}
		}
	}
	var failed error
	n := sort.Search(len(points), func(i int) bool {
		commitTime, err := v.commitTimeAt(points[i].offset)
		if err != nil && failed == nil {
			failed = err
		}
		return err != nil || points[i].index > through || commitTime > at
	})
	if failed != nil {
		return committed{}, failed
	}
	out, from := committed{through: v.first - 1}, int64(format.SegmentHeaderBytes)
	if n > 0 {
		from = points[n-1].offset
	}
	content := func(*segio.FrameStep) bool { return true }
	err := v.framesOf(from, v.end, content, func(step *segio.FrameStep) bool {
		e := &step.Entry
		switch {
		case step.Status != segio.FramePassed && step.Status != segio.FrameWhole:
			return false // bad bytes may hold an entry that was committed later
		case e.CommitTime == 0 || !r.isValid(e): // Raft's own entries have no commit time
			return true
		case e.Index > through:
			return false
		case e.CommitTime > at:
			out.next = e.CommitTime
			return false
		}
		out.through = e.Index
		return true
	})
	return out, err
}

// commitTimeAt returns the commit time of the entry whose frame is at an offset. If the frame is damaged, it returns
// the latest time, so that the entry counts as committed later.
func (v view) commitTimeAt(offset int64) (int64, error) {
	header := headers.Get().(*[format.FrameHeaderBytes]byte)
	defer headers.Put(header)
	frame, err := v.read(header[:], offset)
	if err != nil {
		return 0, err
	}
	e, _, _, _, err := format.DecodeHeader(frame, v.id, offset)
	if err != nil {
		return 1<<63 - 1, nil // the compaction that rewrites the segment finds the damage, and reports it
	}
	return e.CommitTime, nil
}
