package group

import (
	"sort"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
)

// committed describes the part of the log that was committed at or before a given time. Commit times never decrease
// within a group.
type committed struct {
	// through is an index. Every stored put and delete up to this index was committed at or before the given time. Some
	// later ones may have been, too.
	through uint64
	// next is the commit time of the first put or delete above through. It is 0 if there is no such entry, or if the
	// time is unknown.
	next int64
}

// committedBy determines which part of the log was committed at or before a time in Unix nanoseconds. It considers
// only the applied entries. It uses the greatest commit time of each segment, and reads some frames of at most one
// segment.
func (r *reader) committedBy(at int64, applied uint64) (committed, error) {
	views := r.views(0, applied)
	defer unpinAll(views)
	for _, v := range views {
		if v.greatestCommit() <= at {
			continue // all entries of this segment are old enough, and the segments are in order
		}
		return r.committedIn(v, at, min(v.through, applied))
	}
	return committed{through: applied}, nil
}

// greatestCommit returns an upper bound for the commit times in the segment.
func (v view) greatestCommit() int64 {
	if v.rows != nil {
		return v.rows.LastCommit
	}
	return v.lastCommit.Load()
}

// committedIn is like committedBy, for a segment that holds an entry with a later commit time. All entries before this
// segment must have been committed at or before the given time.
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
			return false // the bad bytes may contain an entry that was committed later
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

// commitTimeAt returns the commit time of the entry whose frame begins at an offset. If the frame is damaged, it
// returns the latest possible time, so that the entry counts as committed later.
func (v view) commitTimeAt(offset int64) (int64, error) {
	header := headers.Get().(*[format.FrameHeaderBytes]byte)
	defer headers.Put(header)
	frame, err := v.read(header[:], offset)
	if err != nil {
		return 0, err
	}
	e, _, _, _, err := format.DecodeHeader(frame, v.id, offset)
	if err != nil {
		return 1<<63 - 1, nil // the damage is found and reported by the compaction that rewrites the segment
	}
	return e.CommitTime, nil
}
