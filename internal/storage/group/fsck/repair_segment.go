package fsck

import (
	"errors"
	"fmt"
	"path"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// writeSegments writes the new segments and hints, and builds the new manifest.
func (r *repairer) writeSegments() error {
	m := r.manifest
	r.next = *m
	r.next.Sequence++
	r.next.Segments = nil
	r.next.HardState = r.hard
	r.next.HardState.SyncedOffset, r.next.HardState.SyncedIndex = 0, 0
	last := uint64(0)
	for _, s := range r.scans {
		// All entries of earlier segments whose indexes are at or above this segment's first index are void.
		last = max(min(last, s.manifest.FirstIndex-1), s.Last)
		if err := r.writeSegment(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for id, bad := range r.badBlobs {
		if bad {
			r.garbage = append(r.garbage, format.BlobName(id))
		}
	}
	last = max(last, m.CompactedThrough)
	if r.lost {
		last = r.greatest + format.LossJump
		r.report.NextIndex = last + 1
		r.next.AcceptedThrough = r.greatest
		r.next.CompactedThrough, r.next.CompactedTerm = last, r.term
		if m.HistoryKnown {
			r.next.HistoryFloor = last // any version of any record up to this index may be lost
		}
		if r.next.HardState.Term < r.term {
			r.next.HardState.Term, r.next.HardState.Vote = r.term, 0
		}
		r.next.HardState.Commit = last
	}
	if n := len(r.next.Segments); n > 0 && !r.next.Segments[n-1].Sealed() {
		return nil // the log continues in the present active segment
	}
	return r.writeActive(last + 1)
}

// writeActive creates a new active segment. The argument first is the segment's first index.
func (r *repairer) writeActive(first uint64) error {
	s := format.ManifestSegment{Number: r.next.NextSegment, ID: format.NewSegmentID(), FirstIndex: first}
	r.next.NextSegment++
	if err := format.MakeSegment(r.fs, r.dir, r.manifest.Identity, s, time.Now()); err != nil {
		return err
	}
	r.next.Segments = append(r.next.Segments, s)
	return nil
}

// writeSegment decides what happens to one segment. It keeps, seals or replaces the segment, or drops it because it has
// no remaining entries.
func (r *repairer) writeSegment(s *segmentScan) error {
	m := s.manifest
	if !r.rewrite[s] && !m.Sealed() && !r.lost {
		r.next.Segments = append(r.next.Segments, m)
		return nil
	}
	if len(s.Others) == 0 && !s.hasRows() {
		r.garbage = append(r.garbage, s.name, format.HintName(m.Number))
		return nil
	}
	if r.rewrite[s] {
		return r.replaceSegment(s)
	}
	if !m.Sealed() {
		m.LastIndex, m.Bytes = s.Last, s.end
		if err := r.truncateFile(s.name, s.end); err != nil {
			return err
		}
	}
	r.next.Segments = append(r.next.Segments, m)
	return r.writeSegmentHint(s, m, &s.Rows)
}

// truncateFile truncates a segment's file to the given size, which is the offset at which its last whole frame ends.
func (r *repairer) truncateFile(name string, size int64) error {
	f, err := r.fs.OpenWrite(path.Join(r.dir, name))
	if err != nil {
		return err
	}
	err = f.Truncate(size)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// replaceSegment writes the remaining entries of a segment as a new segment with the next number.
func (r *repairer) replaceSegment(s *segmentScan) error {
	m := format.ManifestSegment{Number: r.next.NextSegment, ID: format.NewSegmentID(), FirstIndex: s.manifest.FirstIndex,
		LastIndex: max(s.manifest.LastIndex, s.Last)}
	r.next.NextSegment++
	out, err := format.WriteSegmentHeader(r.fs, r.dir, r.manifest.Identity, m, time.Now(), true)
	if err != nil {
		return err
	}
	to := segio.NewWriter(out, m, new(format.Rows))
	if err := errors.Join(r.copyEntries(s, to), out.Close()); err != nil {
		return errors.Join(err, r.fs.Remove(path.Join(r.dir, format.SegmentName(m.Number))))
	}
	m.Bytes = to.Bytes
	r.garbage = append(r.garbage, s.name, format.HintName(s.manifest.Number))
	r.report.Rewritten = append(r.report.Rewritten, s.name)
	r.next.Segments = append(r.next.Segments, m)
	return r.writeSegmentHint(s, m, to.Rows)
}

// copyEntries durably copies the remaining entries into a new segment. It reads and verifies each entry again.
func (r *repairer) copyEntries(s *segmentScan, to *segio.Writer) (err error) {
	in, err := r.fs.OpenDirect(path.Join(r.dir, s.name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	end := min(s.end, s.fileBytes)
	ahead := segio.NewReadAhead(countingFile{in, r.verifier}, end)
	defer ahead.Close()
	walk := segio.NewFrameReader(ahead, s.manifest.ID, format.SegmentHeaderBytes, end)
	for walk.Next() {
		step := walk.Step()
		if e := &step.Entry; s.stays(step) {
			if _, err := to.Copy(step, r.newest[e.ID] == e.Index); err != nil {
				return err
			}
		}
	}
	if err := walk.Err(); err != nil {
		return err
	}
	return to.Finish()
}

// stays reports whether the repair keeps the frame of a step.
func (s *segmentScan) stays(step *segio.FrameStep) bool {
	e := &step.Entry
	return step.Status == segio.FrameWhole && e.Kind != format.KindState && s.Counts(e.Kind.IsVersion(), step.Offset) &&
		!s.gone[e.Index]
}

// hasRows reports whether the repair keeps any of the segment's rows.
func (s *segmentScan) hasRows() bool {
	for row := range s.Rows.IDs {
		if s.counts(row) {
			return true
		}
	}
	return false
}

// writeSegmentHint writes a repaired segment's hint. The used flags in the hint are correct for the remaining entries.
func (r *repairer) writeSegmentHint(s *segmentScan, m format.ManifestSegment, table *format.Rows) error {
	h := table.Hint(m, s.Terms)
	for i, id := range h.IDs {
		h.SetUsed(i, r.newest[id] == h.FirstIndex+uint64(h.Indexes[i]))
	}
	return format.WriteHint(r.fs, r.dir, m.Number, h)
}
