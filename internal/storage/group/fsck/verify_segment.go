package fsck

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"math"
	"path"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
)

// segmentScan is the content of a segment's file. The embedded walk has the valid entries, and the ranges of bad bytes.
type segmentScan struct {
	manifest  format.ManifestSegment
	name      string
	fileBytes int64 // -1 if the file is missing
	header    error // why the header is invalid, or nil if it is valid

	*replay.Walk
	recovered *replay.Recovered // set only for an active segment that no log has open
	end       int64             // offset at which the last frame ends

	// faults lists frames that cannot be at their position, and gaps between frames where entries are missing.
	faults      []format.Damage
	badRefs     []int64 // offsets of the frames of puts whose reference to a blob is damaged
	frameUnused []int64 // offsets of frames whose used byte says "superseded"
	// unused holds the offsets of frames that are superseded according to the used flags of a valid hint.
	unused []int64

	first       uint64 // index of the first entry, or 0 if there is none
	firstTerm   uint64
	firstOffset int64

	through uint64 // entries above this index are void because a later segment truncated the log
	// gone holds the indexes of whole entries that are not valid, or that a repair gives up because of their blobs.
	gone    map[uint64]bool
	dropped int64 // number of entries that a repair gives up

	hint        *format.Hint // nil if there is no valid hint
	hintChecked bool
	// hidden means that bad bytes hide a truncation. The hint shows that entries of this segment, although they are
	// whole, were replaced by others, and the replacements are lost.
	hidden bool
}

// index returns the index of a row's entry.
func (s *segmentScan) index(row int) uint64 {
	return s.manifest.FirstIndex + uint64(s.Rows.Indexes[row])
}

// offset returns the offset of a row's frame.
func (s *segmentScan) offset(row int) int64 { return index.Loc(s.Rows.Places[row]).Offset() }

// counts reports whether a row's entry is valid.
func (s *segmentScan) counts(row int) bool { return !s.gone[s.index(row)] }

// rowOf returns the row for the entry with the given index, which must have a row.
func (s *segmentScan) rowOf(at uint64) int { return s.Rows.AtOrBelow(s.manifest.FirstIndex, at) }

func (v *verifier) scanSegments() error {
	v.scans = make([]*segmentScan, len(v.manifest.Segments))
	err := v.each(len(v.scans), func(i int, buffer []byte) error {
		s, err := v.scanSegment(v.manifest.Segments[i], buffer)
		if err != nil {
			return fmt.Errorf("%s: %w", path.Join(v.dir, s.name), err)
		}
		v.scans[i] = s
		return v.checkHintEarly(i, s)
	})
	if err != nil {
		return err
	}
	v.hard = v.manifest.HardState
	for _, s := range v.scans {
		hard := s.State
		if s.manifest.Sealed() {
			// Votes in sealed segments are ignored. The replica's own vote is also in the manifest, and an installed segment
			// holds the vote of another replica.
			hard.Vote = 0
		}
		v.hard.MergeHardState(hard)
		if s.recovered != nil {
			v.report.TornBytes += s.recovered.TornTailBytes
		}
	}
	return nil
}

