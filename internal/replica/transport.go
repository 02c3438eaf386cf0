package replica

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/group"
)

// Transport carries Raft's messages to the other members of a group. Send must not block, may be called by several
// goroutines, and must not call the replica; messages may be lost, doubled and reordered. The messages must not be
// changed.
type Transport interface {
	Send(messages []*raftpb.Message)
}

// fetchesMax bounds the messages of a group that wait for blobs.
const fetchesMax = 4

// Step takes a message from another member, or one that the transport makes about it: MsgUnreachable (a message to it was
// lost), MsgSnapStatus (it was installed anew, or, with Reject, could not be). It does not block. An error says why the
// message was not taken; Raft repeats what matters.
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
	return r.stepAndSchedule(m)
}

func (r *Replica) stepAndSchedule(m *raftpb.Message) error {
	answer, err := r.stepNode(m)
	if err != nil {
		return err
	}
	if answer != nil && r.opts.Transport != nil {
		r.opts.Transport.Send([]*raftpb.Message{answer})
	}
	r.schedule()
	return nil
}

// stepNode gives a message to Raft. What it answers is to be sent.
func (r *Replica) stepNode(m *raftpb.Message) (answer *raftpb.Message, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("message %v: panic: %v", m.GetType(), p)
			r.logger.Error("the replica has failed and refuses writes until a restart", "error", err)
			r.err, r.broken = err, true
			r.schedule() // what waits for an answer gets one
		}
	}()
	if r.err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFailed, r.err)
	}
	if err := r.hasLost(m); err != nil {
		r.logger.Error("the replica has failed, and is not to run again as what it was", "error", err)
		r.err, r.broken = err, true
		r.schedule() // what waits for an answer gets one
		r.announce()
		return nil, fmt.Errorf("message %v: %w", m.GetType(), err)
	}
	switch {
	case isQuietMark(m):
		answer, err = r.stepMark(m)
	case m.GetType() == raftpb.MsgTimeoutNow && r.keepSummons(m):
	case m.GetType() == raftpb.MsgSnapStatus:
		status := raft.SnapshotFinish
		if m.GetReject() {
			status = raft.SnapshotFailure
		}
		r.node.ReportSnapshot(m.GetFrom(), status)
	case m.GetType() == raftpb.MsgUnreachable:
		r.node.ReportUnreachable(m.GetFrom())
	case m.GetType() == raftpb.MsgTimeoutNow && r.behindFloor():
		return nil, fmt.Errorf("%w: the lead, while entries are being applied that were compacted away or repaired", ErrInvalid)
	case m.GetType() == raftpb.MsgTimeoutNow && r.barred():
		return nil, fmt.Errorf("%w: the lead, with damage in the log", ErrInvalid)
	case m.GetType() == raftpb.MsgHeartbeatResp:
		err = r.node.Step(m) // no work; in a rest, the answer to the last heartbeat before it
	case r.mayHavePromised(m):
		return nil, nil // whoever asks does so again
	default:
		r.wake()
		if t := m.GetType(); (t == raftpb.MsgPreVote || t == raftpb.MsgVote) && m.GetFrom() == r.leaderID && m.GetTerm() > r.term && !r.leader {
			// Whoever asks for votes of a new term does not lead any more: it need not be waited for.
			err = r.node.ForgetLeader()
		}
		if err == nil {
			err = r.node.Step(m)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("message %v: %w", m.GetType(), err)
	}
	r.observe()
	r.noteHeard(m)
	return answer, nil
}

// stepMark is called with mu held.
func (r *Replica) stepMark(m *raftpb.Message) (answer *raftpb.Message, err error) {
	if m.GetType() == raftpb.MsgHeartbeat {
		return r.takeMark(m)
	}
	if r.leader {
		r.wake() // somebody cannot rest, or has begun anew
	}
	return nil, nil
}

// hasSnapshot tells whether the log has the snapshot offered, so that Raft only notes that and answers.
func (r *Replica) hasSnapshot(s *raftpb.Snapshot) bool {
	index, term := s.GetMetadata().GetIndex(), s.GetMetadata().GetTerm()
	if index <= r.log.AppliedIndex() {
		return true
	}
	own, err := r.log.Term(index)
	return err == nil && own == term
}

