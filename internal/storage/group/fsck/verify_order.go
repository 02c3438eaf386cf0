package fsck

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"math"
	"slices"
	"sort"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
)

// checkOrder checks the order of entries across segments.
func (v *verifier) checkOrder() {
	var last, term, commit uint64 // commit is the greatest commit index in the state records read so far
	for i, s := range v.scans {
		if first := s.manifest.FirstIndex; last >= first {
			v.truncateBefore(i, commit)
			last, term = first-1, v.termBefore(i)
		}
		v.report.Entries += s.Entries
		commit = max(commit, s.State.Commit)
		if s.fileBytes >= 0 && s.header != nil {
			v.damage(format.Damage{File: s.name, Length: format.SegmentHeaderBytes, What: s.header.Error()})
		}
		if s.manifest.Sealed() && s.Last > s.manifest.LastIndex {
			v.damage(format.Damage{File: s.name, What: fmt.Sprintf("it ends with index %d, the manifest says %d", s.Last,
				s.manifest.LastIndex)})
		}
		if s.first != 0 {
			v.checkBoundary(s, last, term)
			last, term = s.Last, s.Term
		}
		// The bad bytes after the segment's last entry may have held the entries up to its last index, so these do not count
		// as missing.
		if s.IsOpen() {
			last = max(last, s.manifest.LastIndex)
		}
	}
}

// checkBoundary compares a segment's first entry with the last entry of the earlier segments.
func (v *verifier) checkBoundary(s *segmentScan, last, term uint64) {
	d := format.Damage{File: s.name, Offset: s.firstOffset}
	through := max(last, v.manifest.CompactedThrough)
	switch {
	case last != 0 && s.firstTerm < term:
		d.What = fmt.Sprintf("term %d behind term %d", s.firstTerm, term)
		v.damage(d)
	case s.first > through+1 && (len(s.Bad) == 0 || s.Bad[0].Offset > s.firstOffset):
		d.What = "entries are missing before it"
		d.IDsUnknown, d.IndexFirst, d.IndexLast = true, through+1, s.first-1
		v.damage(d)
	}
}

// truncateBefore makes void all entries of earlier segments whose indexes are at or above the first index of segment
// i, because the log was truncated at that index. The argument commit is the greatest commit index in the state
// records before segment i.
func (v *verifier) truncateBefore(i int, commit uint64) {
	first := v.scans[i].manifest.FirstIndex
	if first <= commit {
		v.damage(format.Damage{File: v.scans[i].name, What: fmt.Sprintf(
			"its first index %d is not above the commit %d before it", first, commit)})
	}
	for _, before := range v.scans[:i] {
		before.through = min(before.through, first-1)
	}
}

// termBefore returns the term of the last entry before segment i that segment i has not made void, or 0 if there is
// no such entry.
func (v *verifier) termBefore(i int) uint64 {
	at := v.scans[i].manifest.FirstIndex - 1
	for k := i - 1; k >= 0; k-- {
		if term := format.TermAt(v.scans[k].Terms, at); term != 0 {
			return term
		}
		at = min(at, v.scans[k].manifest.FirstIndex-1)
	}
	return 0
}

// dropVoid drops the rows that a later segment made void. It must be called after the hints have been compared, because
// hints may still have these rows.
func (v *verifier) dropVoid() {
	for _, s := range v.scans {
		if s.through != math.MaxUint64 {
			s.Truncate(s.manifest.FirstIndex, s.through+1)
		}
	}
}

// reportRanges adds the bad ranges that the scans have found to the report, as damage.
func (v *verifier) reportRanges() {
	for _, s := range v.scans {
		v.lost = v.lost || s.hidden
		for _, d := range s.faults {
			v.lost = v.lost || d.IndexLast != 0
			v.damage(d)
		}
		for _, d := range v.damages(s) {
			v.lost = v.lost || d.IndexLast != 0
			v.damage(*d)
		}
		for _, row := range s.unusedRows(s.badRefs) {
			v.lost = true
			v.damage(format.Damage{File: s.name, Offset: s.offset(row), Length: index.Loc(s.Rows.Places[row]).LengthBound(),
				What: "reference to a blob is bad", IDs: []int64{s.Rows.IDs[row]}, IndexFirst: s.index(row),
				IndexLast: s.index(row)})
		}
	}
}

// checkHints checks the hints that checkHintEarly did not check.
func (v *verifier) checkHints() error {
	return v.each(len(v.scans), func(i int, _ []byte) error {
		switch s := v.scans[i]; {
		case s.hintChecked:
			return nil
		case s.manifest.Sealed():
			return v.checkHint(s)
		default:
			return v.checkActiveHint(s)
		}
	})
}

