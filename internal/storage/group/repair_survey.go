package group

import (
	"cmp"
	"encoding/binary"
	"errors"
	iofs "io/fs"
	"maps"
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
)

// survey describes a damaged segment. It holds the entries that are whole, and the entries that are missing or may be
// missing.
type survey struct {
	kept  []keptFrame           // whole frames of valid entries, in order
	known map[uint64]knownEntry // entries, by index, that are not in kept but are known from rows, the hint or headers
	// told holds, by index, the entries that are known only because the header of their damaged frame is valid. It omits
	// entries that may be void.
	told map[uint64]knownEntry
	lost []IndexRange // ranges in which entries are missing or may be missing; in order, and not adjacent
	// rows says whether the survey has used rows or a hint. If so, known contains every valid version of the segment, and
	// terms is complete. Any other version in the segment is then void.
	rows bool
	// requests means that the segment has entries of KindRequest, for which there are no rows.
	requests bool
	terms    []format.TermRun      // term runs of the segment; only if rows is true
	have     map[uint64]*keptFrame // the frames in kept, by the index of their entry
}

// keptFrame is a whole frame.
type keptFrame struct {
	knownEntry
	index uint64
	bytes int64
	sure  bool // whether rows or terms prove that the entry is not void
}

// knownEntry describes an entry. If the frame is not whole, the description comes from its header or from the hint.
type knownEntry struct {
	id        int64
	version   bool // a put or delete
	tombstone bool
	offset    int64 // offset of the frame; 0 if not known
	// length is an upper bound on the length of the frame, as in an index.Loc. It is 0 if the length is not known.
	length int64
	term   uint64  // 0 if not known
	crc    *uint32 // checksum of the entry; nil if not known
}

// survey reads a sealed segment, and determines which entries are missing.
func (r *reader) survey(v view) (*survey, error) {
	s := &survey{known: make(map[uint64]knownEntry), told: make(map[uint64]knownEntry)}
	// v.through follows from the first index of the next segment. After an accepted loss, that index is far above the last
	// index of this segment.
	v.through = min(v.through, v.m.LastIndex)
	r.state.mu.RLock()
	floor := r.state.floor
	r.state.mu.RUnlock()
	r.learnRows(s, v)
	w := replay.New(v.first, true)
	w.KeepOthers, w.Zeros = true, v.end
	headers := make(map[int64]knownEntry) // by the offset of their frame
	err := v.frames(format.SegmentHeaderBytes, func(step *segio.FrameStep) bool {
		switch e := &step.Entry; {
		case e.Kind == format.KindState:
		case step.Status == segio.FrameWhole:
			k := knownEntry{id: e.ID, version: e.Kind.IsVersion(), tombstone: e.Kind == format.KindDelete, offset: step.Offset,
				term: e.Term}
			s.kept = append(s.kept, keptFrame{knownEntry: k, index: e.Index, bytes: step.Bytes})
		case step.Status == segio.FrameContent:
			headers[step.Offset] = v.knownByHeader(step)
		}
		w.Take(step, v.first, v.end)
		return true
	})
	if errors.Is(err, iofs.ErrNotExist) {
		w.Unknown(format.SegmentHeaderBytes, v.end-format.SegmentHeaderBytes, "the file is gone", false)
	} else if err != nil {
		return nil, err
	}
	w.EndAt(v.end, v.end)
	w.Truncate(v.first, v.through+1)
	damages, _ := w.Explain(r.group, v.m, v.through, nil, !s.rows)
	s.finish(v, w, floor, headers, damages)
	return s, nil
}

// learnRows adds the versions and the terms in a segment's rows or hint to a survey.
func (r *reader) learnRows(s *survey, v view) {
	add := func(id int64, at uint64, place uint64, term uint64) {
		if at <= v.through {
			loc := index.Loc(place)
			s.known[at] = knownEntry{id: id, version: true, tombstone: loc.Tombstone(), offset: loc.Offset(),
				length: loc.LengthBound(), term: term}
		}
	}
	if v.rows != nil {
		if v.incomplete {
			return
		}
		r.state.mu.RLock()
		s.rows, s.terms = true, r.state.termsOf(v.segment)
		r.state.mu.RUnlock()
		s.requests = v.rows.Requests > 0
		for i, id := range v.rows.IDs {
			add(id, v.first+uint64(v.rows.Indexes[i]), v.rows.Places[i], 0)
		}
		return
	}
	h, err := format.ReadHint(r.hints.folder.fs, r.hints.folder.dir, v.m)
	if err != nil {
		return // without a hint, only whole frames and headers are known
	}
	s.rows, s.terms, s.requests = true, h.Terms, h.Requests > 0
	for i, id := range h.IDs {
		at := h.FirstIndex + uint64(h.Indexes[i])
		add(id, at, h.Places[i], format.TermAt(h.Terms, at))
	}
}

