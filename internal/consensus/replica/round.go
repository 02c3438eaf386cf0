package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
	"sheaf.dev/sheaf/internal/consensus/replica/writes"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// round takes a Ready from Raft, writes and syncs it, sends its messages, applies the committed entries and answers
// the writes. Only the goroutine that runs the round uses it, except for Stop after the last round. The core is
// locked only when it is needed, and never during I/O.
type round struct {
	state     *guarded
	log       store
	seat      *rounds.Seat
	committer *rounds.Committer
	transport Transport
	lease     *lease
	idle      *idle
	seams     seams
	noSpace   func() // Options.NoSpace
	logger    *slog.Logger
	id        uint64 // Raft id of this replica
	firstConf uint64 // index of the last membership change in the log when this replica started

	phase  phase             // how far the Ready in the field ready was processed
	ready  raft.Ready        // the Ready in progress: entries and a hard state to write, and committed entries to apply
	commit *raftpb.HardState // a hard state to write with the next append

	recorded   int               // number of committed entries whose membership changes, if any, are recorded
	unrecorded *raftpb.ConfState // a membership that Raft has adopted and the log has not recorded

	syncs    writes.SyncLog
	requests []format.Request // requests of those committed entries that are already visible
	answered []*Pending       // writes whose callers must be woken; the slice is reused
}

// run runs one round. It returns false if there was nothing to do, or if the log returned an error.
func (rd *round) run() (worked bool) {
	defer rd.guard()
	if !rd.begin() {
		rd.endBroken()
		return false
	}
	for first := true; ; first = false {
		for rd.phase != applied {
			if rd.phase == appliedEarly && !first && rd.mustWrite() {
				rd.seat.Schedule() // the next round writes this Ready
				return true
			}
			next, err := rd.step()
			if err != nil {
				rd.logFailed(err)
				return false
			}
			rd.phase.enter(next)
		}
		rd.setNoSpace(nil)
		if !rd.advance() {
			return true
		}
	}
}

// step completes the current phase, and returns the next one. If step fails because of a lack of space, call it again
// later; it continues at the point where it stopped.
func (rd *round) step() (next phase, err error) {
	switch rd.phase {
	case taken:
		rd.send(false)
		return sentEarly, nil
	case sentEarly:
		return visibleEarly, rd.makeVisible(rd.committedEarly())
	case visibleEarly:
		return appliedEarly, rd.applyEarly()
	case appliedEarly:
		return rd.write()
	case appended:
		return synced, rd.sync()
	case synced:
		rd.send(true)
		return sentLate, nil
	case sentLate:
		if err := rd.seams.applyUncommitted(rd.log, rd.ready.Entries); err != nil {
			return visible, err
		}
		return visible, rd.makeVisible(rd.ready.CommittedEntries)
	default: // the remaining case is the phase visible
		return applied, rd.applyReady()
	}
}

// elect runs instead of a round. It makes a sole voter elect itself.
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

// write writes the entries and the hard state to the log. A hard state that need not be durable waits for the next
// append.
func (rd *round) write() (next phase, err error) {
	if !raft.IsEmptyHardState(rd.ready.HardState) {
		rd.commit = rd.ready.HardState
	}
	if !rd.mustWrite() {
		return synced, nil
	}
	if err := rd.log.Append(rd.seams.hardState(rd.commit), rd.ready.Entries); err != nil {
		return appended, fmt.Errorf("append: %w", err)
	}
	rd.commit = nil
	return appended, nil
}

// mustWrite reports whether the Ready has something that must become durable.
func (rd *round) mustWrite() bool { return len(rd.ready.Entries) > 0 || rd.ready.MustSync }

// sync makes durable what the function write has written.
func (rd *round) sync() error {
	began := time.Now()
	if err := rd.seams.sync(rd.committer, rd.log); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if entries := rd.ready.Entries; len(entries) > 0 {
		rd.syncs.Note(began, entries[0].GetIndex(), entries[len(entries)-1].GetIndex())
	}
	rd.seat.Synced()
	return nil
}

// begin gets the next Ready from Raft, unless an earlier one is unfinished. It returns false if there is nothing to
// do.
func (rd *round) begin() bool {
	c := rd.state.lock()
	defer c.unlock()
	if c.err != nil {
		return false
	}
	if rd.phase != idling {
		return true
	}
	c.submit()
	c.reads.ask()
	return rd.take(c)
}

// advance finishes the current Ready and takes the next one. It returns false if there is none. It leaves waiting
// writes to the next round, which then takes as many as possible.
func (rd *round) advance() bool {
	c := rd.state.lock()
	defer c.unlock()
	c.node.raft.Advance(rd.ready)
	rd.ready = raft.Ready{}
	rd.phase.enter(idling)
	c.followTimeoutNow()
	return rd.take(c)
}

func (rd *round) take(c *core) bool {
	if !c.node.raft.HasReady() {
		return false
	}
	rd.ready = c.ready()
	rd.phase.enter(taken)
	return true
}

// send passes messages of the Ready to the transport. Messages that promise something about this node's log are sent
// after the sync (late). All others are sent before the sync, so that the other members work during the sync
// (rules.Promise). When a Ready is processed again after a lack of space, no message is sent again, because each
// response would begin another round.
func (rd *round) send(late bool) {
	if len(rd.ready.Messages) == 0 {
		return
	}
	some := make([]*raftpb.Message, 0, len(rd.ready.Messages))
	for _, m := range rd.ready.Messages {
		if rd.seams.mayGoEarly(m) != late && m.GetTo() != rd.id {
			some = append(some, m)
		}
	}
	if len(some) > 0 {
		rd.transport.Send(some)
	}
}

