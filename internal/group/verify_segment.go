package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"math"
	"path"
	"sort"

	"sheaf.dev/sheaf/internal/index"
)

// segmentScan is what a segment's file holds.
type segmentScan struct {
	manifest  ManifestSegment
	name      string
	fileBytes int64 // -1: missing
	header    error // why the header is bad; nil: whole

	rows    []scanRow   // puts and deletes in order of the log, void ones left out
	others  []scanOther // the other entries, void ones left out
	blobs   []scanBlob  // what they refer to
	bad     []badRange  // in order of the file
	terms   []TermRun   // of all entries
	faults  []scanFault // entries whose order is wrong
	entries int64
	first   uint64 // index of the first entry; 0: none
	last    uint64 // index of the last entry; 0: none

	firstTerm   uint64
	firstOffset int64

	term    uint64 // of the last entry
	commit  int64  // greatest commit time
	request uint32 // number of entries of KindRequest
	conf    uint64 // index of the last membership change
	through uint64 // rows above are void, because a later segment cut the log
	synced  int64  // greatest synced offset of a state record
	syncedI uint64 // its index
	hard    StateRecord
	torn    int64 // bytes cut off as a torn tail
	dropped int64 // entries that repair gives up because of their blobs
	room    int64 // bytes of preallocated room behind end
	end     int64 // of the frames

	hint        *Hint // nil: none, or one that does not count
	hintChecked bool
}

// scanRow is one put or delete: index.Loc with ordinal 0, and above it what is to be remembered of it.
type scanRow struct {
	id    int64
	index uint64
	place uint64
}

const (
	rowUsed      = 1 << 63 // used flag: of the hint, where there is one that counts
	rowFrameUsed = 1 << 62 // used byte of the frame
	rowBad       = 1 << 61 // the content is bad
)

func (r scanRow) used() bool     { return r.place&rowUsed != 0 }
func (r scanRow) loc() index.Loc { return index.Loc(r.place &^ (rowUsed | rowFrameUsed | rowBad)) }

type scanOther struct {
	index  uint64
	offset int64
}

type scanBlob struct {
	index  uint64
	id     int64
	ref    BlobRef
	offset int64
	bytes  int64
	bad    bool // the reference itself is bad
}

type scanFault struct {
	offset, bytes int64
	what          string
	missingFirst  uint64 // entries that are missing; 0: none
	missingLast   uint64
}

// badRange is a range that is no whole frame.
type badRange struct {
	FrameStep
	before uint64 // index of the last entry before it in this segment; 0: none
	after  uint64 // of the first entry behind it in this segment; 0: none
	commit uint64 // as far as state records before it in this segment have it
	// Terms of the entries around it in this segment: 0: none is before; math.MaxUint64: none is behind.
	termBefore, termAfter uint64
}

// badRange is for bad bytes behind what was seen so far.
func (s *segmentScan) badRange(step FrameStep, before uint64) badRange {
	return badRange{FrameStep: step, before: before, commit: s.hard.Commit, termBefore: s.term, termAfter: math.MaxUint64}
}

func (v *verifier) scanSegments() error {
	v.scans = make([]*segmentScan, len(v.manifest.Segments))
	err := v.each(len(v.scans), func(i int, buffer []byte) error {
		m := v.manifest.Segments[i]
		s, err := v.scanSegment(m, 0, buffer)
		if err != nil {
			return err
		}
		if !m.Sealed() {
			if hole := s.hole(v.syncedOffset(s)); hole < s.end {
				torn := s.end - hole
				if s, err = v.scanSegment(m, hole, buffer); err != nil {
					return err
				}
				s.torn = torn
			}
		}
		v.scans[i] = s
		return v.checkHintEarly(i, s)
	})
	if err != nil {
		return err
	}
	v.hard = v.manifest.HardState
	for _, s := range v.scans {
		hard := s.hard
		if s.manifest.Sealed() {
			hard.Vote = 0 // sealing has put it into the manifest; an installed segment has the vote of another replica
		}
		v.hard.MergeHardState(hard)
		v.report.TornBytes += s.torn
	}
	return nil
}

