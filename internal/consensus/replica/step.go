package replica

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// ErrLostEntries is the failure of a replica whose log, according to the leader, is shorter than it once was. The
// replica's disk was rolled back, or has lost synced data. The leader relies on the entries that the replica has
// acknowledged, and the replica may also have forgotten votes. Therefore the replica must never run again under its
// Raft id.
var ErrLostEntries = errors.New("the log lacks entries that this replica has acknowledged")

// Transport carries Raft's messages to the other members of a group. Send must not block, must be safe for concurrent
// use, and must not call the replica. Messages may be lost, duplicated and reordered. Send must not change the
// messages.
type Transport interface {
	Send(messages []*raftpb.Message)
}

// noTransport is the transport of a group that has no other members.
type noTransport struct{}

func (noTransport) Send([]*raftpb.Message) {}

// Step receives a message from another member, or a report from the transport. MsgUnreachable reports that a message
// to another member was lost. MsgSnapStatus reports that another member was reinstalled or, with Reject, that it could
// not be reinstalled. Step does not block. It returns an error that gives the reason if the message was not accepted.
// Raft repeats important messages.
func (r *Replica) Step(m *raftpb.Message) error {
	switch {
	case m.GetTo() != r.opts.RaftID:
		return fmt.Errorf("%w: message %v is for replica %x, this is %x", ErrInvalid, m.GetType(), m.GetTo(), r.opts.RaftID)
	case raft.IsLocalMsgTarget(m.GetFrom()) || m.GetFrom() == raft.None:
		return fmt.Errorf("%w: message %v comes from no member", ErrInvalid, m.GetType())
	}
	switch m.GetType() {
	case raftpb.MsgSnap:
		if !r.hasSnapshot(m.GetSnapshot()) {
			r.offer(m)
			return nil
		}
	case raftpb.MsgApp:
		if r.opts.FetchBlobs != nil && len(m.GetEntries()) > 0 {
			if held, err := r.fetchBlobs(m); held || err != nil {
				return err
			}
		}
	}
	return r.take(m)
}

// take passes a message to Raft. It sends the response immediately if the response needs no round.
func (r *Replica) take(m *raftpb.Message) error {
	c := r.state.lock()
	answer, err := c.step(m) // step turns a panic of Raft into an error
	c.unlock()
	if err != nil {
		return err
	}
	if answer != nil {
		r.opts.Transport.Send([]*raftpb.Message{answer})
	}
	r.seat.Schedule()
	return nil
}

// hasSnapshot reports whether the log already has the offered snapshot, so that Raft only has to record the snapshot
// and respond.
func (r *Replica) hasSnapshot(s *raftpb.Snapshot) bool {
	index, term := s.GetMetadata().GetIndex(), s.GetMetadata().GetTerm()
	if index <= r.log.AppliedIndex() {
		return true
	}
	own, err := r.log.Term(index)
	return err == nil && own == term
}

// offer reports an offered snapshot to Options.OnSnapshot. The snapshot's data is fetched outside of Raft, and this
// replica then restarts with that data.
func (r *Replica) offer(m *raftpb.Message) {
	c := r.state.lock()
	c.quiet.wake()
	stale := m.GetTerm() < c.node.term || c.err != nil
	c.unlock()
	if meta := m.GetSnapshot().GetMetadata(); !stale && r.opts.OnSnapshot != nil {
		r.opts.OnSnapshot(meta.GetIndex(), meta.GetTerm(), m.GetFrom())
	}
}

// fetchBlobs delays a message until the blobs that its entries refer to are on this volume. It returns true if it
// delays or drops the message.
func (r *Replica) fetchBlobs(m *raftpb.Message) (held bool, err error) {
	missing, err := r.log.MissingBlobs(m.GetEntries())
	if err != nil {
		return false, fmt.Errorf("message %v: %w", m.GetType(), err)
	}
	if len(missing) == 0 {
		return false, nil
	}
	c := r.state.lock()
	defer c.unlock()
	if c.isOpen() == nil && r.blobs.begin(m, missing) {
		c.quiet.wake()
	}
	return true, nil
}

// step passes a message to Raft. The caller must send the answer that it returns.
func (c *core) step(m *raftpb.Message) (answer *raftpb.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("message %v: panic: %v", m.GetType(), p)
			c.logger.Error("the replica has failed and refuses writes until a restart", "error", err)
			c.breakDown(err)
		}
	}()
	if c.err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFailed, c.err)
	}
	if err := c.hasLost(m); err != nil {
		c.logger.Error("the replica has failed, and is not to run again as what it was", "error", err)
		c.breakDown(err)
		c.announce()
		return nil, fmt.Errorf("message %v: %w", m.GetType(), err)
	}
	answer, taken, err := c.route(m)
	if err != nil {
		return nil, fmt.Errorf("message %v: %w", m.GetType(), err)
	}
	if taken {
		c.observe()
		c.silence.received(m)
	}
	return answer, nil
}

