package group

import (
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
)

// The hint of the active segment tells what stands in front of one of its state frames: rows, terms, blobs. A load in
// Index residency takes them from there, and walks the segment from that frame on. The frame has the whole hard
// state, every entry in front of it was applied when the hint was written, and every membership change in front of it
// is in the manifest: so nothing is missed.
//
// It grows with the segment, piece by piece. Pieces are written behind the sync of what they tell of, and not synced
// themselves: after a kill the page cache has them, and after a power cut some may be missing, torn or zeros, which
// their checksums tell.
const (
	// A piece is written where at least so many bytes have no hint yet: reading less costs no more than a file does,
	// and a piece of so many costs a hundredth of what their own write does.
	hintPieceOf    = 256 << 10
	hintPieceShare = 32 // of the size of a segment
)

// activeHint is that hint while the log is open. It writes and removes the hint's file, and looks at the state; of the
// segment it sees the rows and terms in memory. Guarded by writer.mu.
type activeHint struct {
	folder     *folder
	state      *state
	pieceBytes int64 // of the active segment, of which a piece tells at least
	whileOpen  bool  // it grows while the log is written to, and not at a stop alone: the next start makes use of it

	frame    format.StateFrame // the last one of the active segment
	ready    format.StateFrame // the last one of the active segment that was seen to have all entries before it applied
	told     format.HintPart   // of the active segment, what the hint tells of
	tried    int64             // up to where a piece was tried last; 0: not yet
	unsynced bool              // a piece was written that is not durable
}

// newActiveHint makes the hint of a log with these options.
func newActiveHint(folder *folder, state *state, opts *Options) activeHint {
	return activeHint{
		folder: folder, state: state, pieceBytes: min(hintPieceOf, opts.SegmentBytes/hintPieceShare),
		whileOpen: opts.Residency == Index,
	}
}

// note notes a batch that was written, behind the entry last. Where it has a state frame, that stands before end.
func (h *activeHint) note(batch []tailEntry, last uint64, end int64, withState bool) {
	if n := len(batch); n > 0 {
		if batch[0].entry.Index <= h.frame.Last {
			h.frame = format.StateFrame{} // entries in front of it are void now
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

// hintWhileOpen is growHint where that is of use to a start after a kill. The caller holds mu.
func (w *writer) hintWhileOpen() {
	if w.hint.whileOpen {
		w.growHint()
	}
}

// growHint continues the hint of the active segment, unless a failure has left something open. The caller holds mu.
func (w *writer) growHint() {
	if w.suspect == nil && !w.folder.unsure {
		w.hint.grow(w.active)
	}
}

// grow continues the hint, where so many bytes have none yet that it pays.
func (h *activeHint) grow(s *segment) {
	at := h.ready
	if h.frame.Last <= h.state.applied.Load() && h.isSynced(h.frame) {
		at = h.frame
	}
	if at.Offset-max(h.told.End, h.tried, format.SegmentHeaderBytes) < h.pieceBytes || !h.isSynced(at) || s.incomplete {
		return
	}
	h.state.mu.RLock()
	held := slices.ContainsFunc(h.state.confsAhead, func(conf uint64) bool { return conf <= at.Last })
	rows, terms := s.rows.Snapshot(), h.state.termsWithin(s.first, at.Last)
	h.state.mu.RUnlock()
	if held {
		return
	}
	h.tried = at.Offset
	p := format.MakePiece(s.manifest(), h.told, at, rows, terms)
	b := p.Encode()
	if err := format.WritePiece(h.folder.fs, h.folder.dir, h.told.Bytes, b); err != nil {
		h.folder.logger.Warn("the hint of the active segment was not continued: the next load reads more of it", "group",
			h.folder.identity.Name,
			"segment", s.number, "error", err)
		return
	}
	h.told = format.HintPart{End: p.End, Last: p.Last, Rows: p.RowsBefore + int64(len(p.Table.IDs)),
		Bytes: h.told.Bytes + int64(len(b))}
	h.unsynced = true
}

// isSynced tells whether a state frame and all in front of it were synced.
func (h *activeHint) isSynced(at format.StateFrame) bool {
	return at.Offset+format.FrameBytes(0, format.StateRecordBytes) <= h.state.syncedEnd
}

// keep makes the hint durable, at a stop.
func (h *activeHint) keep() {
	if !h.unsynced {
		return
	}
	h.unsynced = false
	if err := format.SyncPieces(h.folder.fs, h.folder.dir); err != nil {
		h.folder.logger.Warn(
			"the hint of the active segment may not outlast a power cut: the next load reads more of it then",
			"group", h.folder.identity.Name, "error", err)
	}
}

// drop removes the hint of a segment that is active no more.
func (h *activeHint) drop() {
	if h.told.Bytes > 0 {
		h.folder.remove(format.ActiveHintName)
	}
	h.frame, h.ready, h.told, h.tried, h.unsynced = format.StateFrame{}, format.StateFrame{}, format.HintPart{}, 0, false
}

// activeHintHead tells which part of the active segment its hint tells of, for a plan in Index residency: it is not
// checked. False: it will not be used.
func activeHintHead(opts Options, s format.ManifestSegment, active *activeFile) (format.HintPart, bool) {
	if opts.Residency != Index {
		return format.HintPart{}, false
	}
	if h, ok := format.LastPiece(opts.FS, opts.Dir, s); ok && h.End < active.end {
		return h, true
	}
	return format.HintPart{}, false
}

// readActiveHint reads the hint of the active segment, of which the file has data up to end; nil: there is none that
// can be used.
func (ld *loading) readActiveHint(s *segment, end int64) *format.ActiveHint {
	h, err := format.ReadPieces(ld.folder.fs, ld.folder.dir, s.manifest())
	if err != nil {
		ld.logger.Info("the hint of the active segment cannot be used: all of it is read instead", "group",
			ld.opts.Identity.Name,
			"segment", s.number, "error", err)
	}
	if h == nil || h.End >= end || len(h.Terms) == 0 {
		return nil
	}
	return h
}

// walkBehind walks the active segment from the end of its hint on. False: no state frame is there, so the hint must
// not be used.
func (ld *loading) walkBehind(s *segment, h *format.ActiveHint, through int64) (*replay.Walk, bool, error) {
	w := replay.Behind(h, s.first)
	err := s.walkFileOn(w, h.End, through)
	return w, w.StateFirst == h.End, err
}