// mark updates the local synced mark of an idle group. The committer calls it instead of a round.
func (rd *round) mark() (written bool) {
	defer rd.guard()
	if rd.phase == failed {
		return false
	}
	// So far, some entries may be durable only in the volume's journal. This sync makes them durable in the group's own
	// segment.
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

// saveState writes a commit index that is not written yet, so that the next load knows which entries are committed.
func (rd *round) saveState() error {
	if rd.commit == nil || rd.phase != idling {
		return nil
	}
	err := rd.log.Append(rd.commit, nil)
	if err == nil {
		err = rd.log.Sync()
	}
	if err = format.MarkShortage(err); format.Passes(err) {
		return nil // a later append writes the commit index; without it, the next load determines it
	}
	if err != nil {
		return fmt.Errorf("write the commit index: %w", err)
	}
	rd.commit = nil
	return nil
}

// guard turns a panic of Raft or the log into a failure of this replica, so that the other replicas keep running.
func (rd *round) guard() {
	if p := recover(); p != nil {
		rd.logger.Error("panic in the round of a replica", "panic", p, "stack", string(debug.Stack()))
		rd.fail(fmt.Errorf("panic: %v", p))
	}
}

// logFailed handles an error of the log. If disk space, memory or file descriptors are short, it keeps the Ready and
// its phase, and the next round tries again. After any other error the state of the disk is unknown, so this replica
// acknowledges nothing more.
func (rd *round) logFailed(err error) {
	if err = format.MarkShortage(err); format.Passes(err) || errors.Is(err, group.ErrMemory) {
		rd.setNoSpace(err)
		return
	}
	rd.fail(err)
}

// setNoSpace records whether the log has run out of space.
func (rd *round) setNoSpace(err error) {
	if err == nil && !rd.idle.stuck.Load() {
		return
	}
	c := rd.state.lock()
	changed := c.full.set(err)
	c.unlock()
	if errors.Is(err, format.ErrNoSpace) && rd.noSpace != nil {
		rd.noSpace()
	}
	switch {
	case !changed:
	case err != nil:
		rd.logger.Warn("the log cannot be written for now: writes are refused until it can", "error", err)
	default:
		rd.logger.Info("the log can be written again")
		// A round that continues with an unfinished Ready submits no waiting work, and a sole voter has no clock that would
		// begin another round.
		rd.seat.Schedule()
	}
}

// fail stops all writing until a restart, so that no write in progress is acknowledged.
func (rd *round) fail(err error) {
	c := rd.state.lock()
	first := c.err == nil
	if first {
		c.err = err
	}
	c.unlock()
	rd.lease.end()
	rd.phase.enter(failed)
	if first {
		rd.logger.Error("the replica has failed and refuses writes until a restart", "error", err)
	}
	rd.abandon(err)
}

// endBroken stops all writing if a message has broken the replica (core.breakDown).
func (rd *round) endBroken() {
	c := rd.state.lock()
	err := c.err
	c.unlock()
	if err != nil && rd.phase != failed {
		rd.fail(err)
	}
}

// abandon answers all remaining calls with an error, and returns how many writes have an unknown outcome.
func (rd *round) abandon(why error) (cut int) {
	c := rd.state.lock()
	answered, cut := c.abandon(why)
	c.unlock()
	writes.Wake(answered)
	return cut
}

// phase is a round's progress with its Ready. A lack of space ends a round within a phase, and the next round continues
// in that phase.
type phase uint8

const (
	idling       phase = iota // no Ready was taken from Raft
	taken                     // a Ready was taken from Raft, and none of its steps is done
	sentEarly                 // the messages that need not wait for the sync were sent
	visibleEarly              // the committed entries that were in the log before this Ready are visible
	appliedEarly              // the membership changes among these entries are recorded, and their writes are answered
	appended                  // the entries and the hard state are in the log, perhaps not synced
	synced                    // the entries and the hard state are durable, or there are none
	sentLate                  // the messages that had to wait for the sync were sent
	visible                   // all committed entries are visible
	applied                   // all membership changes are recorded, and all writes are answered
	failed                    // the replica has failed, and writes nothing until a restart
)

func (p phase) String() string {
	return [...]string{"idle", "taken", "sent early", "visible early", "applied early", "appended", "synced", "sent late",
		"visible", "applied", "failed"}[p]
}

// followers maps each phase to the phases that may follow it. In addition, any phase may be followed by failed.
var followers = [...][]phase{
	idling:       {taken},
	taken:        {sentEarly},
	sentEarly:    {visibleEarly},
	visibleEarly: {appliedEarly},
	appliedEarly: {appended, synced}, // allowed if there is nothing to write
	appended:     {synced},
	synced:       {sentLate},
	sentLate:     {visible},
	visible:      {applied},
	applied:      {idling},
	failed:       {},
}

// enter begins a phase. It panics if the phase is not allowed to follow the current one. The panic fails the replica,
// so that nothing is acknowledged that is not durable.
func (p *phase) enter(next phase) {
	if next != failed && !slices.Contains(followers[*p], next) {
		panic(fmt.Sprintf("phase %q of a round after phase %q", next, *p))
	}
	*p = next
}
