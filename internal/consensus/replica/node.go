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

// Raft counts in ticks of 100 ms. An election begins after 1 to 2 s of silence.
const (
	electionTicks  = 10
	heartbeatTicks = 2
	// electionTimeout is how long a follower hears nothing of its leader before it may campaign.
	electionTimeout = electionTicks * rounds.Tick
)

// Bounds of Raft's messages and of what is applied at once, in bytes.
const (
	messageBytesMax  = 1 << 20
	applyBytesMax    = 16 << 20
	inflightMessages = 256
)

// standing is what Raft says about the leadership.
type standing struct {
	leader     bool
	leaderID   uint64 // 0: none known
	term       uint64
	transferee uint64 // whom the lead is handed to; 0: nobody
}

// node is Raft's node, and what is known of its leadership. It belongs to a core.
type node struct {
	id   uint64
	log  store
	raft *raft.RawNode

	standing // as it was seen last
	// serving: this replica leads, and an entry of its own term is applied, so that it holds everything that was ever
	// acknowledged.
	serving bool
	// lost: leadership or term changed. What is on its way is to be answered as unknown, unless it is seen applied.
	lost    bool
	applied uint64 // index
}

// startRaft makes Raft's node of what the log says, and gives the membership.
func (n *node) startRaft(logger *slog.Logger) (conf *raftpb.ConfState, err error) {
	defer func() {
		// Raft panics where what the log says contradicts itself.
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
		DisableProposalForwarding: true,  // conditions are evaluated by the leader
		StepDownOnRemoval:         false, // transfer.yield: nobody else may know yet that it is no member
		Logger:                    raftLogger{logger},
	})
	if err != nil {
		return nil, fmt.Errorf("start Raft: %w", err)
	}
	return conf, nil
}

// now is what Raft says at this moment.
func (n *node) now() standing {
	status := n.raft.BasicStatus()
	return standing{
		leader: status.RaftState == raft.StateLeader, leaderID: status.Lead,
		term: status.GetTerm(), transferee: status.LeadTransferee,
	}
}

// propose gives entries to Raft as the leader. An error says that Raft took none of them: it lost the leadership, or
// hands it over.
func (n *node) propose(entries ...*raftpb.Entry) error {
	return n.raft.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(n.id), Entries: entries})
}

// hasAll tells that everything in the log is applied, and gives the last index.
func (n *node) hasAll() (last uint64, all bool) {
	last, err := n.log.LastIndex()
	return last, err == nil && n.applied == last
}

// behindFloor tells that the log has dropped entries which are applied, but of which Raft was not told yet: a
// compaction or a repair can, and the end of the round that applied them tells it. Raft reads what it takes for
// unapplied before it campaigns, and panics where that is gone.
func (n *node) behindFloor() bool {
	first, err := n.log.FirstIndex()
	return err == nil && first > n.raft.BasicStatus().Applied+1
}

// isFromLeader tells that a message comes from the leader of this term.
func (n *node) isFromLeader(m *raftpb.Message) bool {
	return m.GetFrom() == n.leaderID && m.GetTerm() == n.term
}

func isVoter(conf *raftpb.ConfState, id uint64) bool {
	return slices.Contains(conf.GetVoters(), id) || slices.Contains(conf.GetVotersOutgoing(), id)
}

// monotonicZero is the zero of leases.
var monotonicZero = time.Now()

// monotonic is the time of this process's own clock, in ns: it goes on while the process is stopped, and nobody sets
// it.
func monotonic() int64 { return int64(time.Since(monotonicZero)) }

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
