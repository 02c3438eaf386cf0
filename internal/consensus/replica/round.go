package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
	"sheaf.dev/sheaf/internal/consensus/replica/writes"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// round takes what Raft has to say (Ready), writes and syncs it, sends, applies and answers. Only the goroutine that is
// in the round uses it, but for Stop when there is none any more; the core is locked for what needs it, and never
// during I/O.
type round struct {
	state     *guarded
	log       store
	seat      *rounds.Seat
	committer *rounds.Committer
	transport Transport
	lease     *lease
	idle      *idle
	seams     seams
	noRoom    func() // Options.NoRoom
	logger    *slog.Logger
	id        uint64 // of this replica
	firstConf uint64 // index of the membership change that the log knew when this replica started

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

	syncs    writes.SyncLog
	requests []format.Request // of the committed entries that are visible
	answered []*Pending       // those to be woken; scratch
}

// next says what a round has to do behind write.
type next uint8

const (
	nextEnd    next = iota // nothing
	nextSync               // sync, then finish
	nextFinish             // finish alone
)

// run runs one round; false where there was nothing to do.
func (rd *round) run() bool {
	switch rd.write() {
	case nextEnd:
		return false
	case nextSync:
		if !rd.sync() {
			return false
		}
	}
	rd.finish()
	return true
}

// elect has a sole voter elect itself, in the place of a round.
func (rd *round) elect() {
	defer rd.guard()
	if !rd.campaign() {
		return
	}
	for rd.run() {
	}
}

func (rd *round) campaign() bool {
	c := rd.state.lock()
	defer c.unlock()
	if !c.members.sole {
		return false
	}
	if err := c.node.raft.Campaign(); err != nil {
		rd.logger.Error("campaign", "error", err)
	}
	c.observe()
	return true
}

// write begins a round: what was accepted since the last one goes into Raft's log and the group's log.
func (rd *round) write() next {
	defer rd.guard()
	if !rd.take() {
		rd.endBroken()
		return nextEnd
	}
	if err := rd.applyEarly(); err != nil {
		rd.logFailed(err)
		return nextEnd
	}
	state := rd.ready.HardState
	if raft.IsEmptyHardState(state) {
		state = rd.commit
	}
	if !rd.mustWrite() {
		rd.commit = state
		return nextFinish
	}
	if !rd.appended {
		if err := rd.log.Append(rd.seams.hardState(state), rd.ready.Entries); err != nil {
			rd.logFailed(fmt.Errorf("append: %w", err))
			return nextEnd
		}
		rd.appended, rd.commit = true, nil
	}
	if rd.synced {
		return nextFinish
	}
	return nextSync
}

// mustWrite tells that the Ready has something that must be durable.
func (rd *round) mustWrite() bool { return len(rd.ready.Entries) > 0 || rd.ready.MustSync }

// sync makes durable what write wrote; false where it could not.
func (rd *round) sync() (synced bool) {
	defer rd.guard()
	began := time.Now()
	if err := rd.seams.sync(rd.committer, rd.log); err != nil {
		rd.logFailed(fmt.Errorf("sync: %w", err))
		return false
	}
	if entries := rd.ready.Entries; len(entries) > 0 {
		rd.syncs.Note(began, entries[0].GetIndex(), entries[len(entries)-1].GetIndex())
	}
	rd.synced = true
	rd.seat.Synced()
	return true
}

// finish tells Raft that the log is durable, applies what is committed by that, and answers.
func (rd *round) finish() {
	defer rd.guard()
	rd.sendLate()
	if err := rd.seams.applyUncommitted(rd.log, rd.ready.Entries); err != nil {
		rd.fail(err)
		return
	}
	if err := rd.applyReady(); err != nil {
		rd.logFailed(err)
		return
	}
	rd.setNoRoom(nil)
	for rd.advance() {
		if err := rd.applyEarly(); err != nil {
			rd.logFailed(err)
			return
		}
		if rd.mustWrite() {
			rd.seat.Again() // to be written by the next round
			return
		}
		if !raft.IsEmptyHardState(rd.ready.HardState) {
			rd.commit = rd.ready.HardState
		}
		rd.sendLate()
		if err := rd.applyReady(); err != nil {
			rd.logFailed(err)
			return
		}
	}
}

// take gets the next Ready from Raft, unless one is left from before; false where there is nothing to do.
func (rd *round) take() bool {
	c := rd.state.lock()
	defer c.unlock()
	if rd.failed || c.broken {
		return false
	}
	if rd.taken {
		return true
	}
	c.propose()
	c.reads.ask()
	return rd.takeReady(c)
}

