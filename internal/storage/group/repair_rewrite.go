package group

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"math"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
)

// rangeRepair holds the state of one call of RepairRange.
type rangeRepair struct {
	sealed
	ctx   context.Context
	v     view
	asked []IndexRange // the ranges that were requested from the peer
	s     *survey
	given []format.Entry  // the peer's entries that this log has lost, in order
	same  map[uint64]bool // indexes of the entries that both logs have
	peer  uint64          // applied index of the peer
	floor uint64          // the new compaction floor of Raft
	// dropped means that entries are left out because the peer has compacted them away. They were superseded by entries
	// up to the peer's applied index, which this log has also applied.
	dropped bool
	// tombstones is the greatest index of the tombstones that are left out. It is 0 if none is. Since the peer has dropped
	// them, its tombstone floor is at or above this index, so every member has the log up to it.
	tombstones uint64
	terms      []format.TermRun
	out        *rewrite
	// returns holds the restored versions whose new locations must be added to the index. Either the index has no
	// location for such a version's record, or it has a different one.
	returns []move
	gone    []int64 // records of which a version was dropped
}

// RepairRange replaces a damaged segment with one without damage. The argument r is a result of Repairs. The argument
// entries has the peer's entries in all ranges of r, in order, and peerApplied is the greatest RangeAnswer.Applied.
// This log must already have the blobs to which the entries refer (MissingBlobs). RepairRange compares index, term,
// checksum and id of each entry with those that are known. It returns ErrCorrupt if they differ. It can also return
// ErrRepairLater, ErrRepairByInstall or ErrNoSpace. After any of these errors, nothing has changed. The log forgets the
// damage when the new segment is durable.
func (l *Log) RepairRange(ctx context.Context, r Repair, entries []*raftpb.Entry, peerApplied uint64) (err error) {
	defer l.addNames("repair of "+r.File, &err)
	l.compacting.Lock() // Close cancels l.ctx first, and then waits for this lock
	defer l.compacting.Unlock()
	if err := l.enter(); err != nil {
		return err
	}
	defer l.leave()
	views := l.reader.views(0, math.MaxUint64)
	defer unpinAll(views)
	i := slices.IndexFunc(views, func(v view) bool { return format.SegmentName(v.number) == r.File })
	switch {
	case i < 0 && !slices.Contains(l.damages.files(), r.File):
		return nil // the segment was repaired already
	case i < 0 || views[i].active:
		return ErrRepairLater
	}
	p := &rangeRepair{
		sealed: l.sealed(), ctx: ctx, v: views[i], asked: r.Ranges, peer: peerApplied, same: make(map[uint64]bool),
	}
	if p.v.through = min(p.v.through, p.v.m.LastIndex); p.v.through > l.state.applied.Load() {
		return ErrRepairLater
	}
	if p.s, err = p.reader.survey(p.v); err != nil {
		return err
	}
	if err := p.take(entries); err != nil {
		return err
	}
	if err := p.checkAbsent(); err != nil {
		return err
	}
	if err := p.checkOrder(); err != nil {
		return err
	}
	if err := p.rewrite(); err != nil {
		return err
	}
	return p.swapIn()
}

// rewrite durably writes the new segment.
func (p *rangeRepair) rewrite() error {
	if err := p.checkSpace(); err != nil {
		return err
	}
	var err error
	if p.out, err = p.editor.begin(p.v); err != nil {
		return err
	}
	p.out.next.terms, p.out.repairs = p.terms, true
	if p.dropped {
		p.out.history = everything // it is not known up to which index the peer's history is complete
	}
	p.out.tombstones = p.tombstones
	if err = p.copyAll(); err == nil {
		err = p.editor.finish(p.ctx, p.out, p.v.m.LastIndex)
	}
	if err != nil {
		p.editor.folder.discard(p.out.next)
	}
	return err
}

func (p *rangeRepair) checkSpace() error {
	need := int64(format.SegmentHeaderBytes)
	for _, k := range p.s.kept {
		need += k.bytes
	}
	for i := range p.given {
		need += format.FrameBytes(len(p.given[i].Attributes), len(p.given[i].Data))
	}
	if need > index.OffsetMax {
		return fmt.Errorf("%w: %d bytes are above the limit of a segment", ErrRepairByInstall, need)
	}
	return p.editor.checkSpace(need, len(p.s.kept)+len(p.given), need)
}

