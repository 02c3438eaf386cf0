package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/group"
)

// Raft counts in ticks of 100 ms. An election begins after 1 to 2 s of silence.
const (
	electionTicks  = 10
	heartbeatTicks = 2
)

// Bounds of Raft's messages and of what is applied at once, in bytes.
const (
	messageBytesMax  = 1 << 20
	applyBytesMax    = 16 << 20
	inflightMessages = 256
)

func (r *Replica) makeNode() (err error) {
	defer func() {
		// Raft panics where what the log says contradicts itself.
		if p := recover(); p != nil {
			err = fmt.Errorf("the log cannot be a Raft log: %v", p)
		}
	}()
	state, conf, err := r.log.InitialState()
	if err != nil {
		return fmt.Errorf("read the Raft state: %w", err)
	}
	commit, err := committedByChanges(r.log)
	if err != nil {
		return fmt.Errorf("read what is not applied: %w", err)
	}
	r.applied = r.log.AppliedIndex()
	r.startedApplied = r.applied
	r.node, err = raft.NewRawNode(&raft.Config{
		ID:                        r.opts.RaftID,
		ElectionTick:              electionTicks,
		HeartbeatTick:             heartbeatTicks,
		Storage:                   storage{r.log, commit},
		Applied:                   min(r.applied, state.GetCommit()),
		MaxSizePerMsg:             messageBytesMax,
		MaxCommittedSizePerReady:  applyBytesMax,
		MaxInflightMsgs:           inflightMessages,
		CheckQuorum:               true,
		PreVote:                   true,
		DisableProposalForwarding: true,  // conditions are evaluated by the leader
		StepDownOnRemoval:         false, // it hands the lead over: nobody else may know yet that it is no member (tell)
		Logger:                    raftLogger{r.logger},
	})
	if err != nil {
		return fmt.Errorf("start Raft: %w", err)
	}
	r.setMembers(conf)
	r.startedConf = r.log.ConfIndex()
	r.confIndex = r.startedConf
	r.observe()
	return nil
}

// elect runs the election of a sole voter, in the caller's goroutine.
func (r *Replica) elect() {
	if !r.begin() {
		return
	}
	defer r.endAndPush()
	defer r.guard()
	if !r.campaign() {
		return
	}
	for r.runOnce() {
	}
}

func (r *Replica) campaign() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.sole {
		return false
	}
	if err := r.node.Campaign(); err != nil {
		r.logger.Error("campaign", "error", err)
	}
	r.observe()
	return true
}

// observe takes over what Raft says about the leadership. Called with mu held.
func (r *Replica) observe() {
	status := r.node.BasicStatus()
	leader := status.RaftState == raft.StateLeader
	if r.leader != leader || r.term != status.GetTerm() {
		r.serving, r.lost, r.told = false, true, told{}
		r.readable.Store(false)
		r.endLease()
	}
	news := r.leader != leader || r.leaderID != status.Lead || r.term != status.GetTerm() || r.transferee != status.LeadTransferee
	if !news {
		return
	}
	r.wake()
	if r.leaderID != status.Lead {
		r.askAgain()
		if status.Lead != raft.None {
			r.endFetches(errLeaderGone, func(from uint64) bool { return from == status.Lead })
		}
	}
	r.leader, r.leaderID, r.term, r.transferee = leader, status.Lead, status.GetTerm(), status.LeadTransferee
	r.noteTransfer()
	if leader && r.unsafe(UnsafeServe) {
		r.serving = true
	}
	r.announce()
}

// barred tells that damage keeps this replica from leading (rule 4): with other voters one of them can. Called with mu held.
func (r *Replica) barred() bool { return !r.sole && r.log.Damaged() && !r.unsafe(UnsafeDamage) }

func isVoter(conf *raftpb.ConfState, id uint64) bool {
	return slices.Contains(conf.GetVoters(), id) || slices.Contains(conf.GetVotersOutgoing(), id)
}

// setMembers is called with mu held or before the replica is known to others.
func (r *Replica) setMembers(conf *raftpb.ConfState) {
	r.conf = conf
	id := r.opts.RaftID
	r.member = isVoter(conf, id) || slices.Contains(conf.GetLearners(), id) || slices.Contains(conf.GetLearnersNext(), id)
	voters := conf.GetVoters()
	joint := len(conf.GetVotersOutgoing()) > 0
	r.sole = len(voters) == 1 && voters[0] == r.opts.RaftID && !joint
	r.alone.Store(r.sole && len(conf.GetLearners()) == 0 && len(conf.GetLearnersNext()) == 0)
	r.readable.Store(r.sole && r.serving)
}

