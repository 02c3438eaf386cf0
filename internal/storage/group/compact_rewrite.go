package group

import (
	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
)

// rewritten is a rewritten segment that is not in the manifest yet.
type rewritten struct {
	*rewrite
	dropped int64              // number of dropped versions
	forgot  int64              // number of dropped requests that are too old to be repeated
	held    heldBytes          // superseded versions that were kept, and the part of them that a hold keeps
	blobs   map[uuid.UUID]bool // blobs to which the dropped entries refer
}

// rewriter writes the new segment.
type rewriter struct {
	*compaction
	v     view // the segment that is being copied
	out   *rewritten
	valid func(offset int64) bool
	conf  uint64 // membership changes up to this index are in the manifest
}

// rewrite durably writes the entries that remain of a run into a new segment. It writes no segment if no entry
// remains and the manifest does not need the segment. After errNothingToDrop or errConfAhead, the caller must not
// replace the segments.
func (c *compaction) rewrite(run []view) (*rewritten, error) {
	r, err := c.editor.begin(run[0])
	if err != nil {
		return nil, err
	}
	w := &rewriter{compaction: c, out: &rewritten{rewrite: r, blobs: map[uuid.UUID]bool{}}}
	for _, v := range run[1:] {
		r.old = append(r.old, v.segment)
	}
	c.state.mu.RLock()
	w.conf = c.state.confIndex
	c.state.mu.RUnlock()
	next := r.next
	next.terms = c.termsOfRun(run)
	err = w.copyAll(run)
	if err == nil && next.rows.IsEmpty() && c.isRemovable(run) {
		c.editor.folder.discard(next)
		r.next = nil
		return w.out, nil
	}
	if err == nil {
		err = c.editor.finish(c.ctx, r, run[len(run)-1].m.LastIndex)
	}
	if err != nil {
		c.editor.folder.discard(next)
		return nil, err
	}
	c.state.mu.Lock()
	next.held = w.out.held
	c.state.mu.Unlock()
	return w.out, nil
}

// copyAll processes all frames of a run.
func (w *rewriter) copyAll(run []view) error {
	for _, v := range run {
		var err error
		w.v = v
		if w.valid, err = w.validOffsets(v); err != nil {
			return err
		}
		if err := w.copy(); err != nil {
			return err
		}
	}
	if len(run) == 1 && w.out.dropped == 0 && w.out.forgot == 0 && !w.out.next.rows.IsEmpty() {
		return errNothingToDrop
	}
	return nil
}

// copy processes all frames of a segment.
func (w *rewriter) copy() error {
	var failed error
	before := int64(0)
	err := w.v.frames(format.SegmentHeaderBytes, func(step *segio.FrameStep) bool {
		if failed = w.frame(step); failed != nil {
			return false
		}
		if read := step.Offset + step.Bytes; read-before >= paceBytes {
			failed = w.pace.wait(w.ctx, read-before)
			before = read
		}
		return failed == nil
	})
	if failed != nil {
		return failed
	}
	return err
}

// frame copies one frame to the new segment, or drops the frame.
func (w *rewriter) frame(step *segio.FrameStep) error {
	e := &step.Entry
	if step.Status != segio.FrameWhole {
		return w.damages.found(w.v.damage(w.group, step), e.ID)
	}
	if e.Kind == format.KindConf && e.Index > w.conf {
		return errConfAhead
	}
	if e.Kind == format.KindRequest {
		if !w.mayBeAsked(e) {
			w.out.forgot++
			return nil
		}
		_, err := w.out.to.Copy(step, false)
		return err
	}
	if !e.Kind.IsVersion() { // not needed, because Raft's first index will be above this entry's index
		return nil
	}
	from := w.v.place(step.Offset, step.Bytes, e.Kind == format.KindDelete)
	if !w.valid(step.Offset) {
		w.leave(e)
		return nil
	}
	fate := w.decide(e, from)
	switch fate {
	case isNewest, isForgotten:
	case isHeld:
		w.out.held.bytes += from.LengthBound()
		w.out.held.at += from.LengthBound()
	case isHistory:
		w.out.held.at += from.LengthBound()
	case isGone:
		w.out.history, w.out.obeysHold = w.held.through, !w.opts.IgnoreHold
	}
	if fate == isGone || fate == isForgotten {
		w.out.dropped++
		w.out.moves = append(w.out.moves, move{e.ID, e.Index, from, 0})
		w.leave(e)
		if !w.mayBeAsked(e) {
			return nil
		}
		r := format.RequestEntry(e)
		_, err := w.out.to.Append(&r)
		return err
	}
	to, err := w.out.to.Copy(step, fate == isNewest)
	w.out.moves = append(w.out.moves, move{e.ID, e.Index, from,
		w.out.next.place(to, step.Bytes, e.Kind == format.KindDelete)})
	return err
}

// leave records the blob of a dropped entry, so that the blob can be removed after the swap.
func (w *rewriter) leave(e *format.Entry) {
	if ref, _ := e.BlobRef(); ref != nil {
		w.out.blobs[ref.ID] = true
	}
}

// mayBeAsked reports whether a repeated write may still use an entry's request id. If so, compaction replaces the entry
// with a KindRequest instead of dropping it.
func (c *compaction) mayBeAsked(e *format.Entry) bool {
	return e.RequestID != [16]byte{} && e.Index > c.forgotten
}

// fate is the decision of a compaction about a version.
type fate int

// These are the possible fates. The fate isHistory means that Retention.Versions or an open snapshot keeps the version.
const (
	isGone      fate = iota // superseded
	isForgotten             // the record's newest version, but a delete that is no longer needed
	isNewest
	isHistory
	// isHeld means that the version is kept because it was superseded only recently, or by an entry above the hold.
	isHeld
)

// decide returns the fate of an applied version. A version that is superseded and not needed can never be needed
// again. The decision therefore still holds when the segments are swapped, even though the lock is released before
// then.
func (c *compaction) decide(e *format.Entry, loc index.Loc) fate {
	c.state.mu.RLock()
	newest, known := c.places.table.Get(e.ID)
	held := false
	for _, s := range c.state.snapshots {
		if s.held[e.ID] == loc {
			held = true
		}
	}
	c.state.mu.RUnlock()
	if newest == loc {
		if e.Kind == format.KindDelete && c.history.mayGo(e) && !c.mayBeAsked(e) {
			return isForgotten
		}
		return isNewest
	}
	if _, recent := c.history.recent[loc]; held || recent {
		return isHistory
	}
	if !known || !loc.Less(newest) { // no known version has superseded this one
		if e.Used {
			return isNewest
		}
		return isHistory
	}
	if c.held.keeps(e.ID, e.Index, loc, newest) {
		return isHeld
	}
	return isGone
}