// copyAll writes the entries that this log kept and those that the peer supplied, sorted by index.
func (p *rangeRepair) copyAll() error {
	g, k := 0, 0
	var failed error
	putGiven := func(below uint64) {
		for ; failed == nil && g < len(p.given) && p.given[g].Index < below; g++ {
			failed = p.putGiven(&p.given[g])
		}
	}
	err := p.v.frames(format.SegmentHeaderBytes, func(step *segio.FrameStep) bool {
		if k == len(p.s.kept) || step.Offset != p.s.kept[k].offset {
			return true
		}
		if step.Status != segio.FrameWhole { // the survey has read this frame without an error
			failed = &format.DamageError{Damage: p.v.damage(p.group, step)}
			return false
		}
		putGiven(step.Entry.Index)
		k++
		if failed == nil {
			failed = p.put(step)
		}
		return failed == nil
	})
	if errors.Is(err, iofs.ErrNotExist) {
		// If the damaged file is gone, only the peer's entries are copied.
		err = nil
	}
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	if k < len(p.s.kept) {
		return fmt.Errorf("%w: the file has changed while it was read", ErrRepairLater)
	}
	putGiven(^uint64(0))
	return failed
}

// put copies a whole frame of the damaged segment to the new segment.
func (p *rangeRepair) put(step *segio.FrameStep) error {
	e := &step.Entry
	offset, err := p.out.to.Copy(step, e.Used)
	tombstone := e.Kind == format.KindDelete
	switch to := p.out.next.place(offset, step.Bytes, tombstone); {
	case !e.Kind.IsVersion():
	case p.s.rows:
		p.out.moves = append(p.out.moves, move{e.ID, e.Index, p.v.place(step.Offset, step.Bytes, tombstone), to})
	// The index may lack this version, for example because the load mistook it for void.
	default:
		p.returns = append(p.returns, move{id: e.ID, index: e.Index, to: to})
	}
	return errors.Join(err, context.Cause(p.ctx))
}

// putGiven writes one of the peer's entries to the new segment.
func (p *rangeRepair) putGiven(e *format.Entry) error {
	offset, err := p.out.to.Append(e)
	if e.Kind.IsVersion() {
		tombstone, bytes := e.Kind == format.KindDelete, p.out.to.Bytes-offset
		to := p.out.next.place(offset, bytes, tombstone)
		p.returns = append(p.returns, move{id: e.ID, index: e.Index, to: to})
		if k := p.s.known[e.Index]; k.offset != 0 {
			p.out.restored = append(p.out.restored, move{e.ID, e.Index, p.v.place(k.offset, bytes, tombstone), to})
		}
	}
	return errors.Join(err, context.Cause(p.ctx))
}

// swapIn replaces the damaged segment with the new one, updates the index for the restored versions, and forgets the
// damage.
func (p *rangeRepair) swapIn() error {
	p.state.mu.Lock()
	p.state.terms = replaceTerms(p.state.terms, p.terms, p.v.first, p.v.through)
	term, err := p.state.term(p.floor)
	if known := p.s.term(p.floor); known != 0 {
		term, err = known, nil
	}
	p.state.mu.Unlock()
	if err != nil {
		return err
	}
	p.findOld()
	// The list includes blobs of entries that the load could not read.
	blobs := p.out.next.rows.Blobs
	if err := p.editor.swap(p.out, p.floor, term); err != nil {
		if errors.Is(err, errConfAhead) {
			return fmt.Errorf("%w: the log %w", ErrRepairLater, err)
		}
		return err
	}
	for _, m := range p.returns {
		if m.from != 0 {
			continue // the swap has already moved this version
		}
		if err := p.places.insert(m.id, m.to); err != nil {
			return err
		}
	}
	for _, b := range blobs {
		p.blobs.refer(b.Ref)
	}
	p.damages.forget(func(d *format.Damage) bool { return d.File == format.SegmentName(p.v.number) })
	return nil
}

// findOld completes the moves for the swap. If the index still has the old location of a restored version in the
// damaged segment, findOld adds a move from that location, so that the swap updates the index. If the index still has
// a location for a version that the peer has dropped, findOld adds a move that drops the version. The index has only
// one location per record, so findOld considers only the newest restored version of each record.
func (p *rangeRepair) findOld() {
	kept := make(map[index.Loc]bool, len(p.out.moves))
	for _, m := range p.out.moves {
		kept[m.from] = true
	}
	newer := make(map[int64]bool)
	for i := range slices.Backward(p.returns) {
		m := &p.returns[i]
		if newer[m.id] {
			continue
		}
		newer[m.id] = true
		if loc, ok := p.places.table.Get(m.id); ok && loc.Ordinal() == p.v.ordinal && !kept[loc] {
			m.from = loc
			p.out.moves = append(p.out.moves, *m)
		}
	}
	for _, id := range p.gone {
		if loc, ok := p.places.table.Get(id); ok && loc.Ordinal() == p.v.ordinal && !kept[loc] && !newer[id] {
			p.out.moves = append(p.out.moves, move{id: id, from: loc})
		}
	}
}
