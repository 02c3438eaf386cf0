package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"math"
	"slices"
	"sort"

	"sheaf.dev/sheaf/internal/index"
)

// checkOrder completes the ranges at the ends of segments, and checks the order from segment to segment.
func (v *verifier) checkOrder() {
	var last, term, commit uint64 // commit: as far as state records before had it
	var open []*badRange          // at the end of what was seen, with nothing behind yet
	for i, s := range v.scans {
		if first := s.manifest.FirstIndex; last >= first {
			v.cutBefore(i, commit)
			last, term = first-1, v.termBefore(i)
		}
		v.addFileEnds(s)
		v.report.Entries += s.entries
		for k := range s.bad {
			b := &s.bad[k]
			if b.before == 0 {
				b.before = max(last, s.manifest.FirstIndex-1)
			}
			if b.after == 0 {
				open = append(open, b)
			}
		}
		commit = max(commit, s.hard.Commit)
		if s.first == 0 {
			continue
		}
		unknown := len(s.bad) > 0 && s.bad[0].Offset < s.firstOffset
		for _, b := range open {
			if b.after == 0 && b.before < s.first {
				b.after, unknown = s.first, true
			}
		}
		v.checkBoundary(s, last, term, unknown)
		last, term, open = s.last, s.term, trailing(s)
	}
	for _, b := range open {
		// Nothing is behind: what may have been there is bounded by what is known to have been written.
		b.after = max(b.before, v.hard.Commit, v.mark.Index) + 1
		if b.Unreadable {
			b.after = max(b.after, b.before+uint64(b.Bytes/FrameHeaderBytes)+1)
		}
	}
	// Of a log that is open, more may be committed than is synced in its own file.
	if n := len(v.scans); n > 0 && len(open) == 0 && v.opts.ActiveBytes == 0 && v.hard.Commit > max(last, v.manifest.CompactedThrough) {
		s := v.scans[n-1]
		s.faults = append(s.faults, scanFault{
			offset: s.end, what: fmt.Sprintf("it ends with index %d, and %d was committed", last, v.hard.Commit), missingFirst: last + 1, missingLast: v.hard.Commit,
		})
	}
	for _, s := range v.scans {
		for k := range s.bad {
			// No entry follows in the log where the next segment begins at or below what stands before the bad bytes.
			if b := &s.bad[k]; s.manifest.Sealed() && (b.after == 0 || b.after > s.manifest.LastIndex+1) {
				b.after = s.manifest.LastIndex + 1
			}
		}
	}
}

// trailing is the ranges at the end of a segment.
func trailing(s *segmentScan) []*badRange {
	var open []*badRange
	for k := len(s.bad) - 1; k >= 0 && s.bad[k].after == 0; k-- {
		open = append(open, &s.bad[k])
	}
	return open
}

// checkBoundary checks the first entry of a segment against the last one before it.
func (v *verifier) checkBoundary(s *segmentScan, last, term uint64, unknown bool) {
	d := Damage{File: s.name, Offset: s.firstOffset}
	through := max(last, v.manifest.CompactedThrough)
	switch {
	case last != 0 && s.firstTerm < term:
		d.What = fmt.Sprintf("term %d behind term %d", s.firstTerm, term)
		v.damage(d)
	case s.first > through+1 && !unknown:
		d.What = "entries are missing before it"
		d.IDsUnknown, d.IndexFirst, d.IndexLast = true, through+1, s.first-1
		v.damage(d)
	}
}

// cutBefore makes void what the first index of segment i cuts off the segments before it. commit is as far as state records
// before it had it.
func (v *verifier) cutBefore(i int, commit uint64) {
	first := v.scans[i].manifest.FirstIndex
	if first <= commit {
		v.damage(Damage{File: v.scans[i].name, What: fmt.Sprintf("its first index %d is not above the commit %d before it", first, commit)})
	}
	for _, before := range v.scans[:i] {
		before.through = min(before.through, first-1)
	}
}

// termBefore is the term of the last entry before segment i that it does not make void; 0: there is none.
func (v *verifier) termBefore(i int) uint64 {
	at := v.scans[i].manifest.FirstIndex - 1
	for k := i - 1; k >= 0; k-- {
		if term := termAt(v.scans[k].terms, at); term != 0 {
			return term
		}
		at = min(at, v.scans[k].manifest.FirstIndex-1)
	}
	return 0
}

