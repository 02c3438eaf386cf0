package group

import (
	"cmp"
	"encoding/binary"
	"errors"
	iofs "io/fs"
	"maps"
	"math"
	"slices"

	"sheaf.dev/sheaf/internal/index"
)

// survey is what is known of a damaged segment.
type survey struct {
	kept  []keptFrame           // whole frames of entries that count, in order
	known map[uint64]knownEntry // what is known of entries that are not among them, by index
	told  map[uint64]knownEntry // what only the headers of bad frames tell, as long as nothing may have made them void
	lost  []IndexRange          // where entries are, or may be, missing; in order, apart
	rows  bool                  // known has every version of the segment, and terms are right: what is not among them is void
	// requests: there are entries of KindRequest, of which no row tells.
	requests bool
	terms    []TermRun             // where rows is true
	have     map[uint64]*keptFrame // kept, by index
}

// keptFrame is a whole frame.
type keptFrame struct {
	offset, bytes int64
	index, term   uint64
	id            int64
	version       bool
	tombstone     bool
	sure          bool // rows or terms say that it counts
}

// knownEntry is what header or hint tell of an entry whose frame is not whole.
type knownEntry struct {
	id        int64
	version   bool // a put or delete
	tombstone bool
	offset    int64   // of the frame, as a place has it; 0: not known
	length    int64   // of the frame, as a place has it; 0: not known
	term      uint64  // 0: not known
	crc       *uint32 // of the entry; nil: not known
}

// survey reads a sealed segment, and finds out what it lacks.
func (l *Log) survey(v view) (*survey, error) {
	s := &survey{known: make(map[uint64]knownEntry), told: make(map[uint64]knownEntry)}
	v.through = min(v.through, v.m.LastIndex) // the next segment may begin far behind, after an accepted loss
	l.mu.RLock()
	floor := l.state.floor
	l.mu.RUnlock()
	l.learnRows(s, v)
	var open []gap // bad bytes with no whole entry behind them yet
	gaps := []gap{}
	before, term, commit := v.first-1, uint64(0), uint64(0) // of what stands before
	closeGaps := func(after, afterTerm uint64) {
		for _, g := range open {
			g.after = after
			if mayHideCut(g.bytes, term, afterTerm) {
				s.doubt(v, g.commit+1, max(g.before, after-1))
			}
			gaps = append(gaps, g)
		}
		open = open[:0]
		term = afterTerm
	}
	err := l.frames(v, SegmentHeaderBytes, func(step *FrameStep) bool {
		e := &step.Entry
		switch {
		case step.Status == FrameWhole && e.Kind == KindState:
			if state, err := DecodeStateRecord(e.Data); err == nil {
				commit = max(commit, state.Commit)
			}
		case step.Status == FrameWhole:
			closeGaps(e.Index, e.Term)
			s.keep(step)
			before = e.Index
		case step.Status == FrameContent && e.Kind != KindState:
			closeGaps(e.Index, e.Term)
			s.cut(e.Index)
			s.learnHeader(e.Index, l.knownByHeader(v, step), step.Offset)
			s.lost = append(s.lost, IndexRange{e.Index, e.Index})
			before = e.Index
		case step.Status == FrameContent:
		default:
			open = append(open, gap{before: before, commit: commit, bytes: step.Bytes})
		}
		return true
	})
	if errors.Is(err, iofs.ErrNotExist) {
		err, open = nil, append(open, gap{before: before})
	}
	if err != nil {
		return nil, err
	}
	closeGaps(v.through+1, math.MaxUint64) // any term may follow
	s.finish(v, floor, gaps)
	return s, nil
}

// gap is bad bytes between two entries that are known by place.
type gap struct {
	before, after uint64
	commit        uint64 // of the state records in front of it
	bytes         int64
}

// learnRows takes what rows or hint know.
func (l *Log) learnRows(s *survey, v view) {
	add := func(id int64, at uint64, place uint64, term uint64) {
		if at <= v.through {
			loc := index.Loc(place)
			s.known[at] = knownEntry{id: id, version: true, tombstone: loc.Tombstone(), offset: loc.Offset(), length: loc.LengthBound(), term: term}
		}
	}
	if v.rows != nil {
		if v.incomplete {
			return
		}
		l.mu.RLock()
		s.rows, s.terms = true, l.termsOf(v.segment)
		l.mu.RUnlock()
		s.requests = v.rows.requests > 0
		for i, id := range v.rows.ids {
			add(id, v.first+uint64(v.rows.indexes[i]), v.rows.places[i], 0)
		}
		return
	}
	h, err := ReadHint(l.fs, l.dir, v.m)
	if err != nil {
		return // without it less is known
	}
	s.rows, s.terms, s.requests = true, h.Terms, h.Requests > 0
	for i, id := range h.IDs {
		at := h.FirstIndex + uint64(h.Indexes[i])
		add(id, at, h.Places[i], h.Term(at))
	}
}

// knownByHeader is what the whole header of a bad frame tells.
func (l *Log) knownByHeader(v view, step *FrameStep) knownEntry {
	e := &step.Entry
	k := knownEntry{id: e.ID, version: e.Kind.isVersion(), tombstone: e.Kind == KindDelete, term: e.Term} // the length is under the checksum
	var crc [4]byte
	if b, err := v.read(crc[:], step.Offset+atEntryCRC); err == nil && len(b) == len(crc) {
		n := binary.LittleEndian.Uint32(b)
		k.crc = &n
	}
	return k
}

// learnHeader takes what the header of a bad frame at an offset tells.
func (s *survey) learnHeader(at uint64, k knownEntry, offset int64) {
	row, ok := s.known[at]
	switch {
	case !ok:
		s.told[at] = k
	case row.offset == offset:
		s.known[at] = k
	} // it is void where the row is at another place
}