// changeMembers applies an entry of Raft's own, unless the log had it when this replica started: the membership is durable
// before the commit index need be.
func (r *Replica) changeMembers(e *raftpb.Entry) error {
	if e.GetIndex() <= r.startedConf {
		return nil
	}
	if r.round.unrecorded == nil {
		change, err := changeOf(e)
		if err != nil {
			return fmt.Errorf("membership change: %w", err)
		}
		r.round.unrecorded = r.applyChange(change, e.GetIndex())
	}
	if err := r.log.SetConf(r.round.unrecorded, e.GetIndex()); err != nil {
		return fmt.Errorf("membership change: %w", err)
	}
	r.round.unrecorded = nil
	return nil
}

// changeOf reads the membership change of an entry.
func changeOf(e *raftpb.Entry) (raftpb.ConfChangeI, error) {
	if e.GetType() == raftpb.EntryConfChange {
		first := &raftpb.ConfChange{}
		return first, proto.Unmarshal(e.Data, first)
	}
	second := &raftpb.ConfChangeV2{}
	return second, proto.Unmarshal(e.Data, second)
}

func (r *Replica) applyChange(change raftpb.ConfChangeI, at uint64) *raftpb.ConfState {
	r.mu.Lock()
	defer r.mu.Unlock() // Raft panics where it cannot
	conf := r.node.ApplyConfChange(change)
	r.noteConf(conf, at)
	r.observe()
	return conf
}

// guard turns a panic of Raft or the log into the failure of this replica: its neighbours go on.
func (r *Replica) guard() {
	if p := recover(); p != nil {
		r.logger.Error("panic in the round of a replica", "panic", p, "stack", string(debug.Stack()))
		r.fail(fmt.Errorf("panic: %v", p))
	}
}

// fail ends the writing for good: nothing on its way is acknowledged any more.
func (r *Replica) fail(err error) {
	r.mu.Lock()
	first := r.err == nil
	if first {
		r.err = err
	}
	r.endLease()
	r.mu.Unlock()
	r.round.failed = true
	if first {
		r.logger.Error("the replica has failed and refuses writes until a restart", "error", err)
	}
	r.abandon(err)
}

// endBroken fails the replica where Raft panicked over a message.
func (r *Replica) endBroken() {
	r.mu.Lock()
	broken, err := r.broken && !r.round.failed, r.err
	r.mu.Unlock()
	if broken {
		r.fail(err)
	}
}

// abandon answers everything that is left, and tells how many writes have an unknown outcome.
func (r *Replica) abandon(why error) (cut int) {
	r.mu.Lock()
	cut = r.logged.len()
	r.answerLost(fmt.Errorf("%w: %w", ErrOutcomeUnknown, why), fmt.Errorf("%w: %w", ErrFailed, why))
	r.loseChange(why)
	r.failReaders(why)
	r.checkDrained()
	done := r.round.answered
	r.round.answered = nil
	r.mu.Unlock()
	for _, p := range done {
		close(p.done)
	}
	return cut
}

// setNoRoom notes that the log has no room, or has room again.
func (r *Replica) setNoRoom(err error) {
	if err == nil && !r.stuck.Load() {
		return
	}
	r.mu.Lock()
	changed := (err == nil) != (r.noRoom == nil)
	r.noRoom = err
	r.stuck.Store(err != nil)
	if changed {
		r.retryWait = 0
	}
	r.retryWait = min(max(1, 2*r.retryWait), retryTicksMax)
	r.retryTicks = r.retryWait
	r.mu.Unlock()
	if errors.Is(err, group.ErrNoSpace) && r.opts.NoRoom != nil {
		r.opts.NoRoom()
	}
	switch {
	case !changed:
	case err != nil:
		r.logger.Warn("the log has no room: writes are refused until there is some", "error", err)
	default:
		r.logger.Info("the log has room again")
	}
}

// raftLogger is Raft's logger on slog. Raft's Panicf must not return.
type raftLogger struct{ logger *slog.Logger }

func (l raftLogger) Debug(...any)                {}
func (l raftLogger) Debugf(string, ...any)       {}
func (l raftLogger) Info(v ...any)               { l.logger.Debug(fmt.Sprint(v...)) }
func (l raftLogger) Infof(f string, v ...any)    { l.logger.Debug(fmt.Sprintf(f, v...)) }
func (l raftLogger) Warning(v ...any)            { l.logger.Warn(fmt.Sprint(v...)) }
func (l raftLogger) Warningf(f string, v ...any) { l.logger.Warn(fmt.Sprintf(f, v...)) }
func (l raftLogger) Error(v ...any)              { l.logger.Error(fmt.Sprint(v...)) }
func (l raftLogger) Errorf(f string, v ...any)   { l.logger.Error(fmt.Sprintf(f, v...)) }
func (l raftLogger) Fatal(v ...any)              { panic(fmt.Sprint(v...)) }
func (l raftLogger) Fatalf(f string, v ...any)   { panic(fmt.Sprintf(f, v...)) }
func (l raftLogger) Panic(v ...any)              { panic(fmt.Sprint(v...)) }
func (l raftLogger) Panicf(f string, v ...any)   { panic(fmt.Sprintf(f, v...)) }