// addFileEnds adds what is missing at the end of a file, and what is too much.
func (v *verifier) addFileEnds(s *segmentScan) {
	want := s.manifest.Bytes
	if !s.manifest.Sealed() {
		// Room that begins below the mark is none: something was there.
		want = v.syncedOffset(s)
		if s.room > 0 && s.end < want {
			n := min(s.room, want-s.end)
			s.bad = append(s.bad, s.badRange(FrameStep{Status: FrameZeros, Offset: s.end, Bytes: n}, s.last))
			s.end += n
		}
	}
	switch { // a sealed file may be longer: nothing is done any more to one whose sync failed
	case s.fileBytes < 0:
		s.bad = append(s.bad, badRange{FrameStep: FrameStep{Status: frameMissing, Bytes: max(want, SegmentHeaderBytes)}})
	case s.fileBytes < want:
		s.bad = append(s.bad, s.badRange(FrameStep{Status: frameMissing, Offset: s.fileBytes, Bytes: want - s.fileBytes}, s.last))
	}
	if s.manifest.Sealed() && s.last > s.manifest.LastIndex {
		v.damage(Damage{File: s.name, What: fmt.Sprintf("it ends with index %d, the manifest says %d", s.last, s.manifest.LastIndex)})
	}
	if s.fileBytes >= 0 && s.header != nil {
		v.damage(Damage{File: s.name, Length: SegmentHeaderBytes, What: s.header.Error()})
	}
}

// frameMissing: the file ends before.
const frameMissing = FrameZeros + 1

// dropVoid drops what a later segment made void. Hints may still have it, so they are compared before.
func (v *verifier) dropVoid() {
	for _, s := range v.scans {
		if s.through != math.MaxUint64 {
			s.cut(s.through + 1)
		}
	}
}

// reportRanges turns what the scans found into damages.
func (v *verifier) reportRanges() {
	for _, s := range v.scans {
		for _, f := range s.faults {
			v.lost = v.lost || f.missingFirst != 0
			v.damage(Damage{File: s.name, Offset: f.offset, Length: f.bytes, What: f.what,
				IDsUnknown: f.missingFirst != 0, IndexFirst: f.missingFirst, IndexLast: f.missingLast})
		}
		for _, b := range s.bad {
			d := s.describe(b)
			v.lost = v.lost || d.IndexLast != 0
			v.damage(d)
		}
		for _, b := range s.blobs {
			if b.bad {
				v.lost = true
				v.damage(Damage{File: s.name, Offset: b.offset, Length: b.bytes, What: "reference to a blob is bad",
					IDs: []int64{b.id}, IndexFirst: b.index, IndexLast: b.index})
			}
		}
	}
}

// describe says what is known of a bad range: its ids from its header or from the hint, its indexes from its neighbours.
func (s *segmentScan) describe(b badRange) Damage {
	d := Damage{File: s.name, Offset: b.Offset, Length: b.Bytes, What: b.Status.String()}
	if b.Status == frameMissing {
		d.What = "the file ends before"
		if b.Offset == 0 {
			d.What = "the file is missing"
		}
	}
	if b.Unreadable {
		d.What += ", and the device cannot read it"
	}
	if b.Status == FrameContent {
		if b.Entry.Kind.isVersion() {
			d.IDs = []int64{b.Entry.ID}
		}
		d.IndexFirst, d.IndexLast = b.Entry.Index, b.Entry.Index
		return d
	}
	if b.after <= b.before+1 && b.after != 0 {
		return d // the neighbours follow one another: padding or a state record was hit
	}
	d.IndexFirst, d.IndexLast = b.before+1, b.after-1
	if s.hint == nil {
		d.IDsUnknown = true
		return d
	}
	for i, place := range s.hint.Places {
		if offset := index.Loc(place).Offset(); offset >= b.Offset && offset < b.Offset+b.Bytes {
			d.IDs = append(d.IDs, s.hint.IDs[i])
		}
	}
	slices.Sort(d.IDs)
	d.IDs = slices.Compact(d.IDs)
	return d
}

// checkHints checks the hints that checkHintEarly has left.
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

// checkHintEarly checks the hint of segment i behind its scan, while others are read, where nothing that is found later matters to it:
// not a cut by a later segment, nor what is bad.
func (v *verifier) checkHintEarly(i int, s *segmentScan) error {
	if !s.manifest.Sealed() || len(s.bad)+len(s.faults) > 0 || s.fileBytes < s.manifest.Bytes {
		return nil
	}
	for _, later := range v.manifest.Segments[i+1:] {
		if later.FirstIndex <= s.last {
			return nil
		}
	}
	return v.checkHint(s)
}

