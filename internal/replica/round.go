package replica

import (
	"errors"
	"fmt"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/group"
)

// round is the state of a round of one replica, between what the committer calls: write, sync, finish. Only the
// goroutine that runs the round uses it, but for Stop when there is none any more.
type round struct {
	taken    bool       // ready was taken from Raft and is not finished
	ready    raft.Ready // of which entries and hard state are to be written, committed entries to be applied
	appended bool       // ready is in the group's log, perhaps not synced
	synced   bool       // and is synced
	done     bool       // the committed entries of ready that the log held already are applied
	early    bool       // the messages that need not wait for the sync are sent
	late     bool       // the others are sent
	failed   bool

	commit *raftpb.HardState // a commit index that rides along with the next append

	// What is left to do of the committed entries, when a membership found no room on the disk.
	visible    bool              // the log has applied them
	behind     int               // how many of them are done
	unrecorded *raftpb.ConfState // Raft has taken it over; the log has not recorded it

	syncs    syncLog
	applied  []group.Request // of the committed entries that are visible
	answered []*Pending      // scratch: whose result is set and who waits for it
}

// fifo holds the writes that Raft has, in order.
type fifo struct {
	items []*Pending
	head  int
}

func (f *fifo) len() int { return len(f.items) - f.head }

func (f *fifo) push(items []*Pending) { f.items = append(f.items, items...) }

func (f *fifo) front() *Pending { return f.items[f.head] }

func (f *fifo) pop() *Pending {
	p := f.items[f.head]
	f.items[f.head] = nil
	f.head++
	switch {
	case f.head == len(f.items):
		f.items, f.head = f.items[:0], 0
	case f.head > 1024 && f.head > len(f.items)/2:
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	return p
}

// last gives the last n.
func (f *fifo) last(n int) []*Pending { return f.items[len(f.items)-n:] }

// step says what a round has to do next.
type step uint8

const (
	stepEnd    step = iota // nothing
	stepSync               // sync, then finish
	stepFinish             // finish alone
)

// write begins a round: what was accepted since the last one goes into Raft's log and the group's log.
func (r *Replica) write() (next step) {
	defer r.guard()
	if !r.take() {
		r.endBroken()
		return stepEnd
	}
	rd := &r.round.ready
	if err := r.applyEarly(); err != nil {
		r.logFailed(err)
		return stepEnd
	}
	state := rd.HardState
	if raft.IsEmptyHardState(state) {
		state = r.round.commit
	}
	if len(rd.Entries) == 0 && !rd.MustSync {
		r.round.commit = state
		return stepFinish
	}
	if !r.round.appended {
		if err := r.log.Append(r.probeState(state), rd.Entries); err != nil {
			r.logFailed(fmt.Errorf("append: %w", err))
			return stepEnd
		}
		r.round.appended, r.round.commit = true, nil
	}
	if r.round.synced {
		return stepFinish
	}
	return stepSync
}

// sync makes durable what write wrote; false where it could not.
func (r *Replica) sync() (synced bool) {
	defer r.guard()
	began := time.Now()
	if err := r.probeSync(); err != nil {
		r.logFailed(fmt.Errorf("sync: %w", err))
		return false
	}
	if entries := r.round.ready.Entries; len(entries) > 0 {
		r.round.syncs.note(began, entries[0].GetIndex(), entries[len(entries)-1].GetIndex())
	}
	r.round.synced = true
	r.marks.Store(markBehind)
	return true
}

// logFailed decides what an error of the log means. Without room the Ready stays taken, with what was done of it, and is tried again;
// anything else leaves open what is on the disk, so nothing is acknowledged any more.
func (r *Replica) logFailed(err error) {
	if errors.Is(err, group.ErrNoSpace) || errors.Is(err, group.ErrMemory) {
		r.setNoRoom(err)
		return
	}
	r.fail(err)
}

// finish tells Raft that the log is durable, applies what is committed by that, and answers.
func (r *Replica) finish() {
	defer r.guard()
	r.sendLate()
	if err := r.probeApply(r.round.ready.Entries); err != nil {
		r.fail(err)
		return
	}
	if err := r.applyReady(); err != nil {
		r.logFailed(err)
		return
	}
	r.setNoRoom(nil)
	for r.advance() {
		if err := r.applyEarly(); err != nil {
			r.logFailed(err)
			return
		}
		rd := &r.round.ready
		if len(rd.Entries) > 0 || rd.MustSync {
			r.again() // to be written by the next round
			return
		}
		if !raft.IsEmptyHardState(rd.HardState) {
			r.round.commit = rd.HardState
		}
		r.sendLate()
		if err := r.applyReady(); err != nil {
			r.logFailed(err)
			return
		}
	}
}

// take gets the next Ready from Raft, unless one is left from before; false where there is nothing to do.
func (r *Replica) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.round.failed || r.broken {
		return false
	}
	if r.round.taken {
		return true
	}
	if !r.lost {
		r.flush()
		r.proposeChange()
		r.proposeLeave()
		r.proposeTold()
	}
	r.askReaders()
	if !r.node.HasReady() {
		return false
	}
	r.takeReady()
	return true
}

