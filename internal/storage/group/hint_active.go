package group

import (
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
)

// The active segment's hint has the rows, terms and blobs of all entries before one of the segment's state frames. A
// load in Index residency takes them from the hint, and reads only the part of the segment that begins with that state
// frame. The load misses nothing, because the frame holds the whole hard state, all entries before it had been applied
// when the hint was written, and all membership changes before it are in the manifest.
//
// The hint grows with the segment, piece by piece. A piece is written after the sync of the frames that it covers, and
// is not synced itself. If the process is killed, the piece is still in the page cache. After a power cut, pieces may
// be missing, torn or zeroed, and their checksums reveal this.
const (
	// hintPieceOf is the minimum number of bytes that a new piece must cover. A piece that covers fewer bytes would not
	// pay off, because a start can read so few bytes of the segment as quickly as it can open the hint's file. Writing a
	// piece for this many bytes costs a hundredth of writing the bytes themselves.
	hintPieceOf = 256 << 10
	// For small segments, the minimum is the segment size divided by hintPieceShare.
	hintPieceShare = 32
)

// activeHint maintains the active segment's hint while the log is open. It writes and removes the hint's file. It
// only reads the log's state and the segment's rows and terms. Guarded by writer.mu.
type activeHint struct {
	folder     *folder
	state      *state
	pieceBytes int64 // minimum number of bytes of the active segment that one piece covers
	// whileOpen means that the hint grows while the log is written to, and not only when the log is closed, so that a
	// start after a kill can use it.
	whileOpen bool

	frame format.StateFrame // the last state frame of the active segment
	// ready is the latest state frame of the active segment for which it is known that all entries before the frame are
	// applied.
	ready   format.StateFrame
	covered format.HintPart // the part of the active segment that the hint covers
	// tried is the offset up to which a piece was last attempted, even if writing it failed. It is 0 if none was
	// attempted.
	tried    int64
	unsynced bool // a piece was written, but not synced
}

// newActiveHint returns the activeHint of a log with the given options.
func newActiveHint(folder *folder, state *state, opts *Options) activeHint {
	return activeHint{
		folder: folder, state: state, pieceBytes: min(hintPieceOf, opts.SegmentBytes/hintPieceShare),
		whileOpen: opts.Residency == Index,
	}
}

// note records that a batch was written. The argument last is the index of the last entry before the batch. If the
// batch includes a state frame, end is the offset at which that frame ends.
func (h *activeHint) note(batch []tailEntry, last uint64, end int64, withState bool) {
	if n := len(batch); n > 0 {
		if batch[0].entry.Index <= h.frame.Last {
			h.frame = format.StateFrame{} // the batch makes entries before the frame void
		}
		last = batch[n-1].entry.Index
	}
	if !withState {
		return
	}
	if h.frame.Offset != 0 && h.frame.Last <= h.state.applied.Load() {
		h.ready = h.frame
	}
	h.frame = format.StateFrame{Offset: end - format.FrameBytes(0, format.StateRecordBytes), Last: last}
}

// hintWhileOpen calls growHint if a start after a kill can use the hint. The caller holds mu.
func (w *writer) hintWhileOpen() {
	if w.hint.whileOpen {
		w.growHint()
	}
}

// growHint extends the active segment's hint. It does nothing while an earlier failure is not resolved. The caller
// holds mu.
func (w *writer) growHint() {
	if w.suspect == nil && !w.folder.unsure {
		w.hint.grow(w.active)
	}
}

// grow writes the next piece, but only if the piece would cover at least pieceBytes of the segment. A smaller piece
// is not worth a write.
func (h *activeHint) grow(s *segment) {
	at := h.ready
	if h.frame.Last <= h.state.applied.Load() && h.isSynced(h.frame) {
		at = h.frame
	}
	if at.Offset-max(h.covered.End, h.tried, format.SegmentHeaderBytes) < h.pieceBytes || !h.isSynced(at) || s.incomplete {
		return
	}
	h.state.mu.RLock()
	held := slices.ContainsFunc(h.state.confsAhead, func(conf uint64) bool { return conf <= at.Last })
	rows, terms := *s.rows, h.state.termsWithin(s.first, at.Last)
	h.state.mu.RUnlock()
	if held {
		return
	}
	h.tried = at.Offset
	p := format.MakePiece(s.manifest(), h.covered, at, &rows, terms)
	b := p.Encode()
	if err := format.WritePiece(h.folder.fs, h.folder.dir, h.covered.Bytes, b); err != nil {
		h.folder.logger.Warn("the hint of the active segment was not continued: the next load reads more of it",
			"segment", s.number, "error", err)
		return
	}
	h.covered = format.HintPart{End: p.End, Last: p.Last, Rows: p.RowsBefore + int64(len(p.Table.IDs)),
		Bytes: h.covered.Bytes + int64(len(b))}
	h.unsynced = true
}

// isSynced reports whether a state frame and all bytes before it are synced.
func (h *activeHint) isSynced(at format.StateFrame) bool {
	return at.Offset+format.FrameBytes(0, format.StateRecordBytes) <= h.state.syncedEnd
}

// keep makes the hint durable. It is called when the log is closed.
func (h *activeHint) keep() {
	if !h.unsynced {
		return
	}
	h.unsynced = false
	if err := format.SyncPieces(h.folder.fs, h.folder.dir); err != nil {
		h.folder.logger.Warn(
			"the hint of the active segment may not outlast a power cut: the next load reads more of it then",
			"error", err)
	}
}

// drop removes the hint of a segment that has been sealed or replaced.
func (h *activeHint) drop() {
	if h.covered.Bytes > 0 {
		h.folder.remove(format.ActiveHintName)
	}
	h.frame, h.ready, h.covered = format.StateFrame{}, format.StateFrame{}, format.HintPart{}
	h.tried, h.unsynced = 0, false
}

// activeHintHead returns the part of the active segment that its hint covers. PlanLoad uses this for a log in Index
// residency. activeHintHead does not check the hint. It returns false if a load would not use the hint.
func activeHintHead(opts Options, s format.ManifestSegment, active *activeFile) (format.HintPart, bool) {
	if opts.Residency != Index {
		return format.HintPart{}, false
	}
	if h, ok := format.LastPiece(opts.FS, opts.Dir, s); ok && h.End < active.end {
		return h, true
	}
	return format.HintPart{}, false
}

// readActiveHint reads the active segment's hint. It returns nil if there is no usable hint. The argument end is the
// offset at which the data in the segment's file ends.
func (ld *loading) readActiveHint(s *segment, end int64) *format.ActiveHint {
	h, err := format.ReadPieces(ld.folder.fs, ld.folder.dir, s.manifest())
	if err != nil {
		ld.folder.logger.Info("the hint of the active segment cannot be used: all of it is read instead",
			"segment", s.number, "error", err)
	}
	if h == nil || h.End >= end || len(h.Terms) == 0 {
		return nil
	}
	return h
}

// walkBehind walks the part of the active segment that follows the part that its hint covers. It returns false if this
// part does not begin with a state frame. In that case, the hint must not be used.
func (ld *loading) walkBehind(s *segment, h *format.ActiveHint, through int64) (*replay.Walk, bool, error) {
	w := replay.Behind(h, s.first)
	err := s.walkFileOn(w, h.End, through)
	return w, w.StateFirst == h.End, err
}