// checkHint reads a hint and compares it with its segment. One that is not right does not count any more.
func (v *verifier) checkHint(s *segmentScan) error {
	s.hintChecked = true
	name := HintName(s.manifest.Number)
	h, err := ReadHint(v.fs, v.dir, s.manifest)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	if err == nil {
		l := layoutHint(int64(len(h.IDs)), int64(len(h.Terms)), int64(len(h.Blobs)))
		v.count(l.end)
		err = s.compareHint(h)
	}
	if err != nil {
		v.damage(Damage{File: name, What: "hint does not count (the next load does without it): " + err.Error()})
		return v.ctx.Err()
	}
	s.hint = h
	return v.ctx.Err()
}

// checkActiveHint compares the hint of the active segment with what stands there. Pieces that are not whole are none: a
// power cut may have torn them, or they are being written.
func (v *verifier) checkActiveHint(s *segmentScan) error {
	h, err := readPieces(v.fs, v.dir, s.manifest)
	if h != nil {
		v.count(h.bytes)
		err = s.compareActiveHint(h)
	}
	if err != nil {
		v.damage(Damage{File: ActiveHintName, What: "hint does not count (the next load does without it): " + err.Error()})
	}
	return v.ctx.Err()
}

// compareActiveHint says where a hint of the active segment differs from what was read of it: it may tell of more.
func (s *segmentScan) compareActiveHint(h *activeHint) error {
	end := min(h.end, s.end)
	find := s.finder()
	seen := 0
	for i, place := range h.table.places {
		offset := index.Loc(place).Offset()
		if offset >= end {
			break
		}
		k, ok := find(offset)
		if !ok && len(s.bad) > 0 {
			continue // it was there, or bad bytes hide what may have made it void
		}
		if !ok || s.rows[k].id != h.table.ids[i] || s.rows[k].index != s.manifest.FirstIndex+uint64(h.table.indexes[i]) || s.rows[k].loc() != index.Loc(place) {
			return fmt.Errorf("row %d: there is no entry of id %d at offset %d", i, h.table.ids[i], offset)
		}
		seen++
	}
	if len(s.bad) > 0 {
		return nil
	}
	if needed := sort.Search(len(s.rows), func(i int) bool { return s.rows[i].loc().Offset() >= end }); seen != needed {
		return fmt.Errorf("%d of %d entries in front of offset %d have a row", seen, needed, end)
	}
	return nil
}

// compareHint says where a hint differs from the segment, and takes over its used flags where it does not. Rows that the
// segment does not have must lie in bad bytes.
func (s *segmentScan) compareHint(h *Hint) error {
	seen, needed := 0, 0 // of the rows that are not void
	for _, r := range s.rows {
		if r.index <= s.through {
			needed++
		}
	}
	flags := make([]bool, len(s.rows))
	find := s.finder()
	for i, place := range h.Places {
		offset := index.Loc(place).Offset()
		k, ok := find(offset)
		if !ok {
			if !s.isBad(offset) {
				return fmt.Errorf("row %d: there is no entry of id %d at offset %d", i, h.IDs[i], offset)
			}
			continue
		}
		r := s.rows[k]
		if r.id != h.IDs[i] || r.index != h.FirstIndex+uint64(h.Indexes[i]) || r.loc() != index.Loc(place) {
			return fmt.Errorf("row %d: id %d, index %d; the segment has id %d, index %d at offset %d", i, h.IDs[i],
				h.FirstIndex+uint64(h.Indexes[i]), r.id, r.index, offset)
		}
		if r.index <= s.through {
			seen++
		}
		flags[k] = h.IsUsed(i)
	}
	if seen != needed {
		return fmt.Errorf("%d of %d entries have a row", seen, needed)
	}
	if len(s.bad) == 0 {
		if err := s.compareHintRest(h); err != nil {
			return err
		}
	}
	for k, used := range flags {
		s.rows[k].place &^= rowUsed
		if used {
			s.rows[k].place |= rowUsed
		}
	}
	return nil
}