// scanSegment walks a segment. It returns the scan even if it returns an error.
func (v *verifier) scanSegment(m format.ManifestSegment, buffer []byte) (s *segmentScan, err error) {
	s = &segmentScan{manifest: m, name: format.SegmentName(m.Number), fileBytes: -1, through: math.MaxUint64,
		gone: make(map[uint64]bool)}
	bytes := m.Bytes // expected file size, or 0 if it is not known
	if !m.Sealed() {
		bytes = v.opts.ActiveBytes
	}
	f, err := v.fs.OpenDirect(path.Join(v.dir, s.name))
	if errors.Is(err, iofs.ErrNotExist) {
		s.begin(v.manifest)
		s.Unknown(0, max(bytes, format.SegmentHeaderBytes), "the file is missing", false)
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if s.fileBytes, err = f.Size(); err != nil {
		return s, err
	}
	if err := s.readHeader(countingFile{f, v}, v.manifest, buffer); err != nil {
		return s, err
	}
	walk := func(through int64) (*replay.Walk, error) {
		s.begin(v.manifest)
		ahead := segio.NewReadAhead(countingFile{f, v}, through)
		defer ahead.Close()
		r := segio.NewFrameReader(ahead, m.ID, format.SegmentHeaderBytes, through)
		r.UseBuffer(buffer)
		return s.Walk, s.GoOn(r, m.FirstIndex, through)
	}
	if bytes > 0 {
		s.end = min(s.fileBytes, bytes)
		if _, err = walk(s.end); err == nil {
			s.EndAt(s.end, bytes)
		}
		return s, err
	}
	if s.recovered, err = replay.Recover(v.report.Group, v.manifest, m, s.fileBytes, v.mark, walk); err == nil {
		s.end = s.recovered.End
	}
	return s, err
}

// readHeader reads and checks the header in a segment's file.
func (s *segmentScan) readHeader(f countingFile, m *format.Manifest, buffer []byte) error {
	w := segio.OpenWindow(f, 0, min(format.SegmentHeaderBytes, s.fileBytes))
	w.UseBuffer(buffer)
	header := w.Fill(0, min(format.SegmentHeaderBytes, s.fileBytes))
	if w.Err() != nil {
		return w.Err()
	}
	if s.header = format.CheckSegmentHeader(header, m.Identity, s.manifest); errors.Is(s.header, format.ErrFormatVersion) {
		return s.header
	}
	return nil
}

// begin starts walking the segment.
func (s *segmentScan) begin(m *format.Manifest) {
	if s.Walk = replay.New(s.manifest.FirstIndex, true); !s.manifest.Sealed() {
		s.Walk = replay.NewActive(s.manifest.FirstIndex)
	}
	s.KeepOthers = true
	s.faults, s.badRefs, s.frameUnused, s.first = nil, nil, nil, 0
	s.Check = func(step *segio.FrameStep) bool {
		if step.Status > segio.FrameContent {
			return true
		}
		if step.Entry.Kind == format.KindState {
			return step.Status != segio.FrameWhole || s.checkState(step)
		}
		if !s.checkOrder(step, m) {
			return false
		}
		s.take(step)
		return true
	}
}

// take records facts about an entry that the walk itself does not record.
func (s *segmentScan) take(step *segio.FrameStep) {
	e := &step.Entry
	if s.first == 0 {
		s.first, s.firstTerm, s.firstOffset = e.Index, e.Term, step.Offset
	}
	if !e.Kind.IsVersion() || step.Status != segio.FrameWhole {
		return
	}
	if !e.Used {
		s.frameUnused = append(s.frameUnused, step.Offset)
		s.unused = s.frameUnused
	}
	if _, err := e.BlobRef(); err != nil {
		s.badRefs = append(s.badRefs, step.Offset)
	}
}

func (s *segmentScan) checkState(step *segio.FrameStep) bool {
	state, err := format.DecodeStateRecord(step.Entry.Data)
	if err != nil || state.SyncedOffset > step.Offset {
		s.faults = append(s.faults, format.Damage{File: s.name, Offset: step.Offset, Length: step.Bytes,
			What: "state record is impossible"})
		return false
	}
	return true
}

// checkOrder checks an entry's position in the log. It returns false if the entry cannot be at this position, and is
// therefore not valid. Only above the compacted index does a gap between indexes mean that entries are missing.
func (s *segmentScan) checkOrder(step *segio.FrameStep, m *format.Manifest) bool {
	e := &step.Entry
	fault := format.Damage{File: s.name, Offset: step.Offset, Length: step.Bytes}
	none := s.Last < s.manifest.FirstIndex
	before := format.TermAt(s.Terms, e.Index-1)
	switch {
	// The manifest's last index is not checked, because a void entry may have a greater index.
	case e.Index < s.manifest.FirstIndex:
		fault.What = fmt.Sprintf("index %d is not one of this segment", e.Index)
	case none:
	case e.Index <= s.Last && e.Index <= s.State.Commit:
		fault.What = fmt.Sprintf("index %d of term %d behind index %d of term %d, with a commit of %d", e.Index, e.Term,
			s.Last, s.Term, s.State.Commit)
	// Terms never decrease, except where bad bytes may hide a truncation. Void entries are not compared.
	case e.Term < before && !s.IsOpen():
		fault.What = fmt.Sprintf("index %d of term %d behind index %d of term %d: term %d behind term %d", e.Index, e.Term,
			s.Last, s.Term, e.Term, before)
	}
	if fault.What != "" {
		s.faults = append(s.faults, fault)
		return false
	}
	if !none && !s.Gapless && e.Index > s.Last+1 && e.Index > m.CompactedThrough+1 && !s.IsOpen() {
		fault.What = "entries are missing before it"
		fault.IDsUnknown, fault.IndexFirst, fault.IndexLast = true, max(s.Last, m.CompactedThrough)+1, e.Index-1
		s.faults = append(s.faults, fault)
	}
	return true
}

// damages returns the damage that follows from a segment's bad bytes.
func (v *verifier) damages(s *segmentScan) []*format.Damage {
	if s.recovered != nil {
		return s.recovered.Damages
	}
	last := s.manifest.LastIndex
	if !s.manifest.Sealed() {
		last = max(s.Last, v.mark.Index)
	}
	out, _ := s.Explain(v.report.Group, s.manifest, last, s.hint, v.manifest.MayBeTruncated())
	return out
}

// unusedRows returns the rows at the given offsets whose entries are valid. The offsets must be sorted.
func (s *segmentScan) unusedRows(offsets []int64) (rows []int) {
	for _, offset := range offsets {
		if row := s.Rows.AtOffset(offset); row >= 0 && s.counts(row) {
			rows = append(rows, row)
		}
	}
	return rows
}
