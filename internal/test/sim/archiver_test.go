package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// The archiver follows the group: in each round, it passes a read barrier of the leader, tells it what is archived, and
// reads what is new. Its position is the hold of the group. The other copies read it from the leader's reports.

// promise is the state in which a copy began to hold history for the archiver.
type promise struct {
	lineage int
	floor   uint64 // the history floor at that time
}

// archive is what the archiver has, from one beginning to its end. Its fields below the first ones are guarded by
// world.mu.
type archive struct {
	begun     bool
	exactFrom uint64 // states as of this index and later ones are exact
	entries   map[uint64]ledgerEntry

	position uint64
	told     map[*process]bool // processes that have heard of the archiver
	reported bool              // whether a leader has reported the hold to etcd
	promised map[int]promise   // by machine
}

// runArchiver begins an archive, follows the group for a while, and ends the archive, again and again.
func (w *world) runArchiver() {
	r := rand.New(rand.NewPCG(w.seed, 97))
	for w.sleep(between(r, 0, 2*time.Second)) {
		if w.isStopping() {
			continue
		}
		a := &archive{entries: map[uint64]ledgerEntry{}, told: map[*process]bool{}, promised: map[int]promise{}}
		w.mu.Lock()
		w.archive = a
		w.mu.Unlock()
		w.fire("archive begun")
		w.follow(a, r)
		w.mu.Lock()
		w.archive = nil
		w.mu.Unlock()
		if w.release() {
			w.fire("archive ended")
		}
	}
}

// follow makes rounds until the archive should end.
func (w *world) follow(a *archive, r *rand.Rand) {
	var at *process // the process to which the archiver's call goes
	call := new(int)
	defer func() {
		if at != nil {
			at.keeper.holds.Leave(call)
		}
	}()
	for range 5 + r.IntN(30) {
		pause := between(r, 50*time.Millisecond, 300*time.Millisecond)
		if r.IntN(12) == 0 || w.cfg.history.away && r.IntN(2) == 0 {
			pause = between(r, time.Second, 4*time.Second)
			w.fire("archiver lags")
		}
		if !w.sleep(pause) || w.isStopping() {
			return
		}
		leader := w.leader()
		if leader != at {
			if at != nil {
				at.keeper.holds.Leave(call)
			}
			at, call = leader, new(int)
		}
		if at != nil {
			w.round(a, at, call, r)
		}
	}
}

// round makes one round with the leader.
func (w *world) round(a *archive, p *process, call any, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(w.ctx, 500*time.Millisecond)
	defer cancel()
	if p.replica.ReadBarrier(ctx) != nil || w.isDead(p) {
		return
	}
	through := p.log.AppliedIndex()
	switch {
	case !a.begun:
		p.keeper.holds.Begin(p, through)
	case a.position > through:
		w.judgePast(p, "index %d is archived, and the leader has only %d behind a read barrier", a.position, through)
		return
	default:
		p.keeper.holds.Take(call, p, a.position)
	}
	w.trace("archiver at %v, behind %d", p.machine, a.position)
	w.mu.Lock()
	a.told[p] = true
	w.mu.Unlock()
	found, ok := w.readEntries(p, a.position, through, r)
	deletes := p.log.DeletesFloor()
	floor, known := p.log.HistoryFloor()
	if !ok || w.isDead(p) {
		return
	}
	if !known {
		floor = through // the history may be incomplete up to here
	}
	if a.begun && deletes > a.position {
		w.fire("archive copied again, because deletes are missing")
		a.begun, a.exactFrom = false, 0
		clear(a.entries)
		found, ok = w.readEntries(p, 0, through, r)
		if floor, known = p.log.HistoryFloor(); !known {
			floor = through
		}
		if !ok || w.isDead(p) {
			return
		}
	}
	if floor > a.position || !a.begun {
		if a.begun {
			w.fire("archive has a hole")
		}
		a.exactFrom = max(a.exactFrom, floor)
	}
	for _, f := range found {
		a.entries[f.index] = f
	}
	w.mu.Lock()
	a.begun, a.position = true, through
	w.mu.Unlock()
	w.checkArchive(a, r)
}

