package group

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"math"
	"path"
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/index"
)

// lossJump is how far new indexes jump ahead of all that a client may have seen (rule 8).
const lossJump = 1 << 32

// acceptance is one AcceptLoss under way.
type acceptance struct {
	*Log
	damages  []Damage
	blobs    map[uuid.UUID]bool  // bad ones
	replaced map[uint64]*rewrite // by number of the segment replaced
	jump     uint64              // the last index that is never used
	through  uint64              // the greatest index that an entry has or may have had
}

// AcceptLoss declares the known damage lost: the damaged ranges are copied aside into quarantine, segments with bad bytes
// are replaced by ones without, reads answer from what is left, and new indexes jump ahead by 2^32 (rule 8). Every entry
// that the log holds becomes applied. It changes the log under Raft: no Raft node may use the log meanwhile, and the next
// one starts from InitialState. Open scans end with ErrCursorExpired. Nothing happens where there is no damage.
func (l *Log) AcceptLoss() ([]Damage, error) {
	l.compacting.Lock()
	defer l.compacting.Unlock()
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if err := l.usable(); err != nil {
		return nil, err
	}
	a := &acceptance{Log: l, blobs: make(map[uuid.UUID]bool), replaced: make(map[uint64]*rewrite)}
	a.damages = l.Stats().Damages
	if len(a.damages) == 0 {
		return nil, nil
	}
	if n := len(votersOf(l.state.conf)); n > 1 {
		return nil, fmt.Errorf("group %s: accept loss: it has %d voters, and what is lost here comes from the others", l.opts.Identity.Name, n)
	}
	if err := a.run(); err != nil {
		return nil, fmt.Errorf("group %s: accept loss: %w", l.opts.Identity.Name, err)
	}
	return a.damages, nil
}

func (a *acceptance) run() error {
	if err := a.applyTail(); err != nil {
		return err
	}
	if err := a.seal(); err != nil {
		return err
	}
	a.hints.Wait() // the hints of now are read and replaced
	a.through = a.state.last
	for _, d := range a.damages {
		a.through = max(a.through, d.IndexLast)
		if id, ok := ParseBlobName(d.File); ok {
			a.blobs[id] = true
		}
		if err := a.quarantine(d); err != nil {
			return fmt.Errorf("quarantine of %s: %w", d.File, err)
		}
	}
	if a.through > math.MaxUint64-2*lossJump {
		return errors.New("indexes are used up")
	}
	a.jump = a.through + lossJump
	err := a.rewriteDamaged()
	if err == nil {
		err = a.forgetUsedFlags()
	}
	if err == nil {
		err = a.commit()
	}
	if err != nil {
		for _, r := range a.replaced {
			a.discardUnlessListed(r.next)
		}
		return err
	}
	a.adopt()
	return a.reindex()
}

