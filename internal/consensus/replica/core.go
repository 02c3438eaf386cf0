package replica

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
	"sheaf.dev/sheaf/internal/consensus/replica/writes"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// guarded gives access to a core only while the core's mutex is locked, so code that has a *core holds the mutex. The
// comments of a core's functions, and of those of its parts, do not repeat this.
type guarded struct{ core core }

func (g *guarded) lock() *core {
	g.core.mu.Lock()
	return &g.core
}

// core is the state of a replica, which consists of Raft's node and the parts around it. Each part has its own state,
// and is given the parts that it calls. The core makes the decisions that concern several parts.
type core struct {
	mu  sync.Mutex
	err error // the reason why the replica has failed for good, or nil

	seat      *rounds.Seat
	logger    *slog.Logger
	log       store
	rules     rules.Off
	lease     *lease
	idle      *idle
	blobs     *blobFetches
	forming   func(conf *raftpb.ConfState) bool // Options.Forming
	onChange  func()                            // Options.OnChange
	startedAt time.Time

	node     node
	writes   *writes.Queue
	members  members
	silence  silence
	quiet    quiet
	reads    reads
	transfer transfer
	full     fullLog

	ending  bool          // whether End is in progress
	formed  bool          // whether Options.Forming has ever allowed writes
	changed chan struct{} // closed by announce; nil if no caller waits
	// hangs is closed and replaced if the leadership is lost while a disk hangs. In that case no round finishes, so the
	// writes in progress are not answered. When hangs is closed, their callers stop waiting, and can turn to the members
	// that still work.
	hangs     chan struct{}
	lostTicks int // ticks since the leadership was lost

	stopping bool
	drained  chan struct{} // created by Stop; closed when all writes have been answered
}

func (c *core) unlock() { c.mu.Unlock() }

// init creates the parts, gives each part the other parts that it may use, and starts Raft.
func (c *core) init(opts *Options, log store, proposals writes.Options) error {
	c.logger, c.log, c.rules, c.forming, c.onChange = opts.Logger, log, opts.Off, opts.Forming, opts.OnChange
	c.startedAt, c.hangs = time.Now(), make(chan struct{})
	c.node = node{id: opts.RaftID, log: log}
	proposals.Declined = c.declined
	c.writes = writes.New(proposals)
	c.members = members{node: &c.node, seat: c.seat, logger: c.logger, idle: c.idle}
	c.silence = silence{node: &c.node, members: &c.members, logger: c.logger, rules: c.rules}
	c.quiet = quiet{
		node: &c.node, members: &c.members, silence: &c.silence, seat: c.seat, idle: c.idle, allowed: opts.Quiet,
	}
	c.reads = reads{
		node: &c.node, members: &c.members, quiet: &c.quiet, writes: c.writes, lease: c.lease, seat: c.seat,
		rules: c.rules, nonce: rand.Uint64(),
	}
	c.transfer = transfer{node: &c.node, members: &c.members, silence: &c.silence, logger: c.logger}
	c.full = fullLog{idle: c.idle}
	conf, err := c.node.startRaft(c.logger)
	if err != nil {
		return err
	}
	c.members.set(conf, log.ConfIndex())
	c.observe()
	return nil
}

// isOpen returns an error if the replica has failed or is stopping.
func (c *core) isOpen() error {
	switch {
	case c.err != nil:
		return fmt.Errorf("%w: %w", ErrFailed, c.err)
	case c.stopping:
		return ErrStopping
	}
	return nil
}

// barred reports whether damage prevents this replica from leading (rule 4, rules.Damage). Damage never bars the only
// voter, because no other member can lead.
func (c *core) barred() bool {
	return !c.members.sole && c.log.Damaged() && c.rules.Keeps(rules.Damage)
}

