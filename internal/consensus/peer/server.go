package peer

import (
	"bytes"
	"context"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
)

// admit refuses a call if it is meant for another store or shard, or if the caller is not the shard that the call
// names as its sender.
func (h *Hub) admit(ctx context.Context, header *peerv1.PeerHeader) error {
	if h.opts.SpeaksFor != nil && !h.opts.SpeaksFor(ctx, header.GetFromShard()) {
		return status.Errorf(codes.PermissionDenied,
			"the call is said to come from shard %q, and the caller's certificate names another process", header.GetFromShard())
	}
	switch {
	case header == nil:
		return status.Error(codes.InvalidArgument, "the header is required in the first message")
	case !bytes.Equal(header.GetStore(), h.opts.Store[:]):
		return status.Errorf(codes.FailedPrecondition, "this shard is of store %s, the call is for store %x", h.opts.Store,
			header.GetStore())
	case header.GetToShard() != h.opts.Shard:
		return status.Errorf(codes.FailedPrecondition,
			"this is shard %s, the call is for shard %q: its address is used again",
			h.opts.Shard, header.GetToShard())
	case header.GetFromShard() == "" || header.GetFromShard() == h.opts.Shard || header.GetInstance() == 0:
		return status.Errorf(codes.FailedPrecondition, "a call from shard %q to shard %s", header.GetFromShard(),
			h.opts.Shard)
	}
	return nil
}

// errClosed ends the streams from peers when this shard stops.
var errClosed = status.Error(codes.Unavailable, "the shard is stopping")

// Exchange implements PeerService.
func (h *Hub) Exchange(stream peerv1.PeerService_ExchangeServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := h.admit(stream.Context(), first.GetHeader()); err != nil {
		return err
	}
	h.mu.Lock()
	if l := h.link(first.GetHeader().GetFromShard()); l != nil {
		l.introduced(first.GetHeader().GetInstance())
	}
	h.mu.Unlock()
	ended := make(chan error, 1)
	// When this handler returns, gRPC ends the stream. Then receive returns, too, and the goroutine ends.
	go func() { ended <- h.receive(stream, first) }()
	select {
	case err := <-ended:
		return err
	case <-h.ctx.Done():
		return errClosed
	}
}

// receive processes a first message, which the caller has received, and then receives further messages until the
// stream ends.
func (h *Hub) receive(stream peerv1.PeerService_ExchangeServer, in *peerv1.ExchangeRequest) error {
	from := in.GetHeader().GetFromShard()
	for {
		if h.ctx.Err() != nil {
			return errClosed
		}
		// A peer that sends messages is alive, even if this shard has not sent it anything yet.
		h.mu.Lock()
		l := h.link(from)
		h.mu.Unlock()
		if l != nil {
			h.received(l)
		}
		for _, m := range in.GetMessages() {
			h.deliver(m)
		}
		if in.GetPing() != 0 {
			if err := stream.Send(&peerv1.ExchangeResponse{Ping: in.GetPing(), Instance: h.number,
				MustNotLead: h.opts.MustNotLead()}); err != nil {
				return err
			}
		}
		var err error
		if in, err = stream.Recv(); err != nil {
			return err
		}
	}
}

func (h *Hub) deliver(in *peerv1.RaftMessage) {
	m := &raftpb.Message{}
	group, err := uuid.FromBytes(in.GetGroup())
	if err == nil {
		err = proto.Unmarshal(in.GetMessage(), m)
	}
	if err != nil || !isRemote(m) {
		h.count.DroppedBad.Add(1)
		h.logger.Warn("a message from a peer cannot be used", "group", group, "type", m.GetType(), "error", err)
		return
	}
	h.count.Received.Add(1)
	if !h.opts.Deliver(group, m) {
		h.count.DroppedStray.Add(1)
	}
}

// isRemote reports whether a message is of a type that a peer may send. Other types must be refused, because some of
// them are commands to Raft that only this process may give.
func isRemote(m *raftpb.Message) bool {
	if m.GetFrom() == 0 || m.GetTo() == 0 {
		return false
	}
	switch m.GetType() {
	case raftpb.MsgApp, raftpb.MsgAppResp, raftpb.MsgVote, raftpb.MsgVoteResp, raftpb.MsgPreVote, raftpb.MsgPreVoteResp,
		raftpb.MsgSnap,
		raftpb.MsgSnapStatus, raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp, raftpb.MsgTimeoutNow, raftpb.MsgReadIndex,
		raftpb.MsgReadIndexResp, raftpb.MsgTransferLeader:
		return true
	default:
		return false
	}
}
