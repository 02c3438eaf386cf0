package group

import (
	"slices"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/group/replay"
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

// hintPieceBytes is the number of bytes of the active segment of which a piece tells at least.
func (l *Log) hintPieceBytes() int64 { return min(hintPieceOf, l.opts.SegmentBytes/hintPieceShare) }

// noteStates notes the state frame at the end of a batch that was written, if it has one. The caller holds writer.mu.
func (l *Log) noteStates(withState bool, batch []tailEntry) {
	w, last := &l.w, l.w.last
	if n := len(batch); n > 0 {
		if batch[0].entry.Index <= w.state.Last {
			w.state = format.StateFrame{} // entries in front of it are void now
		}
		last = batch[n-1].entry.Index
	}
	if !withState {
		return
	}
	if w.state.Offset != 0 && w.state.Last <= l.state.applied.Load() {
		w.hintable = w.state
	}
	w.state = format.StateFrame{Offset: w.end - format.FrameBytes(0, format.StateRecordBytes), Last: last}
}

// hintWhileOpen is hintActive where hints are of use to the next start. The caller holds writer.mu.
func (l *Log) hintWhileOpen() {
	if l.opts.Residency == Index {
		l.hintActive()
	}
}

// hintActive continues the hint of the active segment, where so many bytes have none yet that it pays. The caller holds
// writer.mu.
func (l *Log) hintActive() {
	w, s := &l.w, l.w.active
	at := w.hintable
	if w.state.Last <= l.state.applied.Load() && l.isSynced(w.state) {
		at = w.state
	}
	if at.Offset-max(w.hinted.End, w.hintTried, format.SegmentHeaderBytes) < l.hintPieceBytes() || !l.isSynced(at) || l.folder.unsure || w.suspect != nil || s.incomplete {
		return
	}
	l.state.mu.RLock()
	held := slices.ContainsFunc(l.state.confsAhead, func(conf uint64) bool { return conf <= at.Last })
	rows, terms := s.rows.Snapshot(), l.state.termsWithin(s.first, at.Last)
	l.state.mu.RUnlock()
	if held {
		return
	}
	w.hintTried = at.Offset
	p := format.MakePiece(s.manifest(), w.hinted, at, rows, terms)
	b := p.Encode()
	if err := format.WritePiece(l.folder.fs, l.folder.dir, w.hinted.Bytes, b); err != nil {
		l.logger.Warn("the hint of the active segment was not continued: the next load reads more of it", "group", l.opts.Identity.Name,
			"segment", s.number, "error", err)
		return
	}
	w.hinted = format.HintPart{End: p.End, Last: p.Last, Rows: p.RowsBefore + int64(len(p.Table.IDs)), Bytes: w.hinted.Bytes + int64(len(b))}
	w.hintDirty = true
}

// isSynced tells whether a state frame and all in front of it were synced. The caller holds writer.mu.
func (l *Log) isSynced(at format.StateFrame) bool {
	return at.Offset+format.FrameBytes(0, format.StateRecordBytes) <= l.state.syncedEnd
}

// keepHint makes the hint of the active segment durable, at a stop. The caller holds writer.mu.
func (l *Log) keepHint() {
	if !l.w.hintDirty {
		return
	}
	l.w.hintDirty = false
	if err := format.SyncPieces(l.folder.fs, l.folder.dir); err != nil {
		l.logger.Warn("the hint of the active segment may not outlast a power cut: the next load reads more of it then", "group", l.opts.Identity.Name, "error", err)
	}
}

// dropHint removes the hint of a segment that is active no more. The caller holds writer.mu.
func (l *Log) dropHint() {
	w := &l.w
	if w.hinted.Bytes > 0 {
		l.folder.remove(format.ActiveHintName)
	}
	w.state, w.hintable, w.hinted, w.hintTried, w.hintDirty = format.StateFrame{}, format.StateFrame{}, format.HintPart{}, 0, false
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
		ld.logger.Info("the hint of the active segment cannot be used: all of it is read instead", "group", ld.opts.Identity.Name,
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