// readEntries reads the entries above the index after, a piece at a time.
func (w *world) readEntries(p *process, after, through uint64, r *rand.Rand) (found []ledgerEntry, ok bool) {
	for after < through {
		got, err := p.log.ReadRange(group.IndexRange{First: after + 1, Last: through}, 32<<10)
		if err != nil || got.Through <= after {
			return nil, false
		}
		for _, raw := range got.Entries {
			e, err := format.DecodePayload(raw)
			if err != nil {
				w.judgePast(p, "entry %d for the archiver: %v", raw.GetIndex(), err)
				return nil, false
			}
			found = append(found, factOf(&e))
		}
		after = got.Through
		if r.IntN(4) == 0 && !w.sleep(between(r, 0, 50*time.Millisecond)) {
			return nil, false
		}
	}
	return found, true
}

// checkArchive compares the archive, as of a random index, with the ledger.
func (w *world) checkArchive(a *archive, r *rand.Rand) {
	if a.exactFrom > a.position {
		return
	}
	at := a.exactFrom + r.Uint64N(a.position-a.exactFrom+1)
	want, complete := w.ledger.asOf(at)
	if !complete {
		return
	}
	got := map[int64]ledgerEntry{}
	for _, f := range a.entries {
		if f.index <= at && (f.kind == format.KindPut || f.kind == format.KindDelete) && f.index > got[f.id].index {
			got[f.id] = f
		}
	}
	w.fire("archive compared")
	for id, f := range got {
		if f.kind == format.KindDelete {
			delete(got, id)
		} else if f.index != want[id].index || f.data != want[id].data {
			w.violate(oraclePast, "archive as of index %d of %d, exact from %d: record %d is %+v, and was %+v", at, a.position,
				a.exactFrom, id, f, want[id])
			return
		}
	}
	for id, f := range want {
		if _, there := got[id]; !there {
			w.violate(oraclePast, "archive as of index %d of %d, exact from %d: record %d is missing: %+v", at, a.position,
				a.exactFrom, id, f)
			return
		}
	}
}

// release ends the holds for the archive, as the command of that name does: it asks all copies in passes, until one
// pass finds nothing. It returns false if that takes too long.
func (w *world) release() bool {
	for range 50 {
		found := false
		for _, p := range w.processes() {
			ended, err := p.keeper.holds.End(w.ctx, p, w.groupInEtcd())
			w.trace("%v: history for the archiver ended: %v, %v", p.machine, ended, err)
			found = found || ended || err != nil
		}
		if !found {
			return true
		}
		if !w.sleep(200 * time.Millisecond) {
			return false
		}
	}
	return false
}

// compactOne compacts a process's copy, which obeys the hold that it knows of.
func (w *world) compactOne(p *process) {
	p.log.SetTombstoneLimit(w.appliedByAll())
	opts := group.CompactOptions{All: true}
	if p.keeper != nil {
		w.obey(p)
		opts.IgnoreHold = w.ignoresHold(p)
	}
	defer w.misread(p)()
	report, err := p.log.Compact(w.ctx, opts)
	if err == nil && report.EntriesDropped > 0 {
		w.fire("compaction dropped entries")
		if _, held := p.log.HistoryFloor(); held {
			w.fire("compaction dropped entries below a hold")
		}
	}
}

// obey makes a process's copy obey the hold that the process knows of. A process that has heard nothing of etcd since
// its start does not know the group, and its copy keeps what it has.
func (w *world) obey(p *process) {
	if _, _, known := p.keeper.views.HoldOf(identity.Group); !known {
		w.fire("compaction before a hold is known")
		return
	}
	state := w.groupInEtcd()
	w.promiseArchive(p, func() (uint64, bool) { return p.keeper.holds.Of(w.ctx, p, state) })
	p.keeper.holds.Obey(w.ctx, p, state)
	if w.tracing {
		at, on := p.keeper.holds.Of(w.ctx, p, state)
		w.trace("%v obeys a hold at %d (%v) of the archiver", p.machine, at, on)
	}
}

// promiseArchive records that a copy holds history for the archiver from now on, if it knows the archiver's position
// from etcd.
func (w *world) promiseArchive(p *process, hold func() (uint64, bool)) {
	w.mu.Lock()
	a, lineage := w.archive, p.machine.lineage
	due := a != nil && a.reported && a.begun && !p.dead
	w.mu.Unlock()
	if !due {
		return
	}
	at, on := hold()
	if !on || p.log.BeginHistory() != nil {
		return
	}
	floor, known := p.log.HistoryFloor()
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, already := a.promised[p.machine.number]; !known || already && a.promised[p.machine.number].lineage == lineage ||
		at > a.position || p.machine.lineage != lineage || p.dead || w.archive != a {
		return
	}
	a.promised[p.machine.number] = promise{lineage, floor}
	w.trace("%v holds for the archiver from index %d on, floor %d", p.machine, at, floor)
}