// knownByHeader describes an entry, using the valid header of a frame whose content is damaged.
func (v view) knownByHeader(step *segio.FrameStep) knownEntry {
	e := &step.Entry
	k := knownEntry{id: e.ID, version: e.Kind.IsVersion(), tombstone: e.Kind == format.KindDelete, term: e.Term}
	var crc [4]byte
	if b, err := v.read(crc[:], step.Offset+format.AtEntryCRC); err == nil && len(b) == len(crc) {
		n := binary.LittleEndian.Uint32(b)
		k.crc = &n
	}
	return k
}

// learnHeader adds an entry with the index `at` to a survey. The entry's frame, at the given offset, has damaged
// content, but a valid header, which describes the entry.
func (s *survey) learnHeader(at uint64, k knownEntry, offset int64) {
	row, ok := s.known[at]
	k.offset = offset
	switch {
	case !ok:
		s.told[at] = k
	case row.offset == offset:
		s.known[at] = k
	} // In all other cases the row has a different location, so this entry is void.
}

// finish completes a survey. It drops void entries, and determines which entries are lost.
func (s *survey) finish(v view, w *replay.Walk, floor uint64, headers map[int64]knownEntry, damages []*format.Damage) {
	for _, h := range w.Headers {
		mayBeVoid := func(d *format.Damage) bool { return d.MayVoid(format.SegmentName(v.number), h.Offset, h.Index) }
		if !slices.ContainsFunc(damages, mayBeVoid) {
			s.learnHeader(h.Index, headers[h.Offset], h.Offset)
		}
	}
	s.kept = slices.DeleteFunc(s.kept, func(k keptFrame) bool { return !w.Counts(k.version, k.offset) })
	if s.rows {
		s.dropVoid()
	}
	s.have = make(map[uint64]*keptFrame, len(s.kept))
	for i := range s.kept {
		s.have[s.kept[i].index] = &s.kept[i]
	}
	through := v.through
	if s.rows {
		// If all versions are known, all missing versions and all missing entries above Raft's floor are lost. Below the
		// floor, only versions and requests matter.
		for at := max(v.first, floor+1); at <= v.through; at++ {
			if s.have[at] == nil {
				s.lost = append(s.lost, IndexRange{at, at})
			}
		}
		// Below the floor, bad bytes may have held requests, for which there are no rows.
		through = floor
	}
	for _, d := range damages {
		if first, last := max(v.first, d.IndexFirst), min(through, d.IndexLast); first <= last &&
			(!s.rows || s.requests && d.Length >= format.RequestFrameBytes) {
			s.lost = append(s.lost, IndexRange{first, last})
		}
	}
	maps.Copy(s.known, s.told)
	for at := range s.known {
		if s.have[at] == nil {
			s.lost = append(s.lost, IndexRange{at, at})
		} else {
			delete(s.known, at)
		}
	}
	slices.SortFunc(s.lost, func(a, b IndexRange) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(b.Last, a.Last))
	})
	s.lost = joinRanges(s.lost)
}

// dropVoid drops void entries whose replacements are in bad bytes. The segment's rows and terms show which entries are
// void. In kept, a version is void unless a row has its index and its location. Any other entry in kept is void if a
// row has its index, or if its term differs from the known term at that index. In told, all versions are void, because
// no entry in told has a row. Its other entries are void if their term differs from the known term.
func (s *survey) dropVoid() {
	otherTerm := func(at, term uint64) bool {
		is := format.TermAt(s.terms, at)
		return is != 0 && is != term
	}
	s.kept = slices.DeleteFunc(s.kept, func(k keptFrame) bool {
		known, isVersion := s.known[k.index]
		return k.version != isVersion || isVersion && known.offset != k.offset || !isVersion && otherTerm(k.index, k.term)
	})
	for i := range s.kept {
		k := &s.kept[i]
		k.sure = k.version || format.TermAt(s.terms, k.index) != 0
	}
	maps.DeleteFunc(s.told, func(at uint64, k knownEntry) bool { return k.version || otherTerm(at, k.term) })
}

// joinRanges joins overlapping and adjacent ranges. The ranges must be sorted by First.
func joinRanges(ranges []IndexRange) []IndexRange {
	var out []IndexRange
	for _, r := range ranges {
		if n := len(out); n > 0 && r.First <= out[n-1].Last+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// term returns the term of an entry whose frame is not whole, or 0 if the term is not known.
func (s *survey) term(at uint64) uint64 {
	if k := s.known[at]; k.term != 0 {
		return k.term
	}
	return format.TermAt(s.terms, at)
}

// replaceTerms returns a copy of runs in which the part from index first to index through is replaced with the runs in
// other.
func replaceTerms(runs, other []format.TermRun, first, through uint64) []format.TermRun {
	out := slices.Clone(format.TruncateTerms(runs, first))
	for _, r := range other {
		out = format.AddTerm(out, r.FirstIndex, r.Term)
	}
	if behind := format.TermAt(runs, through+1); behind != 0 {
		out = format.AddTerm(out, through+1, behind)
	}
	for _, r := range runs {
		if r.FirstIndex > through {
			out = format.AddTerm(out, r.FirstIndex, r.Term)
		}
	}
	return out
}
