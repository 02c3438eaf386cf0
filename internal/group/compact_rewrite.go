package group

import (
	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/index"
)

// rewritten is a segment written anew, not in the manifest yet.
type rewritten struct {
	*rewrite
	dropped int64              // versions
	blobs   map[uuid.UUID]bool // that dropped entries refer to
}

// rewriter writes the new segment.
type rewriter struct {
	*compaction
	v     view // the one that is being copied
	out   *rewritten
	buf   []byte // not written yet: ends at out.bytes
	valid func(offset int64) bool
	conf  uint64 // membership changes up to this index are in the manifest
}

// rewrite writes what stays of a run into a new segment, durable when it returns; none where nothing stays and the manifest
// may do without. errNothingToDrop and errConfAhead: the segments stay as they are.
func (c *compaction) rewrite(run []view) (*rewritten, error) {
	c.wmu.Lock()
	next, err := c.createSegmentAt(run[0].first, run[0].ordinal^1)
	c.wmu.Unlock()
	if err != nil {
		return nil, noSpace(err)
	}
	w := &rewriter{compaction: c}
	w.out = &rewritten{rewrite: &rewrite{next: next, bytes: SegmentHeaderBytes}, blobs: map[uuid.UUID]bool{}}
	for _, v := range run {
		w.out.old = append(w.out.old, v.segment)
	}
	c.mu.RLock()
	w.conf = c.state.confIndex
	c.mu.RUnlock()
	next.terms = c.termsOfRun(run)
	err = w.copyAll(run)
	if err == nil && len(next.rows.ids) == 0 && c.isRemovable(run) {
		c.discardSegment(next)
		w.out.next, w.out.bytes = nil, 0
		return w.out, nil
	}
	if err == nil {
		err = noSpace(next.file.Load().Sync())
	}
	if err == nil {
		err = c.loadImage(c.ctx, next, w.out.bytes)
	}
	if err != nil {
		c.discardSegment(next)
		return nil, err
	}
	next.bytes, next.last = w.out.bytes, run[len(run)-1].m.LastIndex
	next.rowCount.Store(int64(len(next.rows.ids)))
	return w.out, nil
}

// copyAll goes through all frames of a run.
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
	if len(run) == 1 && w.out.dropped == 0 && len(w.out.next.rows.ids) > 0 {
		return errNothingToDrop
	}
	return w.flush()
}

// copy goes through all frames of a segment.
func (w *rewriter) copy() error {
	var failed error
	before := int64(0)
	err := w.frames(w.v, SegmentHeaderBytes, func(step *FrameStep) bool {
		if failed = w.frame(step); failed != nil {
			return false
		}
		if read := step.Offset + step.Bytes; read-before >= compactBufferBytes {
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

// frame copies one frame, or leaves it out.
func (w *rewriter) frame(step *FrameStep) error {
	e := &step.Entry
	if step.Status != FrameWhole {
		d := w.v.damage(w.Log.opts.Identity.Name, step)
		w.mu.Lock()
		w.addDamage(&d)
		w.mu.Unlock()
		return &DamageError{Damage: d, ID: e.ID}
	}
	if e.Kind == KindConf && e.Index > w.conf {
		return errConfAhead
	}
	if !e.Kind.isVersion() { // Raft's first index will be above it
		return nil
	}
	from := w.v.place(step.Offset, step.Bytes, e.Kind == KindDelete)
	if !w.valid(step.Offset) {
		w.leave(e)
		return nil
	}
	keep, used := w.keeps(e, from)
	if !keep {
		w.out.dropped++
		w.out.moves = append(w.out.moves, move{e.ID, e.Index, from, 0})
		w.leave(e)
		return nil
	}
	at := len(w.buf)
	w.buf = append(w.buf, step.Raw...)
	MoveFrame(w.buf[at:], w.out.next.id, w.out.bytes, used)
	w.out.next.rows.add(w.out.next.first, e, w.out.bytes, step.Bytes)
	w.out.moves = append(w.out.moves, move{e.ID, e.Index, from, w.out.next.place(w.out.bytes, step.Bytes, e.Kind == KindDelete)})
	w.out.bytes += step.Bytes
	if len(w.buf) >= compactBufferBytes {
		return w.flush()
	}
	return nil
}

// leave notes the blob of an entry that is left out.
func (w *rewriter) leave(e *Entry) {
	if e.Kind != KindPut || e.Codec != CodecBlob {
		return
	}
	if ref, err := DecodeBlobRef(e.Data); err == nil {
		w.out.blobs[ref.ID] = true
	}
}

func (w *rewriter) flush() error {
	_, err := w.out.next.file.Load().WriteAt(w.buf, w.out.bytes-int64(len(w.buf)))
	w.buf = w.buf[:0]
	return noSpace(err)
}

// keeps decides about an applied version. Once superseded and not needed it never is again, so no lock need be held until
// the swap.
func (c *compaction) keeps(e *Entry, loc index.Loc) (keep, used bool) {
	c.mu.RLock()
	newest, known := c.table.Get(e.ID)
	held := false
	for _, s := range c.state.snapshots {
		if _, ok := s.held[loc]; ok {
			held = true
		}
	}
	c.mu.RUnlock()
	if newest == loc {
		return e.Kind != KindDelete || !c.history.mayGo(e), true
	}
	if _, recent := c.history.recent[loc]; held || recent {
		return true, false
	}
	if !known || !loc.Less(newest) { // nothing that is known supersedes it
		return true, e.Used
	}
	age := c.now.UnixNano() - e.CommitTime
	if minAge := c.Log.opts.Retention.MinAge; minAge > 0 && age < int64(minAge) {
		return true, false
	}
	asked := e.RequestID != [16]byte{} && age < int64(requestWindowAge) && e.Index+requestWindowEntries > c.applied
	return asked, false
}
