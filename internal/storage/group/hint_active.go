package group

import (
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
)

// The active segment's hint has the rows, terms and blobs of all entries before one of the segment's state frames. A
// load in Index residency takes them from the hint, and walks the segment from that state frame on. The load misses
// nothing, because the frame has the whole hard state, every entry before the frame was applied when the hint was
// written, and every membership change before the frame is in the manifest.
//
// The hint grows with the segment, piece by piece. A piece is written after the sync of the frames that it covers, and
// is not synced itself. After a kill the page cache still has the piece. After a power cut some pieces may be missing,
// torn or zeros, which their checksums reveal.
const (
	// hintPieceOf is how many bytes the segment must have after the end of its hint before a piece is written. Reading
	// fewer bytes takes no longer than opening a file. Writing a piece for this many bytes costs a hundredth of writing
	// the bytes themselves.
	hintPieceOf    = 256 << 10
	hintPieceShare = 32 // for small segments, the number is the segment size divided by hintPieceShare
)

// activeHint maintains the active segment's hint while the log is open. It writes and removes the hint's file. It reads
// the state, and the segment's rows and terms in memory. Guarded by writer.mu.
type activeHint struct {
	folder     *folder
	state      *state
	pieceBytes int64 // minimum number of bytes of the active segment that one piece covers
	// whileOpen means that the hint grows while the log is written to, and not only when the log is closed, so that a
	// start after a kill can use it.
	whileOpen bool

	frame format.StateFrame // the last state frame of the active segment
	// ready is the active segment's last state frame for which all entries before it are known to be applied.
	ready    format.StateFrame
	covered  format.HintPart // the part of the active segment that the hint covers
	tried    int64           // offset up to which writing a piece was last attempted, or 0 if it never was
	unsynced bool            // a piece was written, but not synced
}

// newActiveHint returns the activeHint of a log with the given options.
func newActiveHint(folder *folder, state *state, opts *Options) activeHint {
	return activeHint{
		folder: folder, state: state, pieceBytes: min(hintPieceOf, opts.SegmentBytes/hintPieceShare),
		whileOpen: opts.Residency == Index,
	}
}

// note records a batch that was written after the entry with index last. If the batch has a state frame, this frame
// ends at the offset end.
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

// grow writes the next piece if the hint does not cover at least pieceBytes of the segment yet. A piece for fewer bytes
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

// keep makes the hint durable. Closing the log calls it.
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

// activeHintHead returns the part of the active segment that its hint covers, for a plan in Index residency. It does
// not check the hint. It returns false if the load will not use the hint.
func activeHintHead(opts Options, s format.ManifestSegment, active *activeFile) (format.HintPart, bool) {
	if opts.Residency != Index {
		return format.HintPart{}, false
	}
	if h, ok := format.LastPiece(opts.FS, opts.Dir, s); ok && h.End < active.end {
		return h, true
	}
	return format.HintPart{}, false
}

// readActiveHint reads the active segment's hint. The argument end is the offset at which the data in the segment's
// file ends. It returns nil if there is no usable hint.
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

// walkBehind walks the active segment from the end of its hint on. It returns false if no state frame begins at the end
// of the hint, in which case the hint must not be used.
func (ld *loading) walkBehind(s *segment, h *format.ActiveHint, through int64) (*replay.Walk, bool, error) {
	w := replay.Behind(h, s.first)
	err := s.walkFileOn(w, h.End, through)
	return w, w.StateFirst == h.End, err
}