// doubt is for bad bytes that may hide a new leader's entries from an index on, and so an end of those that stand before.
func (s *survey) doubt(v view, from, through uint64) {
	s.lost = append(s.lost, IndexRange{max(v.first, from), min(through, v.through)})
	maps.DeleteFunc(s.told, func(at uint64, _ knownEntry) bool { return at >= from })
}

// keep adds a whole entry; what it makes void goes.
func (s *survey) keep(step *FrameStep) {
	e := &step.Entry
	s.cut(e.Index)
	s.kept = append(s.kept, keptFrame{offset: step.Offset, bytes: step.Bytes, index: e.Index, term: e.Term, id: e.ID,
		version: e.Kind.isVersion(), tombstone: e.Kind == KindDelete})
}

func (s *survey) cut(from uint64) {
	n := len(s.kept)
	for n > 0 && s.kept[n-1].index >= from {
		n--
	}
	s.kept = s.kept[:n]
	s.lost = slices.DeleteFunc(s.lost, func(r IndexRange) bool { return r.First >= from })
	maps.DeleteFunc(s.told, func(at uint64, _ knownEntry) bool { return at >= from })
}

// finish works out what is lost.
func (s *survey) finish(v view, floor uint64, gaps []gap) {
	for n := len(s.kept); n > 0 && s.kept[n-1].index > v.through; n-- {
		s.kept = s.kept[:n-1]
	}
	if s.rows {
		s.dropVoid()
	}
	s.have = make(map[uint64]*keptFrame, len(s.kept))
	for i := range s.kept {
		s.have[s.kept[i].index] = &s.kept[i]
	}
	if s.rows {
		s.findLost(v, floor)
		if s.requests {
			s.askRequests(gaps, floor)
		}
	} else {
		s.guessLost(v, gaps)
	}
	maps.Copy(s.known, s.told)
	for at := range s.known {
		if s.have[at] == nil {
			s.lost = append(s.lost, IndexRange{at, at})
		} else {
			delete(s.known, at)
		}
	}
	s.lost = slices.DeleteFunc(s.lost, func(r IndexRange) bool { return r.First > v.through || r.Last < v.first })
	slices.SortFunc(s.lost, func(a, b IndexRange) int { return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(b.Last, a.Last)) })
	s.lost = joinRanges(s.lost)
}

// dropVoid leaves out what is void, where what made it so was hit: a version without a row, or with one at another place; another entry, or
// the header of a bad frame, of another term.
func (s *survey) dropVoid() {
	otherTerm := func(at, term uint64) bool {
		is := termAt(s.terms, at)
		return is != 0 && is != term
	}
	s.kept = slices.DeleteFunc(s.kept, func(k keptFrame) bool {
		known, isVersion := s.known[k.index]
		return k.version != isVersion || isVersion && known.offset != k.offset || !isVersion && otherTerm(k.index, k.term)
	})
	for i := range s.kept {
		k := &s.kept[i]
		k.sure = k.version || termAt(s.terms, k.index) != 0
	}
	maps.DeleteFunc(s.told, func(at uint64, k knownEntry) bool { return k.version || otherTerm(at, k.term) })
}

// findLost works out what is lost where all versions are known: they, and each entry above Raft's floor. Another one below it matters to
// nobody.
func (s *survey) findLost(v view, floor uint64) {
	s.lost = s.lost[:0]
	for at := max(v.first, floor+1); at <= v.through; at++ {
		if s.have[at] == nil {
			s.lost = append(s.lost, IndexRange{at, at})
		}
	}
}

// askRequests adds the indexes at which remembered requests may have stood that bad bytes have hit.
func (s *survey) askRequests(gaps []gap, floor uint64) {
	for _, g := range gaps {
		if last := min(g.after-1, floor); g.bytes >= requestFrameBytes && g.before < last {
			s.lost = append(s.lost, IndexRange{g.before + 1, last})
		}
	}
}

// guessLost works out what may be lost where only the whole frames tell what was there.
func (s *survey) guessLost(v view, gaps []gap) {
	for _, g := range gaps {
		if g.after <= g.before { // the log was cut here: of what stands before, anything may be void
			s.lost = append(s.lost, IndexRange{v.first, v.through})
			continue
		}
		for at := g.before + 1; at < g.after && at <= v.through; at++ {
			if s.have[at] == nil {
				s.lost = append(s.lost, IndexRange{at, at})
			}
		}
	}
}

// joinRanges joins ranges, in order of First, that touch.
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

// term is that of an entry that is not among the whole ones; 0: not known.
func (s *survey) term(at uint64) uint64 {
	if k := s.known[at]; k.term != 0 {
		return k.term
	}
	return termAt(s.terms, at)
}

// ranges is what is to be fetched.
func (s *survey) ranges() []IndexRange {
	if s == nil {
		return nil
	}
	return s.lost
}

// replaceTerms puts other runs in the place of those from first to through.
func replaceTerms(runs, other []TermRun, first, through uint64) []TermRun {
	var out []TermRun
	add := func(r TermRun) {
		if n := len(out); n == 0 || out[n-1].Term < r.Term {
			out = append(out, r)
		}
	}
	behind := uint64(0) // term of what follows
	for _, r := range runs {
		if r.FirstIndex < first {
			add(r)
		}
		if r.FirstIndex <= through+1 {
			behind = r.Term
		}
	}
	for _, r := range other {
		add(r)
	}
	if behind != 0 {
		add(TermRun{FirstIndex: through + 1, Term: behind})
	}
	for _, r := range runs {
		if r.FirstIndex > through {
			add(r)
		}
	}
	return out
}