// finder gives a search for the row at an offset. Hints have their rows in no order that a search through all rows would be fast for:
// so it goes to the part of the file first, as many parts as rows.
func (s *segmentScan) finder() func(offset int64) (k int, found bool) {
	shift := 0
	for s.end>>shift > int64(len(s.rows)) {
		shift++
	}
	begin := make([]int32, s.end>>shift+2) // of each part: its first row
	part := 0
	for k, r := range s.rows {
		for ; int64(part) <= r.loc().Offset()>>shift; part++ {
			begin[part] = int32(k) //nolint:gosec // a segment has fewer
		}
	}
	for ; part < len(begin); part++ {
		begin[part] = int32(len(s.rows)) //nolint:gosec // see above
	}
	return func(offset int64) (int, bool) {
		at := offset >> shift
		if at < 0 || at+1 >= int64(len(begin)) {
			return 0, false
		}
		lo := int(begin[at])
		k, ok := slices.BinarySearchFunc(s.rows[lo:begin[at+1]], offset, func(r scanRow, offset int64) int {
			return int(r.loc().Offset() - offset)
		})
		return lo + k, ok
	}
}

// compareHintRest compares blobs, terms and commit time. What a later segment made void may be in the hint or not. Terms are
// compared at the first entry of each run and at the last entry, because they only rise; runs of a compacted segment may
// begin at entries that are dropped.
func (s *segmentScan) compareHintRest(h *Hint) error {
	var want, got []HintBlob
	for _, b := range s.blobs {
		if b.index <= s.through {
			want = append(want, HintBlob{Index: b.index, Ref: b.ref})
		}
	}
	for _, b := range h.Blobs {
		if b.Index <= s.through {
			got = append(got, b)
		}
	}
	sameTerms := s.last == 0 || s.last > s.through || h.Term(s.last) == s.term
	for _, run := range s.terms {
		sameTerms = sameTerms && (run.FirstIndex > s.through || h.Term(run.FirstIndex) == run.Term)
	}
	switch {
	case !slices.Equal(want, got):
		return errors.New("blobs differ from those of the segment")
	case !sameTerms:
		return fmt.Errorf("term runs %v differ from those of the segment, %v, last index %d, not void through %d", h.Terms, s.terms, s.last, s.through)
	case s.request != h.Requests && s.last <= s.through:
		return fmt.Errorf("%d remembered requests, the segment has %d", h.Requests, s.request)
	case s.commit != h.LastCommit && s.last <= s.through:
		return errors.New("commit time differs from that of the segment")
	}
	return nil
}

func (s *segmentScan) isBad(offset int64) bool {
	for _, b := range s.bad {
		if offset >= b.Offset && offset < b.Offset+b.Bytes {
			return true
		}
	}
	return false
}

// checkUsed finds flags that say "superseded" where nothing newer is: a load would lose that record.
func (v *verifier) checkUsed() {
	for _, row := range v.wrongUnused() {
		s, r := v.scans[row.scan], v.scans[row.scan].rows[row.row]
		file := s.name
		if s.hint != nil {
			file = HintName(s.manifest.Number)
		}
		v.damage(Damage{File: file, Offset: r.loc().Offset(), What: "used flag says superseded, but nothing newer is there",
			IDs: []int64{r.id}, IndexFirst: r.index, IndexLast: r.index})
	}
}

type rowPlace struct{ scan, row int }

// wrongUnused lists the rows with flag 0 that no newer row supersedes. Where bytes with unknown ids are bad, the newer one
// may have been there, and nothing can be said.
func (v *verifier) wrongUnused() []rowPlace {
	newest := make(map[int64]uint64) // of each id with a flag 0: the greatest index of all its rows
	for _, s := range v.scans {
		for _, r := range s.rows {
			if !r.used() {
				newest[r.id] = 0
			}
		}
	}
	if len(newest) == 0 {
		return nil
	}
	for _, s := range v.scans {
		for _, r := range s.rows {
			if n, ok := newest[r.id]; ok && r.index > n {
				newest[r.id] = r.index
			}
		}
	}
	for _, d := range v.report.Damages {
		if d.IDsUnknown && d.IndexLast > v.manifest.AcceptedThrough {
			return nil
		}
		for _, id := range d.IDs {
			delete(newest, id)
		}
	}
	var wrong []rowPlace
	for i, s := range v.scans {
		for k, r := range s.rows {
			if n, ok := newest[r.id]; ok && !r.used() && r.index == n {
				wrong = append(wrong, rowPlace{i, k})
			}
		}
	}
	return wrong
}
