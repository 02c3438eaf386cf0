package replica

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// A replica is idle (0), waits in the committer's list (dirty), is in a round (busy), or is in a round and must go into
// another one (both). Gone ones are never put in the list again.
const (
	dirty uint32 = 1 << iota
	busy
	gone
)

// schedule asks for a round. Cheap where one is asked for already.
func (r *Replica) schedule() {
	if r.scheduled.Load()&dirty != 0 {
		return
	}
	if r.scheduled.Or(dirty) == 0 {
		r.committer.push(r)
	}
}

// begin enters a round: what is asked for from now on needs another one. False where the replica is gone.
func (r *Replica) begin() bool {
	for {
		old := r.scheduled.Load()
		if old&gone != 0 {
			return false
		}
		if r.scheduled.CompareAndSwap(old, busy) {
			return true
		}
	}
}

// again asks for another round from within one.
func (r *Replica) again() { r.scheduled.Or(dirty) }

// end leaves a round; true where another one was asked for meanwhile: the caller must see to it.
func (r *Replica) end() (again bool) {
	old := r.scheduled.And(^busy)
	if old&gone != 0 {
		close(r.detached)
		return false
	}
	return old&dirty != 0
}

// endAndPush leaves a round that is not run by the committer.
func (r *Replica) endAndPush() {
	if r.end() {
		r.committer.push(r)
	}
}

// tryBegin enters a round where the replica is idle.
func (r *Replica) tryBegin() bool { return r.scheduled.CompareAndSwap(0, busy) }

// runOnce runs one round alone; false where there was nothing to do.
func (r *Replica) runOnce() bool {
	switch r.write() {
	case stepEnd:
		return false
	case stepSync:
		if !r.sync() {
			return false
		}
	}
	r.finish()
	return true
}

// detach lets no round begin any more; detached is closed when none is under way. False where it was called before.
func (r *Replica) detach() bool {
	old := r.scheduled.Or(gone)
	if old&gone != 0 {
		return false
	}
	if old&busy == 0 {
		close(r.detached)
	}
	return true
}

// needsClock tells whether tick has anything to do: quiet groups cost nothing.
func (r *Replica) needsClock() bool { return !r.alone.Load() && !r.quiet.Load() || r.stuck.Load() }

// rests tells that the clock has nothing to do here, until the replica is put in the committer's list or wakes.
func (r *Replica) rests() bool {
	return !r.needsClock() && r.marks.Load() == markWritten && r.scheduled.Load() == 0
}

// tick is the committer's clock.
func (r *Replica) tick() {
	if marks := r.tickNode(); len(marks) > 0 && r.opts.Transport != nil {
		r.opts.Transport.Send(marks)
	}
}

// behindFloor tells that the log has dropped entries which are applied, but of which Raft was not told yet: a compaction or a repair can, and
// the end of the round that applied them tells it. Raft reads what it takes for unapplied before it campaigns, and panics where that is gone.
// Called with mu held.
func (r *Replica) behindFloor() bool {
	first, err := r.log.FirstIndex()
	return err == nil && first > r.node.BasicStatus().Applied+1
}

// tickNode gives the messages to send.
func (r *Replica) tickNode() []*raftpb.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return nil
	}
	if r.noRoom != nil {
		if r.retryTicks--; r.retryTicks > 0 {
			return nil
		}
		r.schedule()
	}
	if r.alone.Load() || r.quiet.Load() {
		return nil
	}
	barred := r.barred()
	r.tickMourning()
	switch {
	case !r.leader && (barred || r.behindFloor()):
		r.node.TickQuiesced() // its clock runs, so that it votes, but it never campaigns
	case barred || r.leader && !isVoter(r.conf, r.opts.RaftID):
		r.node.Tick()
		r.yield()
	default:
		r.node.Tick()
		r.tickHurry()
	}
	r.observe()
	r.tickLost()
	r.tickReaders()
	r.tickSummons()
	r.tickOffers()
	r.tickJoint()
	if len(r.readers) > 0 || r.node.HasReady() {
		r.schedule()
	}
	due := r.dueNotices()
	if calls := r.callLeader(barred); calls != nil || barred {
		return append(due, calls...)
	}
	return append(due, r.rest()...)
}

// lostTicksMax is how long a round may take to answer what the lost lead left.
const lostTicksMax = 2

// tickLost lets go who waits for a round that does not end, once the lead is lost. The write goes on, and may come to
// be applied. Called with mu held.
func (r *Replica) tickLost() {
	if !r.lost {
		r.lostTicks = 0
		return
	}
	if r.lostTicks++; r.lostTicks >= lostTicksMax && r.scheduled.Load() != 0 {
		r.lostTicks = 0
		close(r.held)
		r.held = make(chan struct{})
	}
}

// tickOffers lets Raft try anew to bring members up to date that were offered a snapshot: the offer, or the word that it was
// taken, may be lost. Called with mu held.
func (r *Replica) tickOffers() {
	if r.offerTicks++; !r.leader || r.offerTicks < offerTicks {
		return
	}
	r.offerTicks = 0
	var waiting []uint64
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		if pr.State == tracker.StateSnapshot {
			waiting = append(waiting, id)
		}
	})
	for _, id := range waiting {
		r.node.ReportSnapshot(id, raft.SnapshotFailure)
	}
}

// offerTicks is the time between two offers of a snapshot.
const offerTicks = 5 * electionTicks

// A log without room is tried again after 1 tick, then after twice as long each time, up to retryTicksMax.
const retryTicksMax = 10

// What the clock knows about the local synced mark of a group.
const (
	markWritten uint32 = iota
	markBehind         // there was a sync since the last tick
	markDue            // no sync since the last tick: to be written
)

// isIdle tells, once per tick, whether the mark must be written now.
func (r *Replica) isIdle() bool {
	if r.marks.CompareAndSwap(markBehind, markDue) {
		return false
	}
	return r.marks.Load() == markDue && r.scheduled.Load() == 0
}

// mark brings the local synced mark of an idle group up to date. It runs in the place of a round.
func (r *Replica) mark() {
	defer r.guard()
	if r.round.failed {
		return
	}
	// What was made durable together with other groups is not in the segment for sure.
	if err := r.log.Sync(); err != nil {
		r.logger.Error("the segment of an idle group cannot be synced: tried again", "error", err)
		return
	}
	if err := r.log.Tick(); err != nil {
		r.logger.Error("the local synced mark cannot be written: tried again", "error", err)
		return
	}
	r.marks.CompareAndSwap(markDue, markWritten)
}