// advance ends the Ready taken and takes the next one; false where there is none. Writes that wait are left to the next
// round, so that it takes as many as possible.
func (r *Replica) advance() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.node.Advance(r.round.ready)
	r.round.ready = raft.Ready{}
	r.round.taken = false
	r.followSummons()
	if !r.node.HasReady() {
		return false
	}
	r.takeReady()
	return true
}

// stub stands for an entry whose payload Raft need not see.
var stub = &raftpb.Entry{Data: []byte{0}}

// flush gives the accepted writes to Raft in one message. Called with mu held, and no Ready taken.
//
// Raft copies what it is given. Where there is no other member to send it to, it gets a stub, and setIndexes puts the
// payload into Raft's entry before anyone else sees it. With others, Raft must know the sizes to bound its messages.
func (r *Replica) flush() {
	if len(r.queued) == 0 {
		return
	}
	writes := r.queued
	r.queued = nil
	alone := r.alone.Load()
	entries := make([]*raftpb.Entry, len(writes))
	for i, p := range writes {
		if entries[i] = stub; !alone {
			entries[i] = &raftpb.Entry{Data: p.payload}
		}
	}
	err := r.node.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: proto.Uint64(r.opts.RaftID), Entries: entries})
	if err != nil {
		// Raft took none of them: it lost the leadership, or hands it over.
		r.answerAll(writes, notServing(ErrNoLeader, err.Error()))
		return
	}
	r.logged.push(writes)
	r.unindexed += len(writes)
}

// takeReady is called with mu held.
func (r *Replica) takeReady() {
	rd := &r.round.ready
	*rd = r.node.Ready()
	r.round.taken, r.round.appended, r.round.synced, r.round.done = true, false, false, false
	r.round.early, r.round.late = false, false
	if rd.SoftState != nil || rd.GetTerm() > r.term {
		r.observe()
	}
	if len(rd.Entries) > 0 {
		r.setIndexes(rd.Entries)
	}
	for _, state := range rd.ReadStates {
		r.readAnswered(state)
	}
	rd.Messages = r.holdNotices(rd.Messages)
}

// setIndexes tells the writes which index Raft gave them, and gives Raft their payloads. Raft adds entries of its own between them: empty ones, and
// membership changes.
func (r *Replica) setIndexes(entries []*raftpb.Entry) {
	writes := r.logged.last(r.unindexed)
	for _, e := range entries {
		if len(writes) > 0 && e.GetType() == raftpb.EntryNormal && len(e.Data) > 0 && e.GetTerm() == r.term {
			p := writes[0]
			p.index, p.term = e.GetIndex(), e.GetTerm()
			e.Data, p.payload = p.payload, nil
			writes = writes[1:]
		}
	}
	r.unindexed = len(writes)
	if r.change != nil {
		r.findChange(entries)
	}
	r.noteTold(entries)
	last := entries[len(entries)-1].GetIndex()
	r.nextIndex = max(r.nextIndex, last+1+uint64(len(writes)+len(r.queued)))
}

// applyEarly does what need not wait for the sync of the same Ready: it sends messages, and applies committed entries
// that the log holds already.
func (r *Replica) applyEarly() error {
	rd := &r.round.ready
	if r.round.done {
		return nil
	}
	if !r.round.early {
		r.send(rd.Messages, false)
		r.round.early = true
	}
	n := len(rd.CommittedEntries)
	if n > 0 && (len(rd.Entries) == 0 || rd.CommittedEntries[n-1].GetIndex() < rd.Entries[0].GetIndex()) {
		if err := r.apply(rd.CommittedEntries); err != nil {
			return err
		}
		rd.CommittedEntries = nil
	}
	r.round.done = true
	return nil
}

// sendLate sends what had to wait for the sync. A Ready that is tried again for want of room is not sent again: each answer would begin
// another round.
func (r *Replica) sendLate() {
	if !r.round.late {
		r.send(r.round.ready.Messages, true)
		r.round.late = true
	}
}

func (r *Replica) applyReady() error {
	rd := &r.round.ready
	if len(rd.CommittedEntries) == 0 {
		if rd.SoftState != nil || !raft.IsEmptyHardState(rd.HardState) || len(rd.ReadStates) > 0 {
			r.settle(nil)
		}
		return nil
	}
	err := r.apply(rd.CommittedEntries)
	rd.CommittedEntries = nil
	return err
}

