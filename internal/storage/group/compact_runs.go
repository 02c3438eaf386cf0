package group

import (
	"math"
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// mergeMin is the minimum number of neighbouring segments that are merged, unless CompactOptions.All is set. The
// largest of them must be at most half of their total. An entry that is copied only because of a merge therefore
// always moves to a segment at least twice the size of its old one.
const mergeMin = 4

// lowSpaceMergeBytes is the maximum total size of neighbouring segments that are merged when free space is low. It is
// small because only the number of files is a problem then, and many files of a few KB have a small total size.
const lowSpaceMergeBytes = 4 << 20

// extent holds what mergeRun needs to know about a sealed segment.
type extent struct {
	first, through uint64 // first is the first index; through is the last index that is not void
	bytes          int64  // size of the frames
	empty          bool   // whether the segment has no version, and may be removed from the manifest
}

// mergeRun returns how many segments at the beginning of extents should be merged into one. If it returns 1, the first
// segment is not merged.
func mergeRun(extents []extent, bytesMax int64, all bool) int {
	run := 1
	var total, greatest int64
	for i, x := range extents {
		total += x.bytes
		greatest = max(greatest, x.bytes)
		if total > bytesMax-format.SegmentHeaderBytes || x.through >= extents[0].first+math.MaxUint32 {
			break
		}
		if all || i+1 >= mergeMin && greatest <= total/2 {
			run = i + 1
		}
	}
	return run
}

// runs divides views into runs of neighbouring segments, each of which should become one segment.
func (c *compaction) runs(views []view) [][]view {
	extents := make([]extent, len(views))
	for i, v := range views {
		extents[i] = extent{first: v.first, through: v.through, bytes: v.end - format.SegmentHeaderBytes}
	}
	var out [][]view
	for len(views) > 0 {
		most := c.segmentBytes
		// A writer may be waiting for free space, and should not have to wait for a long copy as well.
		if c.opts.SpaceLow {
			most = min(most, lowSpaceMergeBytes)
		}
		n := mergeRun(extents, most, c.opts.All)
		out = append(out, views[:n:n])
		views, extents = views[n:], extents[n:]
	}
	return out
}

// isRemovable reports whether the run's first segment may be removed from the manifest (see state.removable).
func (c *compaction) isRemovable(run []view) bool {
	c.state.mu.RLock()
	defer c.state.mu.RUnlock()
	return c.state.removable(slices.Index(c.state.segments, run[0].segment))
}

// worth reports whether a run should be rewritten. It should be if it has several segments, if enough of it can be
// dropped, or if it has no entry that must be kept.
func (c *compaction) worth(run []view) bool {
	if len(run) > 1 {
		return true
	}
	v := run[0]
	requests := v.requestCount.Load()
	if v.rowCount.Load() == 0 && requests == 0 {
		return c.isRemovable(run) || v.end > format.SegmentHeaderBytes
	}
	bytes, blobs := c.droppable(v), c.garbage[v.ordinal]
	if c.opts.All {
		return bytes+blobs > 0 || requests > 0 && v.first <= c.forgotten
	}
	if c.opts.SpaceLow {
		return blobs > 0 || bytes > 0 && bytes*lowSpacePart >= v.end
	}
	return bytes+blobs > 0 && (bytes*rewritePart >= v.end || blobs*rewritePart >= c.blobs.stored.Load())
}

// termsOfRun returns the term runs of the entries that remain of a run of segments.
func (c *compaction) termsOfRun(run []view) []format.TermRun {
	c.state.mu.RLock()
	defer c.state.mu.RUnlock()
	var out []format.TermRun
	for _, v := range run {
		for _, t := range c.state.termsOf(v.segment) {
			if t.FirstIndex <= v.through {
				out = format.AddTerm(out, t.FirstIndex, t.Term)
			}
		}
	}
	return out
}

// mergeable returns how many segments are sealed and applied, and would be merged with others or removed from the
// manifest by a compaction. The caller holds state.mu.
func (st *state) mergeable(segmentBytes int64) int {
	var extents []extent
	applied := st.applied.Load()
	for i, s := range st.segments {
		through := min(st.through(i), st.last)
		if s.bytes == 0 || through > applied || s.first > applied {
			break
		}
		empty := s.rowCount.Load() == 0 && s.requestCount.Load() == 0 && st.removable(i)
		extents = append(extents, extent{s.first, through, s.bytes - format.SegmentHeaderBytes, empty})
	}
	count := 0
	for len(extents) > 0 {
		n := mergeRun(extents, segmentBytes, false)
		if n > 1 || extents[0].empty {
			count += n
		}
		extents = extents[n:]
	}
	return count
}

// removable reports whether segment i may be removed from the manifest once it is empty. It must not be removed if its
// first index makes an entry in the segment before it void. The caller holds state.mu.
func (st *state) removable(i int) bool {
	return i == 0 || st.segments[i-1].last < st.segments[i].first
}