// advance ends the Ready taken and takes the next one; false where there is none. Writes that wait are left to the next
// round, so that it takes as many as possible.
func (rd *round) advance() bool {
	c := rd.state.lock()
	defer c.unlock()
	c.node.raft.Advance(rd.ready)
	rd.ready = raft.Ready{}
	rd.taken = false
	c.followTimeoutNow()
	return rd.takeReady(c)
}

func (rd *round) takeReady(c *core) bool {
	if !c.node.raft.HasReady() {
		return false
	}
	rd.ready = c.ready()
	rd.taken, rd.appended, rd.synced, rd.done, rd.early, rd.late = true, false, false, false, false, false
	return true
}

// send hands messages over: those that promise something about this node's log when it is synced (late), the others
// before, so that the other members work at the same time (rules.Promise).
func (rd *round) send(messages []*raftpb.Message, late bool) {
	if len(messages) == 0 {
		return
	}
	some := make([]*raftpb.Message, 0, len(messages))
	for _, m := range messages {
		if rd.seams.mayGoEarly(m) != late && m.GetTo() != rd.id {
			some = append(some, m)
		}
	}
	if len(some) > 0 {
		rd.transport.Send(some)
	}
}

// sendLate sends what had to wait for the sync. A Ready that is tried again for want of room is not sent again: each
// answer would begin another round.
func (rd *round) sendLate() {
	if !rd.late {
		rd.send(rd.ready.Messages, true)
		rd.late = true
	}
}

// mark brings the local synced mark of an idle group up to date. It runs in the place of a round.
func (rd *round) mark() (written bool) {
	defer rd.guard()
	if rd.failed {
		return false
	}
	// What was made durable together with other groups is not in the segment for sure.
	if err := rd.log.Sync(); err != nil {
		rd.logger.Error("the segment of an idle group cannot be synced: tried again", "error", err)
		return false
	}
	if err := rd.log.Tick(); err != nil {
		rd.logger.Error("the local synced mark cannot be written: tried again", "error", err)
		return false
	}
	return true
}

// saveState writes the commit index that was not written yet, so that the next load finds everything committed.
func (rd *round) saveState() error {
	if rd.commit == nil || rd.failed || rd.taken {
		return nil
	}
	err := rd.log.Append(rd.commit, nil)
	if err == nil {
		err = rd.log.Sync()
	}
	if errors.Is(err, format.ErrNoSpace) {
		return nil // it rides along with a later append, and a load finds it out by itself
	}
	if err != nil {
		return fmt.Errorf("write the commit index: %w", err)
	}
	rd.commit = nil
	return nil
}

// guard turns a panic of Raft or the log into the failure of this replica: its neighbours go on.
func (rd *round) guard() {
	if p := recover(); p != nil {
		rd.logger.Error("panic in the round of a replica", "panic", p, "stack", string(debug.Stack()))
		rd.fail(fmt.Errorf("panic: %v", p))
	}
}

// logFailed decides what an error of the log means. Without room the Ready stays taken, with what was done of it, and
// is tried again; anything else leaves open what is on the disk, so nothing is acknowledged any more.
func (rd *round) logFailed(err error) {
	if errors.Is(err, format.ErrNoSpace) || errors.Is(err, group.ErrMemory) {
		rd.setNoRoom(err)
		return
	}
	rd.fail(err)
}

// setNoRoom notes that the log has no room, or has room again.
func (rd *round) setNoRoom(err error) {
	if err == nil && !rd.idle.stuck.Load() {
		return
	}
	c := rd.state.lock()
	changed := c.full.set(err)
	c.unlock()
	if errors.Is(err, format.ErrNoSpace) && rd.noRoom != nil {
		rd.noRoom()
	}
	switch {
	case !changed:
	case err != nil:
		rd.logger.Warn("the log has no room: writes are refused until there is some", "error", err)
	default:
		rd.logger.Info("the log has room again")
	}
}

// fail ends the writing for good: nothing on its way is acknowledged any more.
func (rd *round) fail(err error) {
	c := rd.state.lock()
	first := c.err == nil
	if first {
		c.err = err
	}
	c.unlock()
	rd.lease.end()
	rd.failed = true
	if first {
		rd.logger.Error("the replica has failed and refuses writes until a restart", "error", err)
	}
	rd.abandon(err)
}

// endBroken fails the replica where Raft panicked over a message.
func (rd *round) endBroken() {
	c := rd.state.lock()
	broken, err := c.broken && !rd.failed, c.err
	c.unlock()
	if broken {
		rd.fail(err)
	}
}

// abandon answers everything that is left, and tells how many writes have an unknown outcome.
func (rd *round) abandon(why error) (cut int) {
	c := rd.state.lock()
	answered, cut := c.abandon(why)
	c.unlock()
	writes.Wake(answered)
	return cut
}
