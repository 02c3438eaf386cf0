package replica

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/replica/rounds"
)

// Raft counts time in ticks of 100 ms. An election begins after 1 to 2 s without a message from the leader.
const (
	electionTicks  = 10
	heartbeatTicks = 2
	// electionTimeout is the time without a message from the leader after which a follower may campaign.
	electionTimeout = electionTicks * rounds.Tick
)

// These are limits, in bytes, on Raft's messages and on how much is applied at a time.
const (
	messageBytesMax  = 1 << 20
	applyBytesMax    = 16 << 20
	inflightMessages = 256
)

// standing is Raft's view of the leadership.
type standing struct {
	leader     bool
	leaderID   uint64 // 0 if no leader is known
	term       uint64
	transferee uint64 // the new leader of a transfer in progress, or 0 if there is no transfer
}

// node holds Raft's node, and the state of the leadership as last observed. It is part of a core, whose mutex guards
// it.
type node struct {
	id   uint64
	log  store
	raft *raft.RawNode

	standing // the leadership as last observed
	// serving means that this replica leads and has applied an entry of its own term, so that it holds everything
	// that was ever acknowledged.
	serving bool
	// lost means that the leadership was lost or the term changed. The outcome of each write in progress is unknown,
	// unless its entry is applied later.
	lost    bool
	applied uint64 // index of the last applied entry
}

// startRaft creates Raft's node from the state in the log, and returns the membership.
func (n *node) startRaft(logger *slog.Logger) (conf *raftpb.ConfState, err error) {
	defer func() {
		// Raft panics if the state in the log contradicts itself.
		if p := recover(); p != nil {
			err = fmt.Errorf("the log cannot be a Raft log: %v", p)
		}
	}()
	state, conf, err := n.log.InitialState()
	if err != nil {
		return nil, fmt.Errorf("read the Raft state: %w", err)
	}
	commit, err := committedByChanges(n.log)
	if err != nil {
		return nil, fmt.Errorf("read what is not applied: %w", err)
	}
	n.applied = n.log.AppliedIndex()
	n.raft, err = raft.NewRawNode(&raft.Config{
		ID:                        n.id,
		ElectionTick:              electionTicks,
		HeartbeatTick:             heartbeatTicks,
		Storage:                   storage{n.log, commit},
		Applied:                   min(n.applied, state.GetCommit()),
		MaxSizePerMsg:             messageBytesMax,
		MaxCommittedSizePerReady:  applyBytesMax,
		MaxInflightMsgs:           inflightMessages,
		CheckQuorum:               true,
		PreVote:                   true,
		DisableProposalForwarding: true, // writes are not forwarded, because only the leader evaluates their conditions
		// The other members may not know yet that this one was removed; see transfer.yield.
		StepDownOnRemoval: false,
		Logger:            raftLogger{logger},
	})
	if err != nil {
		return nil, fmt.Errorf("start Raft: %w", err)
	}
	return conf, nil
}

// now returns Raft's current view of the leadership.
func (n *node) now() standing {
	status := n.raft.BasicStatus()
	return standing{
		leader: status.RaftState == raft.StateLeader, leaderID: status.Lead,
		term: status.GetTerm(), transferee: status.LeadTransferee,
	}
}

// propose passes entries to Raft as the leader. An error means that Raft accepted none of them, because it lost the
// leadership or is transferring it.
func (n *node) propose(entries ...*raftpb.Entry) error {
	return n.raft.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(n.id), Entries: entries})
}

// hasAll returns the last index of the log, and reports whether everything up to it is applied.
func (n *node) hasAll() (last uint64, all bool) {
	last, err := n.log.LastIndex()
	return last, err == nil && n.applied == last
}

// behindFloor reports whether the log has dropped entries that are applied, but not yet reported to Raft as applied.
// Only at its end does a round report the entries that it has applied, and a compaction or a repair can drop them
// before that. If Raft then campaigned, it would panic, because it first reads the entries that it believes are not
// applied.
func (n *node) behindFloor() bool {
	first, err := n.log.FirstIndex()
	return err == nil && first > n.raft.BasicStatus().Applied+1
}

// isFromLeader reports whether a message comes from the leader of this term.
func (n *node) isFromLeader(m *raftpb.Message) bool {
	return m.GetFrom() == n.leaderID && m.GetTerm() == n.term
}

func isVoter(conf *raftpb.ConfState, id uint64) bool {
	return slices.Contains(conf.GetVoters(), id) || slices.Contains(conf.GetVotersOutgoing(), id)
}

// monotonicZero is the zero point of lease times.
var monotonicZero = time.Now()

// monotonic returns this process's monotonic time, in ns. This clock continues while the process is stopped, and cannot
// be set.
func monotonic() int64 { return int64(time.Since(monotonicZero)) }

// raftLogger is a Raft logger that writes to slog. Its Panicf must not return.
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