// breakDown marks the replica as failed, with the error err. The next round answers all waiting callers.
func (c *core) breakDown(err error) {
	c.err = err
	c.seat.Schedule()
}

// hasLost returns ErrLostEntries if a heartbeat proves that this member has lost entries. This proof is possible
// because a leader never sends a member a commit index above the last entry that this member has acknowledged as
// synced.
func (c *core) hasLost(m *raftpb.Message) error {
	if m.GetType() != raftpb.MsgHeartbeat || m.GetTerm() < c.node.term {
		return nil
	}
	last, err := c.log.LastIndex()
	if err != nil || m.GetCommit() <= last {
		return err
	}
	return fmt.Errorf("%w: it ends at index %d, and index %d was committed by it", ErrLostEntries, last, m.GetCommit())
}

// route passes a message to the part of the replica that handles it, or drops it. The result taken is false if it
// dropped the message.
func (c *core) route(m *raftpb.Message) (answer *raftpb.Message, taken bool, err error) {
	switch {
	case isQuietMark(m):
		answer, err = c.stepMark(m)
	case m.GetType() == raftpb.MsgTimeoutNow:
		err = c.stepTimeoutNow(m)
	case m.GetType() == raftpb.MsgSnapStatus:
		status := raft.SnapshotFinish
		if m.GetReject() {
			status = raft.SnapshotFailure
		}
		c.node.raft.ReportSnapshot(m.GetFrom(), status)
	case m.GetType() == raftpb.MsgUnreachable:
		c.node.raft.ReportUnreachable(m.GetFrom())
	case m.GetType() == raftpb.MsgHeartbeatResp:
		// A response to a heartbeat does not wake this replica, because the responses to the last heartbeat before a
		// rest may arrive during the rest.
		err = c.node.raft.Step(m)
	case c.isTooEarly(m):
		return nil, false, nil // the request is dropped, because the candidate sends it again
	default:
		err = c.stepOther(m)
	}
	return answer, true, err
}

// stepMark processes a heartbeat whose mark lets this group rest, or the response from a member that cannot rest.
func (c *core) stepMark(m *raftpb.Message) (answer *raftpb.Message, err error) {
	switch {
	case m.GetType() == raftpb.MsgHeartbeatResp:
		if c.node.leader {
			c.quiet.wake() // a member cannot rest, or has restarted
		}
		return nil, nil
	case c.quiet.mayRest(m, c.isBusy):
		c.idle.resting.Store(true)
		return nil, nil
	}
	c.quiet.wake()
	unmarked := &raftpb.Message{Type: m.Type, From: m.From, To: m.To, Term: m.Term, Commit: m.Commit}
	if err := c.node.raft.Step(unmarked); err != nil {
		return nil, err
	}
	c.observe()
	if m.GetTerm() != c.node.term {
		return nil, nil // Raft itself responds to this message
	}
	return &raftpb.Message{
		Type: raftpb.MsgHeartbeatResp.Enum(), From: m.To, To: m.From, Term: m.Term, Context: quietMark,
	}, nil
}

// stepTimeoutNow processes a MsgTimeoutNow.
func (c *core) stepTimeoutNow(m *raftpb.Message) error {
	switch barred := c.barred(); {
	case c.transfer.keep(m, barred):
		c.quiet.wake()
		return nil
	case c.node.behindFloor():
		return fmt.Errorf("%w: the lead, while entries are being applied that were compacted away or repaired", ErrInvalid)
	case barred:
		return fmt.Errorf("%w: the lead, with damage in the log", ErrInvalid)
	}
	return c.stepOther(m)
}

func (c *core) stepOther(m *raftpb.Message) error {
	c.quiet.wake()
	if asksForVote(m) && m.GetFrom() == c.node.leaderID && m.GetTerm() > c.node.term && !c.node.leader {
		// A member that requests votes in a new term no longer leads, so there is no need to wait until its lease ends.
		if err := c.node.raft.ForgetLeader(); err != nil {
			return err
		}
	}
	return c.node.raft.Step(m)
}

// followTimeoutNow campaigns if a kept MsgTimeoutNow is due. It must be called after entries were applied.
func (c *core) followTimeoutNow() {
	m := c.transfer.due()
	if m == nil || c.barred() {
		return
	}
	if err := c.node.raft.Step(m); err != nil {
		c.logger.Debug("a call to lead was not taken", "error", err)
	}
	c.observe()
}
