// Package client is the Go client of Sheaf, sharded record storage. It talks to a gateway, or with Config.Direct to
// shards themselves, by the gateway's routing table.
//
// Every write carries a request id, so that it is repeated safely: inside the deadline of the context (or
// Config.CallTimeout where that has none) the client retries what failed by connection, loading, or a change of
// routing. Data are checked by CRC32C on the way there and back.
//
// All methods are safe for concurrent use. Errors are *Error; use errors.Is with the variables of this package.
package client

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/message"
	"sheaf.dev/sheaf/internal/pulse"
	"sheaf.dev/sheaf/internal/routing"
)

// Sizes that the API sets, in bytes.
const (
	putBytesMax   = 1 << 20  // of data in Put and Get; above that Upload and Download
	messageBytes  = 16 << 20 // of one answer that the client takes
	routingBytes  = 256 << 20
	getBytesMax   = 64 << 20
	backoffFirst  = 5 * time.Millisecond
	backoffMax    = 500 * time.Millisecond
	closeAfter    = 2 * time.Minute // a connection that routing no longer names; calls may still use it
	timeoutNormal = 30 * time.Second
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Config of a Client. Addresses is required.
type Config struct {
	// Addresses of gateways, host:port. The first one that answers is used.
	Addresses []string
	// Direct sends calls to the shards themselves, by the routing that a gateway tells; gateways stay the fallback.
	Direct bool
	// Credentials for all connections; nil: no TLS.
	Credentials credentials.TransportCredentials
	// CallTimeout bounds calls whose context has no deadline, and how long streams try to go on; 0: 30 s.
	CallTimeout time.Duration
	// DialOptions are added to those of each connection. With a dialer of the caller's own, calls at a server that hangs end
	// by keepalive, after up to 25 s, and not within 3 s.
	DialOptions []grpc.DialOption
}

// Client stores and reads records.
type Client struct {
	cfg     Config
	gateway atomic.Uint32         // place in Addresses of the one in use
	table   atomic.Pointer[table] // nil: none yet
	cancel  context.CancelFunc
	watched chan struct{}

	mu     sync.Mutex
	conns  map[string]*server // by address
	closed bool
}

// New makes a client. It connects when it is used first, with Direct at once.
func New(cfg Config) (*Client, error) {
	if len(cfg.Addresses) == 0 {
		return nil, errors.New("sheaf: no address: give host:port of a gateway")
	}
	if cfg.CallTimeout < 0 {
		return nil, fmt.Errorf("sheaf: call timeout is %v: give 0 (%v) or more", cfg.CallTimeout, timeoutNormal)
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = timeoutNormal
	}
	if cfg.Credentials == nil {
		cfg.Credentials = insecure.NewCredentials()
	}
	c := &Client{cfg: cfg, conns: map[string]*server{}, watched: make(chan struct{})}
	for _, address := range cfg.Addresses {
		if _, err := c.conn(address); err != nil {
			return nil, errors.Join(err, c.closeConns())
		}
	}
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	if !cfg.Direct {
		close(c.watched)
		return c, nil
	}
	go c.watchRouting(ctx)
	return c, nil
}

// Dial is New that returns when a gateway has answered. ctx bounds only that, or Config.CallTimeout where it has no
// deadline. Where no gateway answers in that time, the error is ErrUnavailable and context.DeadlineExceeded at once (or
// context.Canceled, where ctx was cancelled), whatever was tried last; it names the addresses.
func Dial(ctx context.Context, cfg Config) (*Client, error) {
	c, err := New(cfg)
	if err != nil {
		return nil, err
	}
	var failure error
	err = c.do(ctx, call{op: "dial"}, func(ctx context.Context, to target, options ...grpc.CallOption) error {
		message, err := askRouting(ctx, to, options)
		switch {
		case err != nil && ctx.Err() == nil:
			failure = err
		case err == nil && cfg.Direct:
			c.setTable(message)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(unanswered(ctx, cfg.Addresses, err, failure), c.Close())
	}
	return c, nil
}

// askRouting takes the first message of the routing.
func askRouting(ctx context.Context, to target, options []grpc.CallOption) (*recordv1.WatchRoutingResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := recordv1.NewRoutingServiceClient(to.conn).WatchRouting(ctx, &recordv1.WatchRoutingRequest{},
		append(options, grpc.MaxCallRecvMsgSize(routingBytes))...)
	if err != nil {
		return nil, err
	}
	return stream.Recv()
}

// unanswered is the error of a Dial that no gateway has answered; an answer stays as it is. failure is what the last
// attempt found that was not cut by the end of its time; nil: none.
func unanswered(ctx context.Context, addresses []string, err, failure error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
	default:
		return err
	}
	why := context.DeadlineExceeded
	if errors.Is(ctx.Err(), context.Canceled) {
		why = context.Canceled
	}
	reason := e.Reason
	if reason == routing.ReasonShardUnreachable {
		reason = "" // of the transport: no server has said so
	}
	message := fmt.Sprintf("no gateway has answered at %s: %v", strings.Join(addresses, ", "), why)
	if failure != nil {
		message += ": " + status.Convert(failure).Message()
	}
	return &Error{Op: e.Op, Code: codes.Unavailable, Reason: reason, Message: message, RetryAfter: e.RetryAfter, Metadata: e.Metadata, err: why}
}

// Close ends all connections. Calls under way fail.
func (c *Client) Close() error {
	c.cancel()
	<-c.watched
	return c.closeConns()
}

func (c *Client) closeConns() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	errs := make([]error, 0, len(c.conns))
	for _, s := range c.conns {
		errs = append(errs, s.close())
	}
	clear(c.conns)
	return errors.Join(errs...)
}

// server is one that the client is connected to.
type server struct {
	*grpc.ClientConn
	pulse *pulse.Pulse
}

func (s *server) close() error {
	s.pulse.Close()
	return s.Close()
}

// dialTarget is what gRPC is to connect to. Passthrough: each attempt to connect looks the name up. gRPC's own resolver does so
// every 30 s at most, and what was restarted may have another address behind its name.
func dialTarget(address string) string {
	if strings.Contains(address, "://") || strings.HasPrefix(address, "unix:") {
		return address // the caller says how
	}
	return "passthrough:///" + address
}

// conn is the connection to an address, made the first time.
func (c *Client) conn(address string) (*server, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if s := c.conns[address]; s != nil {
		return s, nil
	}
	s := &server{pulse: pulse.New(pulse.Options{})}
	options := append(s.pulse.DialOptions(),
		grpc.WithTransportCredentials(c.cfg.Credentials),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(message.Codec{}), grpc.MaxCallRecvMsgSize(messageBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithDisableServiceConfig(), grpc.WithUserAgent("sheaf-go"),
	)
	conn, err := grpc.NewClient(dialTarget(address), append(options, c.cfg.DialOptions...)...)
	if err != nil {
		s.pulse.Close()
		return nil, fmt.Errorf("sheaf: address %q: %w", address, err)
	}
	s.ClientConn = conn
	s.pulse.Ask(conn)
	c.conns[address] = s
	return s, nil
}

// call describes a call to do.
type call struct {
	op    string // for errors
	key   *Key   // nil: any gateway will do
	group string // where key is nil: of Named or Hash routing by name; empty: none
	write bool   // carries a request id
}

// target is where an attempt goes.
type target struct {
	conn    grpc.ClientConnInterface
	epoch   uint64 // of the routing that chose it
	gateway bool
	place   uint32 // of the gateway
}

// target chooses where to go: with Direct first to the shard, then to a gateway, which knows newer routing or waits for
// it, and so on in turn.
func (c *Client) target(what call, attempt int) (target, error) {
	if attempt%2 == 0 {
		if t := c.table.Load(); t != nil {
			if r := t.find(what); r != nil && !r.server.pulse.Silent() {
				return target{conn: r.server, epoch: t.epoch}, nil
			}
		}
	}
	place := c.gateway.Load()
	conn, err := c.conn(c.cfg.Addresses[int(place)%len(c.cfg.Addresses)])
	return target{conn: conn, gateway: true, place: place}, err
}

// mayAskOthers: a shard could not load its copy of the group. A gateway knows whether there are other copies, and asks
// them.
func (to target) mayAskOthers(v routing.Verdict) bool {
	return !to.gateway && v.Reason == routing.ReasonGroupFailed
}

// unreachable notes that a gateway does not answer, so that the next attempt goes to another.
func (c *Client) unreachable(to target) {
	if to.gateway {
		c.gateway.CompareAndSwap(to.place, to.place+1)
	}
}

// attempts is the state of a call between its attempts.
type attempts struct {
	client   *Client
	what     call
	n        int
	doubtful bool
	until    time.Time // where the context has no deadline
}

// failed takes in that an attempt failed and waits until another makes sense. Otherwise it returns the call's error.
func (a *attempts) failed(ctx context.Context, to target, err error, sent bool) error {
	st := status.Convert(err)
	v := routing.Judge(st, sent)
	overloaded := st.Code() == codes.ResourceExhausted && v.Reason == reasonOverloaded
	if v.Fate == routing.Final && !overloaded && !to.mayAskOthers(v) {
		return newError(a.what.op, err, a.what.write && sent, a.doubtful)
	}
	if v.Reason == routing.ReasonShardUnreachable {
		a.client.unreachable(to)
	}
	if v.Fate == routing.Unknown && a.what.write {
		a.doubtful = true
	}
	if !a.pause(ctx, v.Wait) {
		return newError(a.what.op, err, a.what.write && a.doubtful, a.doubtful)
	}
	return nil
}

// progress starts the counting anew, for streams that went on.
func (a *attempts) progress() { a.n, a.until = 0, time.Time{} }

// pause waits with a growing delay; false where the deadline is nearer than that or than least.
func (a *attempts) pause(ctx context.Context, least time.Duration) bool {
	delay := min(backoffFirst<<min(a.n, 16), backoffMax)
	if a.n == 0 && a.client.table.Load() != nil {
		delay = 0 // from the shard to a gateway at once
	}
	a.n++
	if delay > 0 {
		delay = delay/2 + rand.N(delay) //nolint:gosec // jitter
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		if a.until.IsZero() {
			a.until = time.Now().Add(a.client.cfg.CallTimeout)
		}
		deadline = a.until
	}
	if left := time.Until(deadline); left <= delay || left <= least {
		return false
	}
	if delay == 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// bounded gives a context without a deadline the client's.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.cfg.CallTimeout)
}

// do does a unary call until it is answered or the deadline is near.
func (c *Client) do(ctx context.Context, what call, do func(ctx context.Context, to target, options ...grpc.CallOption) error) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	a := attempts{client: c, what: what}
	for {
		to, err := c.target(what, a.n)
		if err != nil {
			return newError(what.op, err, false, a.doubtful)
		}
		if !what.write {
			err = do(ctx, to)
			if err == nil {
				return nil
			}
			err = a.failed(ctx, to, err, true)
		} else {
			// Peer is filled in once the call has a stream of a connection: before that nothing was sent.
			var at peer.Peer
			if err = do(ctx, to, grpc.Peer(&at)); err == nil {
				return nil
			}
			err = a.failed(ctx, to, err, at.Addr != nil)
		}
		if err != nil {
			return err
		}
	}
}