// offer hands a snapshot on: its data is fetched outside of Raft, and this replica begins anew with it.
func (r *Replica) offer(m *raftpb.Message) {
	r.mu.Lock()
	r.wake()
	stale := m.GetTerm() < r.term || r.err != nil
	r.mu.Unlock()
	if meta := m.GetSnapshot().GetMetadata(); !stale && r.opts.OnSnapshot != nil {
		r.opts.OnSnapshot(meta.GetIndex(), meta.GetTerm(), m.GetFrom())
	}
}

// fetchBlobs holds a message back until the blobs that its entries refer to are here: an entry must not be promised without
// its data. True where it does, or drops the message because too many wait.
func (r *Replica) fetchBlobs(m *raftpb.Message) (held bool, err error) {
	missing, err := r.log.MissingBlobs(m.GetEntries())
	if err != nil {
		return false, fmt.Errorf("message %v: %w", m.GetType(), err)
	}
	if len(missing) == 0 {
		return false, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, waits := r.fetching[m.GetIndex()]
	if r.stopping || r.err != nil || waits || len(r.fetching) >= fetchesMax {
		return true, nil
	}
	r.wake()
	if r.fetching == nil {
		r.fetching = make(map[uint64]blobFetch)
	}
	ctx, cancel := context.WithCancelCause(r.ctx)
	r.fetching[m.GetIndex()] = blobFetch{from: m.GetFrom(), cancel: cancel}
	r.fetches.Go(func() { r.fetch(ctx, m, missing) })
	return true, nil
}

// blobFetch is a message that waits for blobs.
type blobFetch struct {
	from   uint64
	cancel context.CancelCauseFunc
}

// Why fetches of blobs end.
var (
	errLeaderGone  = errors.New("the member that they come from does not lead any more")
	errMemberQuiet = errors.New("the member that they come from is silent")
)

// endFetches ends those fetches of blobs that stay is not true for: a member that hangs never ends them, and while they wait, nothing
// is taken that another leader sends in their place. Called with mu held.
func (r *Replica) endFetches(why error, stay func(from uint64) bool) {
	for _, f := range r.fetching {
		if !stay(f.from) {
			f.cancel(why)
		}
	}
}

// fetch gets blobs, and gives their message to Raft then.
func (r *Replica) fetch(ctx context.Context, m *raftpb.Message, missing []group.BlobRef) {
	err := r.opts.FetchBlobs(ctx, m.GetFrom(), missing)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	r.mu.Lock()
	r.fetching[m.GetIndex()].cancel(nil)
	delete(r.fetching, m.GetIndex())
	r.mu.Unlock()
	if err == nil {
		missing, err = r.log.MissingBlobs(m.GetEntries())
	}
	if err == nil && len(missing) == 0 {
		err = r.stepAndSchedule(m)
	}
	if (err != nil || len(missing) > 0) && context.Cause(r.ctx) == nil {
		r.logger.Warn("entries with blobs were not taken: the leader sends them again", "blobs", len(missing), "error", err)
	}
}

// send hands messages over: those that promise something about this node's log when it is synced (late), the others
// before, so that the other members work at the same time.
func (r *Replica) send(messages []*raftpb.Message, late bool) {
	if len(messages) == 0 || r.opts.Transport == nil {
		return
	}
	some := make([]*raftpb.Message, 0, len(messages))
	for _, m := range messages {
		if (mayGoEarly(m) || r.unsafe(UnsafePromise)) != late && m.GetTo() != r.opts.RaftID {
			some = append(some, m)
		}
	}
	if len(some) > 0 {
		r.opts.Transport.Send(some)
	}
}

// mayGoEarly tells what says nothing about this node's own disk. A candidate's call for votes does: it names its last entry,
// and a vote for that must not reach it when it has lost that entry in a crash.
func mayGoEarly(m *raftpb.Message) bool {
	switch m.GetType() {
	case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap, raftpb.MsgReadIndex:
		return true
	default:
		return false
	}
}