// observe updates the replica with Raft's current view of the leadership.
func (c *core) observe() {
	was, now := c.node.standing, c.node.now()
	if now == was {
		return
	}
	c.node.standing = now
	if was.leader != now.leader || was.term != now.term {
		c.node.serving, c.node.lost, c.members.confirmation = false, true, confirmation{}
		c.lease.endAll()
	}
	c.quiet.wake()
	if was.leaderID != now.leaderID {
		c.reads.askAgain()
		if now.leaderID != raft.None {
			c.blobs.end(errLeaderGone, func(from uint64) bool { return from == now.leaderID })
		}
	}
	if now.leader && now.transferee != raft.None {
		c.reads.transferBegun()
	}
	if now.leader && !c.rules.Keeps(rules.Serve) {
		c.node.serving = true
	}
	c.announce()
}

// announce wakes the callers that wait for a change of the leader, the term or the membership.
func (c *core) announce() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
	if c.onChange != nil {
		c.onChange()
	}
}

// isBusy reports whether this replica has any work in progress.
func (c *core) isBusy() bool {
	return !c.writes.IsEmpty() || c.reads.isBusy() || c.members.isChanging() || c.node.transferee != raft.None ||
		c.full.err != nil || c.err != nil
}

// submit passes all waiting work to Raft, in this order: the accepted writes, a membership change, the command to
// leave a joint membership, and the confirmation. It must not be called while a Ready is being taken.
func (c *core) submit() {
	if c.node.lost {
		return // writes from before the loss of the leadership must be answered first
	}
	c.submitWrites()
	c.members.submitChange()
	c.members.submitLeave()
	c.members.submitConfirmation()
}

// stub replaces an entry whose payload Raft does not need.
var stub = &raftpb.Entry{Data: []byte{0}}

// submitWrites passes the accepted writes to Raft in one message.
//
// Raft copies its input. To avoid copying the payloads, Raft gets only stubs if no entry has to be sent to another
// member. In that case stored puts the payload into Raft's entry before any other code sees the entry. If there are
// other members, Raft must know the sizes of the payloads to limit the size of its messages.
//
// Without the stub, durable puts of 10 KB into one group take 1.28 times the CPU time (median of eight pairs of
// alternating runs of BenchmarkDurablePut, 1.15 to 1.46). For puts of 100 bytes, the stub makes no difference.
func (c *core) submitWrites() {
	taken := c.writes.Take()
	if len(taken) == 0 {
		return
	}
	onlyMember := c.idle.onlyMember.Load()
	entries := make([]*raftpb.Entry, len(taken))
	for i, p := range taken {
		if entries[i] = stub; !onlyMember {
			entries[i] = &raftpb.Entry{Data: p.Payload()}
		}
	}
	if err := c.node.propose(entries...); err != nil {
		c.writes.TurnedDown(taken, notServing(ErrNoLeader, err.Error()))
		return
	}
	c.writes.Taken(taken)
}

// ready returns the next Ready from Raft.
func (c *core) ready() raft.Ready {
	rd := c.node.raft.Ready()
	if rd.SoftState != nil || rd.GetTerm() > c.node.term {
		c.observe()
	}
	if len(rd.Entries) > 0 {
		c.stored(rd.Entries)
	}
	for _, state := range rd.ReadStates {
		c.reads.answered(state)
	}
	return rd
}

// stored tells each write the index that Raft has chosen for it, and puts the write's payload into Raft's entry. Raft
// also adds empty entries and membership changes. Every other entry in this term is a write.
func (c *core) stored(entries []*raftpb.Entry) {
	for _, e := range entries {
		if c.writes.Awaits() && e.GetType() == raftpb.EntryNormal && len(e.Data) > 0 && e.GetTerm() == c.node.term {
			e.Data = c.writes.Index(e.GetIndex(), e.GetTerm())
		}
	}
	c.members.stored(entries)
	c.writes.Extends(entries[len(entries)-1].GetIndex())
}

// setMembers adopts the membership that resulted from the change at the given index.
func (c *core) setMembers(conf *raftpb.ConfState, at uint64) {
	c.members.applied(conf, at)
	c.lease.soleVoter.Store(c.members.sole && c.node.serving)
	c.announce()
}

