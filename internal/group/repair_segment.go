package group

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/vfs"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// writeSegments makes the new segments and hints, and with them the manifest to come.
func (r *repairer) writeSegments() error {
	m := r.manifest
	r.next = *m
	r.next.Sequence++
	r.next.Segments = nil
	r.next.HardState = r.hard
	r.next.HardState.SyncedOffset, r.next.HardState.SyncedIndex = 0, 0
	last := uint64(0)
	for _, s := range r.scans {
		last = max(min(last, s.manifest.FirstIndex-1), s.last) // what a segment makes void of earlier ones is not there
		if err := r.writeSegment(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for id, bad := range r.badBlobs {
		if bad {
			r.garbage = append(r.garbage, BlobName(id))
		}
	}
	last = max(last, m.CompactedThrough)
	if r.lost {
		last = r.greatest + lossJump
		r.report.NextIndex = last + 1
		r.next.AcceptedThrough = r.greatest
		r.next.CompactedThrough, r.next.CompactedTerm = last, r.term
		if r.next.HardState.Term < r.term {
			r.next.HardState.Term, r.next.HardState.Vote = r.term, 0
		}
		r.next.HardState.Commit = last
	}
	if n := len(r.next.Segments); n > 0 && !r.next.Segments[n-1].Sealed() {
		return nil // the active segment goes on
	}
	return r.writeActive(last + 1)
}

// writeActive begins a new active segment.
func (r *repairer) writeActive(first uint64) error {
	s := ManifestSegment{Number: r.next.NextSegment, ID: newSegmentID(), FirstIndex: first}
	r.next.NextSegment++
	header := SegmentHeader{Store: r.manifest.Identity.Store, Group: r.manifest.Identity.Group, ID: s.ID, FirstIndex: first,
		Created: time.Now().UnixNano()}
	if err := writeReplace(r.fs, r.dir, SegmentName(s.Number), header.Encode()); err != nil {
		return err
	}
	r.next.Segments = append(r.next.Segments, s)
	return nil
}

// writeSegment decides what becomes of one segment: it stays, is sealed, is replaced, or is left out because nothing of it
// is left.
func (r *repairer) writeSegment(s *segmentScan) error {
	m := s.manifest
	if !r.rewrite[s] && !m.Sealed() && !r.lost {
		r.next.Segments = append(r.next.Segments, m)
		return nil
	}
	if len(s.rows)+len(s.others) == 0 {
		r.garbage = append(r.garbage, s.name, HintName(m.Number))
		return nil
	}
	if r.rewrite[s] {
		return r.replaceSegment(s)
	}
	if !m.Sealed() {
		m.LastIndex, m.Bytes = s.last, s.end
		if err := r.cutFile(s.name, s.end); err != nil {
			return err
		}
	}
	r.next.Segments = append(r.next.Segments, m)
	table := &rowTable{lastCommit: s.commit}
	for _, row := range s.rows {
		table.ids = append(table.ids, row.id)
		table.places = append(table.places, uint64(row.loc()))
		table.indexes = append(table.indexes, uint32(row.index-m.FirstIndex))
	}
	for _, b := range s.blobs {
		table.blobs = append(table.blobs, HintBlob{Index: b.index, Ref: b.ref})
	}
	return r.writeSegmentHint(s, m, table)
}

// cutFile makes the end of what is whole the end of the file.
func (r *repairer) cutFile(name string, size int64) error {
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

// replaceSegment writes what is left of a segment as a new one, under the next number.
func (r *repairer) replaceSegment(s *segmentScan) (err error) {
	m := ManifestSegment{Number: r.next.NextSegment, ID: newSegmentID(), FirstIndex: s.manifest.FirstIndex,
		LastIndex: max(s.manifest.LastIndex, s.last)}
	r.next.NextSegment++
	name := path.Join(r.dir, SegmentName(m.Number))
	out, err := createAnew(r.fs, name+TmpSuffix)
	if err != nil {
		return err
	}
	closed := false
	defer func() {
		if !closed {
			err = errors.Join(err, out.Close(), r.fs.Remove(name+TmpSuffix))
		}
	}()
	table, err := r.copyEntries(s, &m, out)
	if err != nil {
		return err
	}
	if err := out.Sync(); err != nil {
		return err
	}
	closed = true
	if err := out.Close(); err != nil {
		return err
	}
	if err := r.fs.Rename(name+TmpSuffix, name); err != nil {
		return err
	}
	if err := r.fs.SyncDir(r.dir); err != nil {
		return err
	}
	r.garbage = append(r.garbage, s.name, HintName(s.manifest.Number))
	r.report.Rewritten = append(r.report.Rewritten, s.name)
	r.next.Segments = append(r.next.Segments, m)
	return r.writeSegmentHint(s, m, table)
}

// copyEntries copies the entries that stay into a new segment, sets its size, and gives the table of them. Each entry is verified
// again as it is read.
func (r *repairer) copyEntries(s *segmentScan, m *ManifestSegment, out vfs.File) (table *rowTable, err error) {
	in, err := r.fs.OpenDirect(path.Join(r.dir, s.name))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	buf := SegmentHeader{Store: r.manifest.Identity.Store, Group: r.manifest.Identity.Group, ID: m.ID, FirstIndex: m.FirstIndex,
		Created: time.Now().UnixNano(), Rewritten: true}.Encode()
	at := int64(0) // of buf in the file
	table = new(rowTable)
	flush := func() error {
		_, err := out.WriteAt(buf, at)
		at += int64(len(buf))
		buf = buf[:0]
		return err
	}
	end := min(s.end, s.fileBytes)
	ahead := newReadAhead(countingFile{in, r.verifier}, end)
	defer ahead.close()
	walk := NewFrameReader(ahead, s.manifest.ID, SegmentHeaderBytes, end)
	for walk.Next() {
		step := walk.Step()
		row, stays := s.find(step)
		if !stays {
			continue
		}
		offset := at + int64(len(buf))
		begin := len(buf)
		buf = append(buf, step.Raw...)
		used := row != nil && r.newest[row.id] == row.index
		MoveFrame(buf[begin:], m.ID, offset, used)
		switch {
		case step.Entry.Kind == KindRequest:
			table.addRequest(&step.Entry)
		case row != nil:
			table.add(m.FirstIndex, &step.Entry, offset, step.Bytes)
		}
		if len(buf) >= windowBytes {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	if err := walk.Err(); err != nil {
		return nil, err
	}
	if len(buf) > 0 {
		if err := flush(); err != nil {
			return nil, err
		}
	}
	m.Bytes = at
	return table, nil
}

// find tells whether the frame of a step stays, and its row where it is a put or delete.
func (s *segmentScan) find(step *FrameStep) (row *scanRow, stays bool) {
	if step.Status != FrameWhole || step.Entry.Kind == KindState {
		return nil, false
	}
	if !step.Entry.Kind.isVersion() {
		_, ok := slices.BinarySearchFunc(s.others, step.Offset, func(o scanOther, offset int64) int {
			return cmp.Compare(o.offset, offset)
		})
		return nil, ok
	}
	k, ok := slices.BinarySearchFunc(s.rows, step.Offset, func(r scanRow, offset int64) int {
		return cmp.Compare(r.loc().Offset(), offset)
	})
	if !ok {
		return nil, false
	}
	return &s.rows[k], true
}

// writeSegmentHint writes the hint of a segment as it will be, with used flags that are true for what stays.
func (r *repairer) writeSegmentHint(s *segmentScan, m ManifestSegment, table *rowTable) error {
	h := table.hint(m, s.terms)
	for i, id := range h.IDs {
		h.SetUsed(i, r.newest[id] == h.FirstIndex+uint64(h.Indexes[i]))
	}
	return WriteHint(r.fs, r.dir, m.Number, h)
}