// checkHintEarly checks the hint of segment i right after its scan, while other segments are still being read. It
// does so only if the result cannot change later. This is the case if no later segment can truncate this one and
// nothing is damaged.
func (v *verifier) checkHintEarly(i int, s *segmentScan) error {
	if !s.manifest.Sealed() || len(s.Bad)+len(s.faults) > 0 || s.fileBytes < s.manifest.Bytes {
		return nil
	}
	for _, later := range v.manifest.Segments[i+1:] {
		if later.FirstIndex <= s.Last {
			return nil
		}
	}
	return v.checkHint(s)
}

// checkHint reads a hint and compares it with its segment. If the hint is wrong, checkHint reports damage, and the hint
// is not used.
func (v *verifier) checkHint(s *segmentScan) error {
	s.hintChecked = true
	name := format.HintName(s.manifest.Number)
	h, err := format.ReadHint(v.fs, v.dir, s.manifest)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	if err == nil {
		v.count(format.HintBytes(int64(len(h.IDs)), int64(len(h.Terms)), int64(len(h.Blobs))))
		err = s.compareHint(h)
	}
	if err != nil {
		v.damage(format.Damage{File: name, What: "hint does not count (the next load does without it): " + err.Error()})
		return v.ctx.Err()
	}
	s.hint = h
	return v.ctx.Err()
}

// checkActiveHint compares the active segment's hint with the segment. It ignores incomplete pieces, because a power
// cut may have torn them, or they may still be being written.
func (v *verifier) checkActiveHint(s *segmentScan) error {
	h, err := format.ReadPieces(v.fs, v.dir, s.manifest)
	if h != nil {
		v.count(h.Bytes)
		err = s.compareActiveHint(h)
	}
	if err != nil {
		v.damage(format.Damage{File: format.ActiveHintName, What: "hint does not count (the next load does without it): " +
			err.Error()})
	}
	return v.ctx.Err()
}

// compareRow returns an error if a row of a hint differs from the segment's row at the same offset.
func (s *segmentScan) compareRow(i int, id int64, at, place uint64, row int) error {
	if s.Rows.IDs[row] == id && s.index(row) == at && s.Rows.Places[row] == place {
		return nil
	}
	return fmt.Errorf("row %d: id %d, index %d; the segment has id %d, index %d at offset %d", i, id, at, s.Rows.IDs[row],
		s.index(row), s.offset(row))
}

// compareActiveHint returns an error if the active segment's hint differs from the part of the segment that was read.
// It ignores the hint's rows for frames after that part.
func (s *segmentScan) compareActiveHint(h *format.ActiveHint) error {
	end := min(h.End, s.end)
	find := s.finder()
	seen := 0
	for i, place := range h.Table.Places {
		offset := index.Loc(place).Offset()
		if offset >= end {
			break
		}
		row, ok := find(offset)
		switch {
		case ok:
			if err := s.compareRow(i, h.Table.IDs[i], s.manifest.FirstIndex+uint64(h.Table.Indexes[i]), place, row); err != nil {
				return err
			}
			seen++
		case len(s.Bad) == 0: // the entry may be in the bad bytes, or an entry in them may have made it void
			return fmt.Errorf("row %d: there is no entry of id %d at offset %d", i, h.Table.IDs[i], offset)
		}
	}
	if len(s.Bad) > 0 {
		return nil
	}
	if needed := sort.Search(len(s.Rows.IDs), func(row int) bool { return s.offset(row) >= end }); seen != needed {
		return fmt.Errorf("%d of %d entries in front of offset %d have a row", seen, needed, end)
	}
	return nil
}

// compareHint returns an error if a hint differs from the segment. Rows that only the hint has must lie in bad bytes.
// Entries without a row in the hint are ignored, because an entry in bad bytes has made them void. If there is no
// difference, the segment takes over the hint's used flags.
func (s *segmentScan) compareHint(h *format.Hint) error {
	used, told := make([]bool, len(s.Rows.IDs)), make([]bool, len(s.Rows.IDs))
	find := s.finder()
	for i, place := range h.Places {
		offset := index.Loc(place).Offset()
		row, ok := find(offset)
		if !ok {
			if !s.IsBad(offset) {
				return fmt.Errorf("row %d: there is no entry of id %d at offset %d", i, h.IDs[i], offset)
			}
			continue
		}
		if err := s.compareRow(i, h.IDs[i], h.FirstIndex+uint64(h.Indexes[i]), place, row); err != nil {
			return err
		}
		used[row], told[row] = h.IsUsed(i), true
	}
	var hidden []uint64
	for row, is := range told {
		if at := s.index(row); !is && at <= s.through {
			hidden = append(hidden, at)
		}
	}
	for _, o := range s.Others {
		if is := format.TermAt(h.Terms, o.Index); o.Index <= s.through && is != 0 && is != format.TermAt(s.Terms, o.Index) {
			hidden = append(hidden, o.Index)
		}
	}
	if len(s.Bad) == 0 {
		if len(hidden) > 0 {
			return fmt.Errorf("%d of %d entries have no row, or another term", len(hidden), len(told)+len(s.Others))
		}
		if err := s.compareHintRest(h); err != nil {
			return err
		}
	}
	s.unused = nil
	for row, is := range used {
		if !is {
			s.unused = append(s.unused, s.offset(row))
		}
	}
	s.hidden = len(hidden) > 0
	for _, at := range hidden {
		s.gone[at] = true
	}
	return nil
}

