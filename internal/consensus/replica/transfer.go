package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// ErrNotTransferred means that the leadership was not transferred, because another member leads, or no member leads
// yet.
var ErrNotTransferred = errors.New("the lead was not handed over")

const (
	// transferTimeMax bounds the wait for the election after a transfer.
	transferTimeMax = 3 * electionTimeout
	// transferLagMax is the maximum number of entries that a voter may lack when the leadership is transferred to it.
	// Writes are refused until the voter has these entries.
	transferLagMax = 1000
	// timeoutNowTicksMax is the number of ticks for which a MsgTimeoutNow is kept.
	timeoutNowTicksMax = electionTicks / 2
	// yieldTicks is the number of ticks between two attempts to yield. The pause is needed because writes are refused
	// during an attempt.
	yieldTicks = 5 * electionTicks
	// barredTicksMax is the number of ticks for which a damaged leader tries to transfer the leadership to a member that
	// has all entries.
	barredTicksMax = 2 * yieldTicks
)

// transfer is the state of leadership transfers to and from this replica. It is part of a core, whose mutex guards it.
type transfer struct {
	node    *node
	members *members
	silence *silence
	logger  *slog.Logger

	timeoutNow  *raftpb.Message // a MsgTimeoutNow that was received too early, or nil if there is none
	keptTicks   int             // ticks since timeoutNow was received
	yieldTicks  int             // number of ticks until damage may cause the next leadership transfer
	barredTicks int             // number of ticks for which damage has barred this leader
}

// begin begins to transfer the leadership to a voter. If the voter is not ready yet, begin returns false, and the
// leader brings the voter up to date.
func (t *transfer) begin(to uint64) (begun bool, err error) {
	switch {
	case !t.node.leader:
		return false, ErrNoLeader
	case !slices.Contains(t.members.conf.GetVoters(), to):
		return false, fmt.Errorf("%w: replica %x is no voter of the group", ErrInvalid, to)
	case !t.isReady(to):
		return false, nil
	}
	t.node.raft.TransferLeader(to)
	return true, nil
}

// failed returns why a transfer to a voter has failed, or nil if it has not failed.
func (t *transfer) failed(to uint64) error {
	switch {
	case t.node.leader && t.node.transferee != to:
		return fmt.Errorf("%w: replica %x did not take it within an election timeout", ErrNotTransferred, to)
	case !t.node.leader && t.node.leaderID != raft.None:
		return fmt.Errorf("%w: replica %x leads instead of %x", ErrNotTransferred, t.node.leaderID, to)
	}
	return nil
}

// isReady reports whether a voter lacks so few entries that it may become leader, and has the membership change that
// gave it its vote.
func (t *transfer) isReady(to uint64) (ready bool) {
	last, err := t.node.log.LastIndex()
	if err != nil {
		return false
	}
	t.node.raft.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		if id == to {
			ready = id == t.node.id || !t.silence.down[id] && pr.State == tracker.StateReplicate &&
				pr.Match >= t.members.index && pr.Match+transferLagMax >= last
		}
	})
	return ready
}

// keep stores a MsgTimeoutNow until this replica has applied everything that it knows to be committed. Before that,
// Raft would ignore the message, and writes would be refused for an election timeout. keep returns false, and stores
// nothing, if the replica can campaign now, or can never campaign.
func (t *transfer) keep(m *raftpb.Message, barred bool) bool {
	if t.canCampaign() || !t.node.isFromLeader(m) || !t.members.isMember || barred {
		return false
	}
	t.timeoutNow, t.keptTicks = m, 0
	return true
}

// canCampaign reports whether Raft would let this replica campaign.
func (t *transfer) canCampaign() bool {
	status := t.node.raft.BasicStatus()
	return t.members.isVoter() && status.Applied >= status.GetCommit()
}

// due returns the kept MsgTimeoutNow if this replica can campaign now, otherwise nil. It must be called after entries
// were applied.
func (t *transfer) due() *raftpb.Message {
	m := t.timeoutNow
	if m == nil || !t.canCampaign() {
		return nil
	}
	t.timeoutNow = nil
	if !t.node.isFromLeader(m) {
		return nil
	}
	return m
}

// tick drops a MsgTimeoutNow that is too old, because the leader that sent it has given up the transfer.
func (t *transfer) tick() {
	if t.timeoutNow == nil {
		return
	}
	if t.keptTicks++; t.keptTicks > timeoutNowTicksMax {
		t.timeoutNow = nil
	}
}

// yield transfers the leadership to the most advanced member if the log has damage (safety rule 4), or if the leader
// is no longer a voter. The clock calls it on a leader that has other members.
//
// Raft transfers the leadership only to a member that has all entries. If the damaged entries are among those that no
// other member has, and that are therefore not committed, no member will ever have all of them. In that case yield asks
// one member to campaign without these entries, provided that the other voters can elect it. The returned MsgTimeoutNow
// must be sent after observe has ended the leases.
func (t *transfer) yield(barred bool) (call *raftpb.Message) {
	if t.barredTicks++; !barred {
		t.barredTicks = 0
	}
	if t.yieldTicks--; t.yieldTicks > 0 || t.node.transferee != raft.None {
		return nil
	}
	waits := t.barredTicks < barredTicksMax
	to := t.transferTarget(waits)
	if to == raft.None {
		return nil
	}
	t.yieldTicks = yieldTicks
	t.logger.Warn("the log is damaged, or this is no voter any more: the lead is handed over", "to", fmt.Sprintf("%x", to),
		"without_last_entries", !waits)
	t.node.raft.TransferLeader(to)
	if waits {
		return nil
	}
	return &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: new(t.node.id), To: new(to), Term: new(t.node.term)}
}

// transferTarget returns the live voter that is known to have the most entries, or 0 if there is none. If waits is
// false, the target cannot wait for more entries. In that case, transferTarget also returns 0 if too few voters are
// alive to elect the target without this leader, whose log is longer.
func (t *transfer) transferTarget(waits bool) (to uint64) {
	var match uint64
	there := map[uint64]bool{}
	t.node.raft.WithProgress(func(id uint64, kind raft.ProgressType, pr tracker.Progress) {
		if kind != raft.ProgressTypePeer || !pr.RecentActive || id == t.node.id || t.silence.down[id] {
			return
		}
		there[id] = true
		able := slices.Contains(t.members.conf.GetVoters(), id) && (!waits || pr.State == tracker.StateReplicate)
		if able && (to == raft.None || pr.Match > match) {
			to, match = id, pr.Match
		}
	})
	for _, voters := range [][]uint64{t.members.conf.GetVoters(), t.members.conf.GetVotersOutgoing()} {
		votes := 0
		for _, id := range voters {
			if there[id] {
				votes++
			}
		}
		if !waits && len(voters) > 0 && 2*votes <= len(voters) {
			return raft.None
		}
	}
	return to
}
