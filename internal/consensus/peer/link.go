package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/client/call/message"
)

const (
	batchBytesMax = 1 << 20 // approximate maximum size of an Exchange message
	messageMax    = 64 << 20
	dialMax       = 3 * time.Second
	window        = 4 << 20 // flow-control window of a stream and of its connection
)

// redialPauses are the pauses between two attempts to connect to a peer.
var redialPauses = backoff.Doubling{First: 20 * time.Millisecond, Most: time.Second}

// link is this shard's connection to one peer.
type link struct {
	hub    *Hub
	shard  string
	ctx    context.Context
	cancel context.CancelFunc
	queue  *queue
	madeAt time.Duration // when the link was created, by Hub.clock

	receivedAt atomic.Int64  // Hub.clock in ns at the peer's last message, or 0 if there was none
	silent     atomic.Bool   // whether the peer was silent when the monitor last looked
	begun      atomic.Bool   // whether the peer has restarted and the monitor has not yet reported this
	number     atomic.Uint64 // number of the peer's process
	// mustNotLead is true if, according to the peer's last response, the peer must not become the leader of a group.
	mustNotLead atomic.Bool

	// The monitor uses the fields below. They are guarded by Hub.mu.
	alive     bool
	announced bool
	since     time.Time

	mu       sync.Mutex
	reported map[member]struct{} // members whose lost messages have been reported since the last connection was lost
}

// member is a member of a group.
type member struct {
	group  uuid.UUID
	raftID uint64
}

func newLink(h *Hub, shard string) *link {
	l := &link{
		hub: h, shard: shard, queue: newQueue(h.opts.queueBytesMax), madeAt: h.clock(),
		reported: map[member]struct{}{},
	}
	l.silent.Store(true)
	l.ctx, l.cancel = context.WithCancel(h.ctx)
	return l
}

// send queues a message. If the queue does not accept the message, send drops it. It then reports the loss to the
// group, unless Raft will repeat the message anyway.
func (l *link) send(group uuid.UUID, m *raftpb.Message) {
	switch l.queue.push(group, m) {
	case full:
		l.hub.count.DroppedFull.Add(1)
		if isAppend(m) { // Raft repeats the other messages anyway
			l.hub.lost(group, m)
		}
	case down:
		l.hub.count.DroppedDown.Add(1)
		l.unconnected(group, m)
	}
}

// unconnected reports to a group that one of its members cannot be reached. It does so once for each lost connection.
// The group's leader then sends only single appends until the member responds to one of them.
func (l *link) unconnected(group uuid.UUID, m *raftpb.Message) {
	if !isAppend(m) && m.GetType() != raftpb.MsgHeartbeat {
		return
	}
	key := member{group, m.GetTo()}
	l.mu.Lock()
	_, known := l.reported[key]
	l.reported[key] = struct{}{}
	l.mu.Unlock()
	if !known || m.GetType() == raftpb.MsgSnap {
		l.hub.lost(group, m)
	}
}

// run keeps the link connected until it is canceled.
func (l *link) run() {
	tries := backoff.Tries{Doubling: redialPauses}
	for l.ctx.Err() == nil {
		connected, err := l.session()
		for _, it := range l.queue.close() {
			l.hub.count.DroppedDown.Add(1)
			l.unconnected(it.group, it.m)
		}
		if connected {
			tries.Again()
		}
		l.hub.logger.Debug("not connected to a peer", "peer", l.shard, "error", err)
		tries.Wait(l.ctx)
	}
	l.queue.close()
}

// dial connects to a shard.
func (h *Hub) dial(shard string) (*grpc.ClientConn, error) {
	address, ok := h.opts.Address(shard)
	if !ok {
		return nil, fmt.Errorf("shard %s: no address is known", shard)
	}
	conn, err := h.dialTo(address, h.opts.Credentials(shard))
	if err != nil {
		return nil, fmt.Errorf("shard %s at %q: %w", shard, address, err)
	}
	return conn, nil
}

// dialSource connects to the source of a restore. The connection is pinged, so that calls fail soon after the source
// has stopped responding.
func (h *Hub) dialSource(address string) (*grpc.ClientConn, error) {
	conn, err := h.dialTo(address, h.opts.SourceCredentials(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: stallMax, Timeout: stallMax}))
	if err != nil {
		return nil, fmt.Errorf("the source of the restore at %q: %w", address, err)
	}
	return conn, nil
}

