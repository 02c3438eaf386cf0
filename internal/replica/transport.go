package replica

import (
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Transport carries Raft's messages to the other members of a group. Send must not block; messages may be lost,
// doubled and reordered. The messages must not be changed.
type Transport interface {
	Send(messages []*raftpb.Message)
}

// Step takes a message from another member.
func (r *Replica) Step(m *raftpb.Message) error {
	if m.GetType() == raftpb.MsgSnap {
		return fmt.Errorf("%w: a snapshot message: this version cannot take one", ErrInvalid)
	}
	if err := r.stepNode(m); err != nil {
		return err
	}
	r.schedule()
	return nil
}

func (r *Replica) stepNode(m *raftpb.Message) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("message %v: panic: %v", m.GetType(), p)
			r.err = err
		}
	}()
	if r.err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, r.err)
	}
	if err := r.node.Step(m); err != nil {
		return fmt.Errorf("message %v: %w", m.GetType(), err)
	}
	r.observe()
	return nil
}

// send hands messages over: those that promise something about this node's log when it is synced (late), the others
// before, so that the other members work at the same time.
func (r *Replica) send(messages []*raftpb.Message, late bool) {
	if len(messages) == 0 || r.opts.Transport == nil {
		return
	}
	some := make([]*raftpb.Message, 0, len(messages))
	for _, m := range messages {
		if isPromise(m) == late && m.GetTo() != r.opts.RaftID {
			some = append(some, m)
		}
	}
	if len(some) > 0 {
		r.opts.Transport.Send(some)
	}
}

func isPromise(m *raftpb.Message) bool {
	switch m.GetType() {
	case raftpb.MsgAppResp, raftpb.MsgVoteResp, raftpb.MsgPreVoteResp:
		return true
	default:
		return raft.IsResponseMsg(m.GetType())
	}
}
