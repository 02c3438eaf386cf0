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
	v     view
	out   *rewritten
	buf   []byte // not written yet: ends at out.bytes
	valid func(offset int64) bool
	conf  uint64 // membership changes up to this index are in the manifest
}

// rewrite writes what stays of a segment into a new one, durable when it returns. errNothingToDrop and errConfAhead: the
// segment stays as it is.
func (c *compaction) rewrite(v view) (*rewritten, error) {
	valid, err := c.validOffsets(v)
	if err != nil {
		return nil, err
	}
	c.wmu.Lock()
	next, err := c.createSegmentAt(v.first, v.ordinal^1)
	c.wmu.Unlock()
	if err != nil {
		return nil, noSpace(err)
	}
	w := &rewriter{compaction: c, v: v, valid: valid}
	w.out = &rewritten{rewrite: &rewrite{old: v.segment, next: next, bytes: SegmentHeaderBytes}, blobs: map[uuid.UUID]bool{}}
	c.mu.RLock()
	w.conf = c.state.confIndex
	next.terms = c.termsOf(v.segment)
	c.mu.RUnlock()
	err = w.copy()
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
	next.bytes, next.last = w.out.bytes, v.m.LastIndex
	next.rowCount.Store(int64(len(next.rows.ids)))
	return w.out, nil
}

// copy goes through all frames.
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
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return err
	case w.out.dropped == 0:
		return errNothingToDrop
	}
	return w.flush()
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
	w.out.next.rows.add(w.v.first, e, w.out.bytes, step.Bytes)
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