// apply makes committed entries visible, then answers their writes. After group.ErrNoSpace it is to be called again with the same entries,
// and goes on where it stopped.
func (r *Replica) apply(committed []*raftpb.Entry) error {
	if !r.round.visible {
		if err := r.makeVisible(committed[len(committed)-1].GetIndex()); err != nil {
			return fmt.Errorf("apply: %w", err)
		}
		r.round.visible, r.round.behind = true, 0
	}
	for ; r.round.behind < len(committed); r.round.behind++ {
		e := committed[r.round.behind]
		if e.GetType() == raftpb.EntryNormal {
			continue
		}
		if err := r.changeMembers(e); err != nil {
			return fmt.Errorf("apply index %d: %w", e.GetIndex(), err)
		}
	}
	r.round.visible = false
	r.settle(committed)
	return nil
}

// makeVisible applies the entries up to last.
func (r *Replica) makeVisible(last uint64) error {
	r.round.applied = r.round.applied[:0]
	return r.log.Apply(last, func(e *group.Entry) {
		if e.RequestID != ([16]byte{}) && (!r.unsafe(UnsafeRequests) || r.leads(e)) {
			r.round.applied = append(r.round.applied, group.RequestOf(e))
		}
		if r.opts.Probe != nil && r.opts.Probe.Applied != nil {
			r.opts.Probe.Applied(e)
		}
	})
}

// settle answers the writes among committed entries that were applied, then those that were lost with the leadership.
func (r *Replica) settle(committed []*raftpb.Entry) {
	r.noteApplied(committed)
	for i, p := range r.round.answered {
		close(p.done)
		r.round.answered[i] = nil
	}
	r.round.answered = r.round.answered[:0]
}

var (
	errLeadLost = errors.New("the leadership was lost")
	errHeld     = errors.New("the leadership was lost, and the disk of this replica does not answer")
)

func (r *Replica) noteApplied(committed []*raftpb.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := windowNow()
	for i := range r.round.applied {
		r.window.add(appliedSlot(&r.round.applied[i], now))
	}
	r.round.applied = r.round.applied[:0]
	for _, e := range committed {
		r.settleOne(e)
	}
	if r.lost {
		r.lost = false
		const why = "the leadership was lost"
		r.loseChange(errLeadLost)
		r.answerLost(notServing(ErrOutcomeUnknown, why), notServing(ErrNoLeader, why))
		r.loseDeclined(notServing(ErrNoLeader, why))
	}
	r.releaseReaders()
	r.checkDrained()
}

// settleOne is called with mu held.
func (r *Replica) settleOne(e *raftpb.Entry) {
	r.applied = e.GetIndex()
	if r.told.index != 0 && r.applied >= r.told.index {
		r.toldAll()
		r.announce()
	}
	if r.logged.len() > 0 && r.logged.front().index == e.GetIndex() && r.logged.front().term == e.GetTerm() {
		p := r.logged.pop()
		p.result = Result{Index: p.index, CommitTime: p.commitTime, Existed: p.delete}
		if p.timed {
			p.result.Sync = r.round.syncs.of(p.index)
		}
		r.answer(p)
	}
	if r.leader && !r.serving && e.GetTerm() == r.term {
		r.serving = true
		r.lastCommitTime = max(r.lastCommitTime, r.log.LastCommitTime())
		if ahead := time.Duration(r.lastCommitTime - r.now().UnixNano()); ahead > time.Minute {
			r.logger.Warn("the last commit time is ahead of this machine's clock, or another's was: commit times stand still until it is reached", "ahead", ahead)
		}
		r.readable.Store(r.sole)
	}
}

// answer notes that p's result is set, and answers what waits for it. Called with mu held; the waiting goroutines are
// woken when it is released.
func (r *Replica) answer(p *Pending) {
	r.inFlightBytes -= p.bytes
	if r.newest[p.id] == p {
		delete(r.newest, p.id)
	}
	if p.request.RequestID != ([16]byte{}) && r.requests[p.request.RequestID] == p {
		delete(r.requests, p.request.RequestID)
	}
	r.round.answered = append(r.round.answered, p)
	for _, q := range p.after {
		switch {
		case q.role == repeated:
			q.result, q.err = p.result, p.err
			q.result.Repeated = p.err == nil && p.role == written
		case p.err != nil:
			q.err = notServing(ErrNoLeader, "nothing was written, and what that depends on has an unknown outcome")
		case !r.sole && !r.unsafe(UnsafeDecline):
			r.confirm(q, p.newest()) // that p is committed may be old news
			continue
		default:
			r.answerDeclined(q, p.newest())
		}
		r.answer(q)
	}
	p.after = nil
}

// answerAll answers writes with an error. Called with mu held.
func (r *Replica) answerAll(writes []*Pending, err error) {
	for _, p := range writes {
		p.err = err
		r.answer(p)
	}
}

// answerLost answers everything on its way: logged ones may come to be applied, queued ones surely not.
func (r *Replica) answerLost(logged, queued error) {
	for r.logged.len() > 0 {
		p := r.logged.pop()
		p.err = logged
		r.answer(p)
	}
	r.unindexed = 0
	writes := r.queued
	r.queued = nil
	r.answerAll(writes, queued)
}