func (h *Hub) dialTo(address string, credentials credentials.TransportCredentials, more ...grpc.DialOption) (
	*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(credentials),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(message.Codec{}), grpc.MaxCallRecvMsgSize(messageMax),
			grpc.MaxCallSendMsgSize(messageMax)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: grpcbackoff.Config{BaseDelay: redialPauses.First, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: redialPauses.Most},
			MinConnectTimeout: dialMax,
		}),
		experimental.WithBufferPool(message.Pool), // this pool does not clear its buffers, which saves time
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithNoProxy(), grpc.WithIdleTimeout(0), grpc.WithDisableServiceConfig(), grpc.WithUserAgent("sheaf-shard"),
	}
	if h.opts.Dial != nil {
		options = append(options, grpc.WithContextDialer(h.opts.Dial))
	}
	// The name is looked up at each attempt, because a restarted process has a new address.
	return grpc.NewClient("passthrough:///"+address, append(options, more...)...)
}

func (h *Hub) header(to string) *peerv1.PeerHeader {
	return &peerv1.PeerHeader{Store: h.opts.Store[:], FromShard: h.opts.Shard, ToShard: to, Instance: h.number}
}

// introduced records the number that identifies the peer's process. A new number means that the peer has restarted.
func (l *link) introduced(number uint64) {
	if before := l.number.Swap(number); before != 0 && before != number {
		l.begun.Store(true)
		l.hub.wake()
	}
}

// session connects, and sends until the connection fails.
func (l *link) session() (connected bool, err error) {
	conn, err := l.hub.dial(l.shard)
	if err != nil {
		return false, err
	}
	defer conn.Close() //nolint:errcheck // nothing is left of it
	ctx, cancel := context.WithCancelCause(l.ctx)
	defer cancel(nil)
	stall := time.AfterFunc(min(dialMax, l.hub.opts.stallMax), func() { cancel(errors.New("the peer does not answer")) })
	defer stall.Stop()
	stream, err := peerv1.NewPeerServiceClient(conn).Exchange(ctx)
	if err != nil {
		return false, err
	}
	s := &session{link: l, stream: stream}
	if err := s.ping(l.hub.header(l.shard), nil); err != nil {
		return false, streamError(stream, err)
	}
	hello, err := stream.Recv()
	if err != nil {
		return false, err
	}
	l.introduced(hello.GetInstance())
	l.mustNotLead.Store(hello.GetMustNotLead())
	l.hub.count.Connects.Add(1)
	l.mu.Lock()
	clear(l.reported)
	l.mu.Unlock()
	l.queue.open()
	l.hub.received(l)

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			stall.Reset(l.hub.opts.stallMax)
			answer, err := stream.Recv()
			if err != nil {
				cancel(err)
				return
			}
			l.mustNotLead.Store(answer.GetMustNotLead())
			l.hub.received(l)
		}
	}()
	err = s.send(ctx)
	cancel(err)
	<-ended
	return true, context.Cause(ctx)
}

// streamError returns the reason why a Send failed. The argument err is the error of Send.
func streamError(stream peerv1.PeerService_ExchangeClient, err error) error {
	if _, why := stream.Recv(); why != nil {
		return why
	}
	return err
}

// session is a connection on which this side sends.
type session struct {
	link   *link
	stream peerv1.PeerService_ExchangeClient
	number uint64 // number of the last ping
	pinged time.Time
	batch  []item
}

// send sends the queued messages and pings.
func (s *session) send(ctx context.Context) error {
	l := s.link
	pings := time.NewTicker(l.hub.opts.pingEvery)
	defer pings.Stop()
	for {
		s.batch = l.queue.take(s.batch[:0], batchBytesMax)
		if len(s.batch) == 0 {
			select {
			case <-l.queue.wake:
			case <-pings.C:
				if err := s.ping(nil, nil); err != nil {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		if err := s.sendBatch(); err != nil {
			return err
		}
	}
}

// ping sends messages and requests a response.
func (s *session) ping(header *peerv1.PeerHeader, messages []*peerv1.RaftMessage) error {
	s.number++
	s.pinged = time.Now()
	return s.stream.Send(&peerv1.ExchangeRequest{Header: header, Messages: messages, Ping: s.number})
}

func (s *session) sendBatch() error {
	messages := make([]*peerv1.RaftMessage, 0, len(s.batch))
	bytes := 0
	for i := range s.batch {
		it := &s.batch[i]
		encoded, err := proto.Marshal(it.m)
		if err != nil {
			s.link.hub.logger.Error("a message cannot be encoded", "group", it.group, "error", err)
			continue
		}
		bytes += len(encoded)
		messages = append(messages, &peerv1.RaftMessage{Group: it.group[:], Message: encoded})
	}
	s.link.hub.count.Sent.Add(uint64(len(messages)))
	s.link.hub.count.SentBytes.Add(uint64(bytes))
	var err error
	if time.Since(s.pinged) >= s.link.hub.opts.pingEvery {
		err = s.ping(nil, messages)
	} else {
		err = s.stream.Send(&peerv1.ExchangeRequest{Messages: messages})
	}
	clear(s.batch) // Send has encoded the batch, so the messages can be garbage-collected
	return err
}