// syncedOffset is the segment's synced mark.
func (v *verifier) syncedOffset(s *segmentScan) int64 {
	synced := max(SegmentHeaderBytes, s.synced)
	if v.mark.Segment == s.manifest.ID {
		synced = max(synced, v.mark.Offset)
	}
	if v.opts.ActiveBytes > 0 {
		synced = max(synced, v.opts.ActiveBytes)
	}
	return synced
}

// hole is where the log of an active segment ends: the first bytes at or above the synced mark that a torn write may have left.
func (s *segmentScan) hole(synced int64) int64 {
	for _, b := range s.bad {
		if b.Offset >= synced && !b.Unreadable {
			return b.Offset
		}
	}
	return s.end
}

// scanSegment walks a segment, to an offset where that is not 0.
func (v *verifier) scanSegment(m ManifestSegment, to int64, buffer []byte) (s *segmentScan, err error) {
	s = &segmentScan{manifest: m, name: SegmentName(m.Number), fileBytes: -1, through: math.MaxUint64}
	f, err := v.fs.OpenDirect(path.Join(v.dir, s.name))
	if errors.Is(err, iofs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if s.fileBytes, err = f.Size(); err != nil {
		return nil, err
	}
	end := s.fileBytes
	switch {
	case to > 0:
		end = to
	case m.Sealed():
		end = min(end, m.Bytes)
	case v.opts.ActiveBytes > 0:
		end = min(end, v.opts.ActiveBytes)
	}
	ahead := newReadAhead(countingFile{f, v}, end)
	defer ahead.close()
	r := NewFrameReader(ahead, m.ID, SegmentHeaderBytes, end)
	r.UseBuffer(buffer)
	header := r.fill(0, min(SegmentHeaderBytes, end))
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path.Join(v.dir, s.name), err)
	}
	s.header = CheckSegmentHeader(header[:min(SegmentHeaderBytes, end)], v.manifest.Identity, m)
	if errors.Is(s.header, ErrFormatVersion) {
		return nil, fmt.Errorf("%s: %w", path.Join(v.dir, s.name), s.header)
	}
	s.end = SegmentHeaderBytes
	for r.Next() {
		s.take(r.Step(), v.manifest, end)
	}
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path.Join(v.dir, s.name), err)
	}
	return s, nil
}

// take adds a step of the walk.
func (s *segmentScan) take(step *FrameStep, m *Manifest, end int64) {
	if step.Status == FrameZeros && step.Offset+step.Bytes == end && !s.manifest.Sealed() {
		s.room = step.Bytes // preallocated, unless it begins below the mark
		return
	}
	s.end = step.Offset + step.Bytes
	e := &step.Entry
	before := s.last
	isEntry := step.Status <= FrameContent && e.Kind != KindState
	if isEntry && s.takeOrder(step, m) {
		s.takeVersion(step)
	}
	switch {
	case step.Status == FrameWhole && isEntry:
		s.entries++
	case step.Status == FrameWhole:
		s.takeState(step)
	default:
		b := s.badRange(*step, before)
		b.after = e.Index
		s.bad = append(s.bad, b)
	}
}

// takeVersion adds the row of a put or delete, also of one whose content is bad: it is known that it is there.
func (s *segmentScan) takeVersion(step *FrameStep) {
	e := &step.Entry
	if !e.Kind.isVersion() {
		switch e.Kind {
		case KindConf:
			s.conf = e.Index
		case KindRequest:
			s.commit = max(s.commit, e.CommitTime)
			s.request++
		}
		s.others = append(s.others, scanOther{e.Index, step.Offset})
		return
	}
	s.commit = max(s.commit, e.CommitTime)
	place := uint64(index.MakeLoc(0, step.Offset, step.Bytes, e.Kind == KindDelete))
	if e.Used {
		place |= rowUsed | rowFrameUsed
	}
	if step.Status != FrameWhole {
		place |= rowBad
	}
	s.rows = append(s.rows, scanRow{id: e.ID, index: e.Index, place: place})
	if e.Codec == CodecBlob && step.Status == FrameWhole {
		ref, err := DecodeBlobRef(e.Data)
		s.blobs = append(s.blobs, scanBlob{index: e.Index, id: e.ID, ref: ref, offset: step.Offset, bytes: step.Bytes, bad: err != nil})
	}
}