// complete answers the writes whose entries were committed and applied. Then it answers the writes that are lost
// because the leadership was lost. The argument requests holds the requests of the entries that have become visible.
func (c *core) complete(committed []*raftpb.Entry, requests []format.Request, syncs *writes.SyncLog) {
	c.writes.Remember(requests)
	for _, e := range committed {
		c.completeOne(e, syncs)
	}
	if c.node.lost {
		c.node.lost = false
		why := errLeadLost.Error()
		c.members.abandon(errLeadLost)
		c.writes.AbandonAll(notServing(ErrOutcomeUnknown, why), notServing(ErrNoLeader, why))
		c.reads.refuseDeclined(notServing(ErrNoLeader, why))
	}
	c.reads.release()
	c.checkDrained()
}

func (c *core) completeOne(e *raftpb.Entry, syncs *writes.SyncLog) {
	c.node.applied = e.GetIndex()
	if c.members.committed(c.node.applied) {
		c.announce()
	}
	c.writes.Commit(e.GetIndex(), e.GetTerm(), syncs)
	if c.node.leader && !c.node.serving && e.GetTerm() == c.node.term {
		c.node.serving = true
		if ahead := c.writes.Serve(); ahead > time.Minute {
			c.logger.Warn("the last commit time is ahead of this machine's clock, or another's was: "+
				"commit times stand still until it is reached", "ahead", ahead)
		}
		c.lease.soleVoter.Store(c.members.sole)
	}
}

// abandon answers all remaining calls with an error. It returns the writes that it answered, and the number of writes
// whose outcome is unknown.
func (c *core) abandon(why error) (answered []*Pending, cut int) {
	cut = c.writes.Logged()
	c.writes.AbandonAll(fmt.Errorf("%w: %w", ErrOutcomeUnknown, why), fmt.Errorf("%w: %w", ErrFailed, why))
	c.members.abandon(why)
	c.reads.fail(why)
	c.checkDrained()
	return c.writes.Answered(nil), cut
}

// refuse makes the replica refuse new writes. The returned channel is closed when all writes in progress have been
// answered.
func (c *core) refuse() <-chan struct{} {
	if !c.stopping {
		c.stopping = true
		c.drained = make(chan struct{})
		c.checkDrained()
	}
	return c.drained
}

// checkDrained closes drained if all writes have been answered. It must be called after every answer.
func (c *core) checkDrained() {
	if c.drained == nil || !c.writes.IsEmpty() {
		return
	}
	select {
	case <-c.drained:
	default:
		close(c.drained)
	}
}

// idle records whether the clock may skip a replica, and why. The clock reads these fields for each group on the
// volume, so they can be read without the core's mutex.
type idle struct {
	onlyMember atomic.Bool // the group has no other member, not even a learner, so Raft needs no clock
	resting    atomic.Bool // the group rests, so Raft needs no clock
	stuck      atomic.Bool // the log has no space, so the clock must run in order to try again
	ended      atomic.Bool // the group has ended, according to its membership (see format.EndedID)
}

func (i *idle) needsTick() bool { return !i.onlyMember.Load() && !i.resting.Load() || i.stuck.Load() }

// fullLog records that the log had no space on disk or in memory, and when to try again. It is part of a core, whose
// mutex guards it.
type fullLog struct {
	idle  *idle
	err   error // nil if there is space
	ticks int   // ticks until the next attempt
	wait  int   // ticks between the last two attempts
}

// retryTicksMax is the longest wait between two attempts to write to a log without space. The first wait is 1 tick,
// and each further wait is twice as long, up to this limit.
const retryTicksMax = 10

// set records the result of the last attempt to write.
func (f *fullLog) set(err error) (changed bool) {
	changed = (err == nil) != (f.err == nil)
	f.err = err
	f.idle.stuck.Store(err != nil)
	if changed {
		f.wait = 0
	}
	f.wait = min(max(1, 2*f.wait), retryTicksMax)
	f.ticks = f.wait
	return changed
}

// tick counts a tick, and reports whether it is time for another attempt.
func (f *fullLog) tick() bool {
	f.ticks--
	return f.ticks <= 0
}
