package group

import (
	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/index"
)

// rewritten is a segment written anew, not in the manifest yet.
type rewritten struct {
	*rewrite
	dropped int64              // versions
	forgot  int64              // remembered requests that nobody may ask for any more
	aged    aged               // what only Retention.MinAge keeps
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
	next, err := c.createSegmentAt(run[0].first, run[0].ordinal^1, true)
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
	if err == nil && next.rows.isEmpty() && c.isRemovable(run) {
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
	next.aged = w.out.aged
	next.bytes, next.last = w.out.bytes, run[len(run)-1].m.LastIndex
	next.counted(next.rows)
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
	w.out.aged.keep(w.Log.opts.Retention.MinAge)
	if len(run) == 1 && w.out.dropped == 0 && w.out.forgot == 0 && !w.out.next.rows.isEmpty() {
		w.mu.Lock()
		w.v.aged = w.out.aged
		w.mu.Unlock()
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
	if e.Kind == KindRequest {
		if !w.mayBeAsked(e) {
			w.out.forgot++
			return nil
		}
		at := len(w.buf)
		w.buf = append(w.buf, step.Raw...)
		MoveFrame(w.buf[at:], w.out.next.id, w.out.bytes, false)
		return w.remembered(e)
	}
	if !e.Kind.isVersion() { // Raft's first index will be above it
		return nil
	}
	from := w.v.place(step.Offset, step.Bytes, e.Kind == KindDelete)
	if !w.valid(step.Offset) {
		w.leave(e)
		return nil
	}
	fate := w.decide(e, from)
	if fate == isAged {
		w.out.aged.add(e, from.LengthBound())
	}
	if fate == isGone {
		w.out.dropped++
		w.out.moves = append(w.out.moves, move{e.ID, e.Index, from, 0})
		w.leave(e)
		if !w.mayBeAsked(e) {
			return nil
		}
		r := requestEntry(e)
		w.buf = AppendFrame(w.buf, w.out.next.id, w.out.bytes, &r)
		return w.remembered(&r)
	}
	at := len(w.buf)
	w.buf = append(w.buf, step.Raw...)
	MoveFrame(w.buf[at:], w.out.next.id, w.out.bytes, fate == isNewest)
	w.out.next.rows.add(w.out.next.first, e, w.out.bytes, step.Bytes)
	w.out.moves = append(w.out.moves, move{e.ID, e.Index, from, w.out.next.place(w.out.bytes, step.Bytes, e.Kind == KindDelete)})
	return w.wrote(step.Bytes)
}

// remembered counts a remembered request, whose frame is at the end of buf.
func (w *rewriter) remembered(e *Entry) error {
	w.out.next.rows.addRequest(e)
	return w.wrote(requestFrameBytes)
}

// wrote counts a frame at the end of buf.
func (w *rewriter) wrote(bytes int64) error {
	w.out.bytes += bytes
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

// mayBeAsked tells whether a repeated write may still ask for an entry by its request id: then a KindRequest is left of
// it.
func (c *compaction) mayBeAsked(e *Entry) bool {
	return e.RequestID != [16]byte{} && e.Index > c.forgotten
}

// fate is what becomes of a version.
type fate int

// The fates. History is what retention's number of versions keeps, or an open snapshot.
const (
	isGone fate = iota
	isNewest
	isHistory
	isAged // superseded, and too young to go
)

// decide decides about an applied version. Once superseded and not needed it never is again, so no lock need be held
// until the swap.
func (c *compaction) decide(e *Entry, loc index.Loc) fate {
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
		if e.Kind == KindDelete && c.history.mayGo(e) && !c.mayBeAsked(e) {
			return isGone
		}
		return isNewest
	}
	if _, recent := c.history.recent[loc]; held || recent {
		return isHistory
	}
	if !known || !loc.Less(newest) { // nothing that is known supersedes it
		if e.Used {
			return isNewest
		}
		return isHistory
	}
	age := c.now.UnixNano() - e.CommitTime
	if minAge := c.Log.opts.Retention.MinAge; minAge > 0 && age < int64(minAge) {
		return isAged
	}
	return isGone
}