// finder returns a function that finds the row at an offset. A hint's rows are not sorted by offset, so each of them
// needs a search, and binary searches through all of the segment's rows would be slow. Therefore finder divides the
// file into about as many parts as there are rows, and each search covers only the rows of one part.
func (s *segmentScan) finder() func(offset int64) (row int, found bool) {
	shift := 0
	for s.end>>shift > int64(len(s.Rows.IDs)) {
		shift++
	}
	begin := make([]int32, s.end>>shift+2) // the first row of each part
	part := 0
	for row := range s.Rows.IDs {
		for ; int64(part) <= s.offset(row)>>shift; part++ {
			begin[part] = int32(row) // a segment has fewer than 1<<31 rows
		}
	}
	for ; part < len(begin); part++ {
		begin[part] = int32(len(s.Rows.IDs)) // a segment has fewer than 1<<31 rows
	}
	return func(offset int64) (int, bool) {
		at := offset >> shift
		if at < 0 || at+1 >= int64(len(begin)) {
			return 0, false
		}
		lo := int(begin[at])
		row, ok := slices.BinarySearchFunc(s.Rows.Places[lo:begin[at+1]], offset, func(place uint64, offset int64) int {
			return int(index.Loc(place).Offset() - offset)
		})
		return lo + row, ok
	}
}

// compareHintRest compares a hint's blobs, terms and commit time with those of the segment. The hint may or may not
// have entries that a later segment made void. Because terms never decrease, it is enough to compare the terms of each
// run's first entry and of the last entry. Runs of a compacted segment may begin at entries that compaction has
// dropped.
func (s *segmentScan) compareHintRest(h *format.Hint) error {
	lasting := func(blobs []format.HintBlob) []format.HintBlob {
		n := sort.Search(len(blobs), func(i int) bool { return blobs[i].Index > s.through })
		return blobs[:n]
	}
	sameTerms := s.Last < s.manifest.FirstIndex || s.Last > s.through || format.TermAt(h.Terms, s.Last) == s.Term
	for _, run := range s.Terms {
		sameTerms = sameTerms && (run.FirstIndex > s.through || format.TermAt(h.Terms, run.FirstIndex) == run.Term)
	}
	switch {
	case !slices.Equal(lasting(s.Rows.Blobs), lasting(h.Blobs)):
		return errors.New("blobs differ from those of the segment")
	case !sameTerms:
		return fmt.Errorf("term runs %v differ from those of the segment, %v, last index %d, not void through %d", h.Terms,
			s.Terms, s.Last, s.through)
	case s.Rows.Requests != h.Requests && s.Last <= s.through:
		return fmt.Errorf("%d remembered requests, the segment has %d", h.Requests, s.Rows.Requests)
	case s.Rows.LastCommit != h.LastCommit && s.Last <= s.through:
		return errors.New("commit time differs from that of the segment")
	}
	return nil
}

// checkUsed finds flags that say "superseded" although no newer version exists. With such a flag, a load would lose
// the entry's record. If there are bad bytes whose ids are not known, the flag may be right, because the newer
// version may have been in these bytes.
func (v *verifier) checkUsed() {
	// newest holds, for each id with a cleared flag, the greatest index among its entries.
	newest := make(map[int64]uint64)
	for _, s := range v.scans {
		for _, row := range s.unusedRows(s.unused) {
			newest[s.Rows.IDs[row]] = 0
		}
	}
	if len(newest) == 0 {
		return
	}
	for _, s := range v.scans {
		for row, id := range s.Rows.IDs {
			if n, ok := newest[id]; ok && s.counts(row) {
				newest[id] = max(n, s.index(row))
			}
		}
	}
	for _, d := range v.report.Damages {
		if d.IDsUnknown && d.IndexLast > v.manifest.AcceptedThrough {
			return
		}
		for _, id := range d.IDs {
			delete(newest, id)
		}
	}
	for _, s := range v.scans {
		for _, row := range s.unusedRows(s.unused) {
			id, at := s.Rows.IDs[row], s.index(row)
			if n, ok := newest[id]; !ok || at != n {
				continue
			}
			file := s.name
			if s.hint != nil {
				file = format.HintName(s.manifest.Number)
			}
			v.damage(format.Damage{File: file, Offset: s.offset(row),
				What: "used flag says superseded, but nothing newer is there",
				IDs:  []int64{id}, IndexFirst: at, IndexLast: at})
		}
	}
}