// applyTail applies all entries: with a single copy, what the log holds is what there is.
func (a *acceptance) applyTail() error {
	t := a.state.tail
	for i := range t.entries {
		if t.entries[i].entry.Index > a.applied.Load() {
			if err := a.applyChunk(t.entries[i : i+1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// quarantine copies a bad range aside.
func (a *acceptance) quarantine(d Damage) (err error) {
	src, err := a.fs.Open(path.Join(a.dir, d.File))
	if errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	dir := path.Join(a.dir, QuarantineName)
	if err := a.fs.MkdirAll(dir); err != nil {
		return noSpace(err)
	}
	dst, err := createAnew(a.fs, path.Join(dir, fmt.Sprintf("%s@%d", d.File, d.Offset)))
	if err != nil {
		return noSpace(err)
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	buf := make([]byte, 64<<10)
	for at := int64(0); at < d.Length; {
		part := buf[:min(int64(len(buf)), d.Length-at)]
		n, err := src.ReadAt(part, d.Offset+at)
		if err != nil && !errors.Is(err, io.EOF) {
			a.logger.Warn("bytes cannot be read and are not in quarantine", "file", d.File, "offset", d.Offset+at, "error", err)
			n = len(part) // zeros or what was read: a place for each byte
		}
		if n == 0 {
			break
		}
		if _, err := dst.WriteAt(part[:n], at); err != nil {
			return noSpace(err)
		}
		at += int64(n)
	}
	if err := dst.Sync(); err != nil {
		return noSpace(err)
	}
	return a.fs.SyncDir(dir)
}

// rewriteDamaged makes segments without bad bytes, and without entries whose blob is bad.
func (a *acceptance) rewriteDamaged() error {
	files := make(map[string]bool)
	for _, d := range a.damages {
		files[d.File] = true
	}
	views := a.views(0, math.MaxUint64)
	defer unpinAll(views)
	for _, v := range views {
		if v.active || !files[SegmentName(v.number)] && !a.refersToBad(v) {
			continue
		}
		r, err := a.rewrite(v)
		if err != nil {
			return fmt.Errorf("rewrite %s: %w", SegmentName(v.number), err)
		}
		a.replaced[v.number] = r
	}
	return nil
}

// refersToBad tells whether an entry of a segment refers to a bad blob.
func (a *acceptance) refersToBad(v view) bool {
	if len(a.blobs) == 0 {
		return false
	}
	var refs []HintBlob
	if v.rows != nil {
		refs = v.rows.blobs
	} else if h, err := a.hintOf(v); err == nil {
		refs = h.Blobs
	} else {
		return true
	}
	return slices.ContainsFunc(refs, func(b HintBlob) bool { return a.blobs[b.Ref.ID] })
}

// rewrite copies what is whole into a new segment, durable when it returns.
func (a *acceptance) rewrite(v view) (*rewrite, error) {
	next, err := a.createSegmentAt(v.first, v.ordinal^1, true)
	if err != nil {
		return nil, err
	}
	r := &rewrite{old: []*segment{v.segment}, next: next, bytes: SegmentHeaderBytes}
	var buf []byte
	flush := func() error {
		_, err := next.file.Load().WriteAt(buf, r.bytes-int64(len(buf)))
		buf = buf[:0]
		return noSpace(err)
	}
	var failed error
	err = a.frames(v, SegmentHeaderBytes, func(step *FrameStep) bool {
		e := &step.Entry
		if step.Status != FrameWhole || e.Kind == KindState || e.Index > v.through || !a.isValid(e) || a.isBadBlob(e) || a.isDoubtful(v, step) {
			return true
		}
		at := len(buf)
		buf = append(buf, step.Raw...)
		MoveFrame(buf[at:], next.id, r.bytes, true)
		switch {
		case e.Kind == KindRequest:
			next.rows.addRequest(e)
		case e.Kind.isVersion():
			tombstone := e.Kind == KindDelete
			next.rows.cut(next.first, e.Index) // it was made void, and came again: it is copied twice
			next.rows.add(next.first, e, r.bytes, step.Bytes)
			r.moves = append(r.moves, move{e.ID, e.Index, v.place(step.Offset, step.Bytes, tombstone), next.place(r.bytes, step.Bytes, tombstone)})
		}
		r.bytes += step.Bytes
		if len(buf) >= 1<<20 {
			failed = flush()
		}
		return failed == nil
	})
	if errors.Is(err, iofs.ErrNotExist) {
		err = nil // the file is gone: nothing is left of it
	}
	if err = errors.Join(err, failed); err == nil {
		err = flush()
	}
	if err == nil {
		err = noSpace(next.file.Load().Sync())
	}
	if err == nil {
		err = a.loadImage(a.ctx, next, r.bytes)
	}
	if err != nil {
		a.discardSegment(next)
		return nil, err
	}
	next.bytes, next.last = r.bytes, v.m.LastIndex
	next.counted(next.rows)
	return r, nil
}

// isDoubtful tells whether bad bytes behind a frame may hide what made it void.
func (a *acceptance) isDoubtful(v view, step *FrameStep) bool {
	name, at := SegmentName(v.number), step.Entry.Index
	return slices.ContainsFunc(a.damages, func(d Damage) bool { return d.mayVoid(name, step.Offset, at) })
}

func (a *acceptance) isBadBlob(e *Entry) bool {
	if e.Kind != KindPut || e.Codec != CodecBlob || len(a.blobs) == 0 {
		return false
	}
	ref, err := DecodeBlobRef(e.Data)
	return err == nil && a.blobs[ref.ID]
}

// forgetUsedFlags sets all used flags in the hints that stay: an entry may be the newest again because what superseded it
// is lost. A hint that cannot be written is removed: the next load does without.
func (a *acceptance) forgetUsedFlags() error {
	for _, s := range a.state.segments {
		if s == a.w.active || a.replaced[s.number] != nil {
			continue
		}
		h, err := ReadHint(a.fs, a.dir, s.manifest())
		if err == nil {
			for i := range h.IDs {
				h.SetUsed(i, true)
			}
			err = WriteHint(a.fs, a.dir, s.number, h)
		}
		if err == nil {
			continue
		}
		if err := a.fs.Remove(path.Join(a.dir, HintName(s.number))); err != nil && !errors.Is(err, iofs.ErrNotExist) {
			return err
		}
	}
	return a.fs.SyncDir(a.dir)
}

// commit makes the new active segment and replaces the manifest: the commit point.
func (a *acceptance) commit() error {
	next, err := a.createSegment(a.jump+1, 0)
	if err != nil {
		return err
	}
	term := a.w.hard.Term
	if n := len(a.state.terms); n > 0 {
		term = max(term, a.state.terms[n-1].Term)
	}
	if err := a.writeManifest(func(m *Manifest) {
		m.Segments = m.Segments[:0]
		for _, s := range a.state.segments {
			if r := a.replaced[s.number]; r != nil {
				m.Segments = append(m.Segments, r.next.manifest())
			} else if s != a.w.active {
				m.Segments = append(m.Segments, s.manifest())
			}
		}
		m.Segments = append(m.Segments, next.manifest())
		m.AcceptedThrough, m.CompactedThrough, m.CompactedTerm = a.through, a.jump, term
		m.HardState = StateRecord{Term: term, Vote: a.w.hard.Vote, Commit: a.jump}
		if term != a.w.hard.Term {
			m.HardState.Vote = 0
		}
	}); err != nil {
		a.discardUnlessListed(next)
		return err
	}
	a.w.hard = a.w.manifest.HardState
	a.beginBehind(next)
	return nil
}

// beginBehind makes the segment behind the jump the active one.
func (a *acceptance) beginBehind(next *segment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	st := &a.state
	old := a.w.active
	var segments, retired []*segment
	for _, s := range st.segments {
		if r := a.replaced[s.number]; r != nil {
			segments = append(segments, r.next)
			retired = append(retired, s)
		} else if s != old {
			segments = append(segments, s)
		}
	}
	st.segments = segments
	st.tail = tail{first: a.jump + 1}
	a.begin(next, a.jump+1)
	st.last, st.floor, st.floorTerm, st.syncedIndex = a.jump, a.jump, a.w.hard.Term, a.jump
	a.applied.Store(a.jump)
	for _, s := range append(retired, old) {
		a.retireSegment(s)
	}
}

// adopt brings the index to the new places and drops those of lost entries.
func (a *acceptance) adopt() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state.snapshots = make(map[ScanID]*snapshot)
	for _, r := range a.replaced {
		for _, k := range r.moves {
			a.table.CompareAndSwap(k.id, k.from, k.to)
		}
		a.superseded.Add(-r.old[0].used.drop())
	}
}

// reindex gives each record its newest version that is left, looking at all rows, and then forgets the damage.
func (a *acceptance) reindex() error {
	gone := make(map[uint32]bool) // ordinals of replaced segments
	for _, r := range a.replaced {
		gone[r.old[0].ordinal] = true
	}
	lost := make(map[int64]index.Loc)
	a.table.Range(func(id int64, loc index.Loc) bool {
		if gone[loc.Ordinal()] {
			lost[id] = loc
		}
		return true
	})
	for id, loc := range lost {
		a.table.CompareAndDelete(id, loc)
	}
	views := a.views(0, math.MaxUint64)
	defer unpinAll(views)
	for _, v := range views {
		if v.active {
			continue
		}
		a.superseded.Add(-v.used.drop())
		if err := a.reindexSegment(v); err != nil {
			return err
		}
	}
	a.mu.Lock()
	a.state.damages, a.state.damagedIDs = nil, make(map[int64]damagedID)
	a.damaged.Store(0)
	a.mu.Unlock()
	for id := range a.blobs {
		a.dropBlob(id)
	}
	for _, v := range views {
		if a.segmentAt(v.ordinal) == v.segment && !v.active && v.rows != nil {
			a.writeHintLater(v.segment)
		}
	}
	return nil
}

func (a *acceptance) reindexSegment(v view) error {
	ordinal := uint64(v.ordinal) << 44
	insert := func(id int64, delta uint32, place uint64) error {
		if v.first+uint64(delta) > v.through {
			return nil
		}
		return a.insert(id, index.Loc(place|ordinal))
	}
	if v.rows != nil {
		for i, id := range v.rows.ids {
			if err := insert(id, v.rows.indexes[i], v.rows.places[i]); err != nil {
				return err
			}
		}
		return nil
	}
	h, err := a.hintOf(v)
	if err != nil {
		return err
	}
	for i, id := range h.IDs {
		if err := insert(id, h.Indexes[i], h.Places[i]); err != nil {
			return err
		}
	}
	return nil
}