func (s *segmentScan) takeState(step *FrameStep) {
	state, err := DecodeStateRecord(step.Entry.Data)
	if err != nil || state.SyncedOffset > step.Offset {
		s.faults = append(s.faults, scanFault{offset: step.Offset, bytes: step.Bytes, what: "state record is impossible"})
		return
	}
	s.hard.MergeHardState(state)
	if state.SyncedOffset > s.synced {
		s.synced, s.syncedI = state.SyncedOffset, state.SyncedIndex
	}
}

// takeOrder checks the place of an entry in the log; false where it cannot be there, and does not count. Only gaps above
// what was compacted are missing entries.
func (s *segmentScan) takeOrder(step *FrameStep, m *Manifest) bool {
	e := &step.Entry
	fault := scanFault{offset: step.Offset, bytes: step.Bytes}
	unknown := false // whether bad bytes lie before this entry
	for i := len(s.bad) - 1; i >= 0 && s.bad[i].after == 0; i-- {
		s.bad[i].after, s.bad[i].termAfter, unknown = e.Index, e.Term, true
	}
	if unknown {
		s.cutHidden(e)
	}
	switch {
	case e.Index < s.manifest.FirstIndex: // void ones may be above the last index
		fault.what = fmt.Sprintf("index %d is not one of this segment", e.Index)
	case s.last == 0:
	case e.Index <= s.last && e.Index <= s.hard.Commit:
		fault.what = fmt.Sprintf("index %d of term %d behind index %d of term %d, with a commit of %d", e.Index, e.Term, s.last, s.term, s.hard.Commit)
	case e.Term < termAt(s.terms, e.Index-1): // of what it makes void, the term may be lower or greater
		fault.what = fmt.Sprintf("index %d of term %d behind index %d of term %d: term %d behind term %d", e.Index, e.Term, s.last, s.term,
			e.Term, termAt(s.terms, e.Index-1))
	}
	if fault.what != "" {
		s.faults = append(s.faults, fault)
		return false
	}
	if s.last != 0 && e.Index > s.last+1 && e.Index > m.CompactedThrough+1 && !unknown {
		fault.what = "entries are missing before it"
		fault.missingFirst, fault.missingLast = max(s.last, m.CompactedThrough)+1, e.Index-1
		s.faults = append(s.faults, fault)
	}
	if s.last != 0 && e.Index <= s.last {
		s.cut(e.Index)
	}
	if s.first == 0 {
		s.first, s.firstTerm, s.firstOffset = e.Index, e.Term, step.Offset
	}
	if n := len(s.terms); n == 0 || s.terms[n-1].Term < e.Term {
		s.terms = append(s.terms, TermRun{FirstIndex: e.Index, Term: e.Term})
	}
	s.last, s.term = e.Index, e.Term
	return true
}

// cutHidden makes void what bad bytes before an entry must have made void, because in a log terms do not fall.
func (s *segmentScan) cutHidden(e *Entry) {
	n := len(s.terms)
	for n > 0 && s.terms[n-1].Term > e.Term {
		n--
	}
	if n == len(s.terms) || s.terms[n].FirstIndex >= e.Index {
		return // the entry makes it void itself
	}
	before := s.terms[n].FirstIndex - 1
	s.cut(before + 1)
	for i := len(s.bad) - 1; i >= 0 && s.bad[i].after == e.Index; i-- {
		s.bad[i].before = min(s.bad[i].before, before)
	}
	s.last, s.term = before, termAt(s.terms, before)
}

// termAt is the term of the last entry at or below an index; 0: there is none.
func termAt(runs []TermRun, at uint64) uint64 {
	n := sort.Search(len(runs), func(i int) bool { return runs[i].FirstIndex > at })
	if n == 0 {
		return 0
	}
	return runs[n-1].Term
}

// cut makes all entries from an index on void.
func (s *segmentScan) cut(index uint64) {
	for n := len(s.rows); n > 0 && s.rows[n-1].index >= index; n-- {
		s.rows = s.rows[:n-1]
	}
	for n := len(s.others); n > 0 && s.others[n-1].index >= index; n-- {
		s.others = s.others[:n-1]
	}
	for n := len(s.blobs); n > 0 && s.blobs[n-1].index >= index; n-- {
		s.blobs = s.blobs[:n-1]
	}
	for n := len(s.terms); n > 0 && s.terms[n-1].FirstIndex >= index; n-- {
		s.terms = s.terms[:n-1]
	}
}
