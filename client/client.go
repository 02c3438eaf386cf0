// Package client is the Go client of Sheaf, sharded record storage. It sends calls to a gateway. With Config.Direct it
// sends them to the shards themselves, and gets the routing table from a gateway.
//
// Every write carries a request id, so that it can be retried safely. The client retries calls that failed because a
// connection broke, a group was still loading, or the routing changed. It retries until the deadline of the context, or
// for Config.CallTimeout if the context has no deadline. Data is protected by a CRC32C in both directions.
//
// All methods are safe for concurrent use. Errors are *Error; use errors.Is with the variables of this package.
//
// The package sheaf.dev/sheaf/sheaftest has an example for most calls, and runs a store inside your own tests. That
// package belongs to the server module, whereas the client module needs only gRPC and protobuf. Two of the client
// module's packages are for programs that use Sheaf: client, and recordv1, which is the Go code generated from the API.
// The packages below client/call are for Sheaf's own servers, and change without notice.
package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/liveness"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
)

// These constants are limits of the API and of this client. Sizes are in bytes.
const (
	putBytesMax  = 1 << 20  // maximum size of the data in the calls Put and Get; Upload and Download transfer larger data
	messageBytes = 16 << 20 // maximum size of a response message that the client accepts
	routingBytes = 256 << 20
	getBytesMax  = 64 << 20
	pauseFirst   = 5 * time.Millisecond
	pauseMax     = 500 * time.Millisecond
	// closeAfter is how long a connection remains open after its server has left the routing, because calls may still
	// use the connection.
	closeAfter    = 2 * time.Minute
	timeoutNormal = 30 * time.Second
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Config configures a Client. Addresses is required.
type Config struct {
	// Addresses lists gateways as host:port. The client uses the first one that responds.
	Addresses []string
	// Direct makes the client send calls directly to the shards that a gateway's routing table names. If this fails, the
	// client uses a gateway.
	Direct bool
	// Credentials are used for all connections. If Credentials is nil, the client uses no TLS.
	Credentials credentials.TransportCredentials
	// CallCredentials, if not nil, are sent with each call, for example those of Token. They need TLS.
	CallCredentials credentials.PerRPCCredentials
	// CallTimeout bounds calls whose context has no deadline, and the time for which streams try to resume. The default
	// is 30 s.
	CallTimeout time.Duration
	// FailFast ends calls immediately with ErrUnavailable if no server listens at the addresses, which means that
	// connections are refused or the name is unknown. It has an effect only until a server has responded. After that,
	// the client waits as usual for a server that is unavailable. Commands use FailFast, so that they report a mistyped
	// address immediately, and still wait for a server that restarts.
	FailFast bool
	// DialOptions are added to the options of each connection. To set a dialer, use the field Dial, and not DialOptions.
	// With a dialer in DialOptions, only gRPC's keepalive detects a server that hangs, and a call to such a server fails
	// after up to 25 s instead of 3 s.
	DialOptions []grpc.DialOption
	// Dial opens a connection to an address, host:port, and returns when its context is done. By default the client
	// uses TCP. Set Dial to use a proxy, or in-memory connections in tests.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Client stores and reads records.
type Client struct {
	cfg     Config
	pace    routing.Pace
	gateway atomic.Uint32         // index in Config.Addresses of the gateway that is in use
	table   atomic.Pointer[table] // nil until the first routing table has arrived
	heard   atomic.Bool           // whether any server has responded; recorded only with Config.FailFast
	cancel  context.CancelFunc
	watched chan struct{}

	mu    sync.Mutex
	conns map[string]*server // keyed by address
	// leaving holds the servers that are no longer in the routing, each with the timer that closes its connection.
	leaving map[*server]*time.Timer
	closed  bool
}

// New creates a client. The client connects on first use, or immediately with Direct.
func New(cfg Config) (*Client, error) {
	if len(cfg.Addresses) == 0 {
		return nil, errors.New("sheaf: no address: give host:port of a gateway")
	}
	if cfg.CallTimeout < 0 {
		return nil, fmt.Errorf("sheaf: call timeout is %v: give 0 (%v) or more", cfg.CallTimeout, timeoutNormal)
	}
	cfg.CallTimeout = cmp.Or(cfg.CallTimeout, timeoutNormal)
	if cfg.Credentials == nil {
		cfg.Credentials = insecure.NewCredentials()
	}
	c := &Client{
		cfg: cfg, conns: map[string]*server{}, leaving: map[*server]*time.Timer{}, watched: make(chan struct{}),
		pace: routing.Pace{First: pauseFirst, Most: pauseMax, Patience: cfg.CallTimeout},
	}
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

// Dial is like New, but returns once a gateway has responded. ctx bounds only that wait. If ctx has no deadline,
// Config.CallTimeout bounds the wait. If no gateway responds in that time, the error is both ErrUnavailable and
// context.DeadlineExceeded (or context.Canceled if ctx was cancelled). The error names the addresses, and does not
// depend on the result of the last attempt.
func Dial(ctx context.Context, cfg Config) (*Client, error) {
	c, err := New(cfg)
	if err != nil {
		return nil, err
	}
	message, err := do(ctx, c, call{op: "dial"}, askRouting)
	if err != nil {
		return nil, errors.Join(unanswered(ctx, cfg.Addresses, err), c.Close())
	}
	if cfg.Direct {
		c.setTable(message)
	}
	return c, nil
}

// askRouting requests the routing, and returns the first routing message.
func askRouting(ctx context.Context, to target, options ...grpc.CallOption) (*recordv1.WatchRoutingResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request := &recordv1.WatchRoutingRequest{InParts: true}
	stream, err := recordv1.NewRoutingServiceClient(to.conn).WatchRouting(ctx, request,
		append(options, grpc.MaxCallRecvMsgSize(routingBytes))...)
	if err != nil {
		return nil, err
	}
	return recordv1.ReceiveRouting(stream)
}

// unanswered returns the error that Dial reports if no gateway responded in time. If a gateway responded with an
// error, that error is returned unchanged.
func unanswered(ctx context.Context, addresses []string, err error) error {
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
	said := e.Reason
	if said == reason.ShardUnreachable {
		said = "" // this reason comes from the client's own transport, and not from a server
	}
	message := fmt.Sprintf("no gateway has answered at %s: %v", strings.Join(addresses, ", "), why)
	if e.Code == codes.Unavailable {
		message += ": " + e.Message
	}
	return &Error{Op: e.Op, Code: codes.Unavailable, Reason: said, Message: message, RetryAfter: e.RetryAfter,
		Metadata: e.Metadata, err: why}
}

// Close closes all connections. Calls in flight fail.
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
	for s, timer := range c.leaving {
		if timer.Stop() {
			errs = append(errs, s.close())
		}
	}
	clear(c.conns)
	clear(c.leaving)
	return errors.Join(errs...)
}

// server holds the connection to one server.
type server struct {
	*grpc.ClientConn
	pulse *liveness.Pulse
}

func (s *server) close() error {
	s.pulse.Close()
	return s.Close()
}

// responseWatcher is a stats.Handler that records the first response from any server.
type responseWatcher atomic.Bool

// TagRPC implements stats.Handler.
func (*responseWatcher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (h *responseWatcher) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.InHeader, *stats.InTrailer:
		(*atomic.Bool)(h).Store(true)
	}
}

// TagConn implements stats.Handler.
func (*responseWatcher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return ctx
}

// HandleConn implements stats.Handler.
func (*responseWatcher) HandleConn(context.Context, stats.ConnStats) {}

// dialTarget returns the gRPC target for an address. The passthrough resolver looks the name up at each attempt to
// connect. gRPC's own resolver looks it up at most every 30 s, which is too slow for a restarted server with a new
// address behind the same name.
func dialTarget(address string) string {
	if strings.Contains(address, "://") || strings.HasPrefix(address, "unix:") {
		return address // the caller chose the scheme
	}
	return "passthrough:///" + address
}

// conn returns the connection to an address, and creates it on first use.
func (c *Client) conn(address string) (*server, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if s := c.conns[address]; s != nil {
		return s, nil
	}
	s := &server{pulse: liveness.New(liveness.Options{Dial: c.cfg.Dial})}
	options := append(s.pulse.DialOptions(),
		grpc.WithNoProxy(), grpc.WithTransportCredentials(c.cfg.Credentials),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(message.Codec{}), grpc.MaxCallRecvMsgSize(messageBytes)),
		grpc.WithUserAgent("sheaf-go"),
	)
	if c.cfg.CallCredentials != nil {
		options = append(options, grpc.WithPerRPCCredentials(c.cfg.CallCredentials))
	}
	if c.cfg.FailFast {
		options = append(options, grpc.WithStatsHandler((*responseWatcher)(&c.heard)))
	}
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

// call describes one call to a server.
type call struct {
	op    string  // what the call does; errors contain it, and the key after it if there is one
	key   *Key    // record that the call is for; nil if it is for no particular record
	group string  // group that the call is for, if key is nil; empty if the call is for no particular group
	write bool    // the call is a write with a request id
	epoch *uint64 // field of the request for the epoch of the routing; nil if the request has none
}

// name names the call in errors, for example "put 42". It is only computed when it is needed, because most calls
// succeed.
func (w *call) name() string {
	if w.key == nil {
		return w.op
	}
	return w.op + " " + w.key.String()
}

// target is the destination of an attempt.
type target struct {
	conn    grpc.ClientConnInterface
	epoch   uint64 // epoch of the routing that chose the target
	gateway bool
	place   uint32 // index of the gateway in Config.Addresses
	tenure  *liveness.Tenure
}

// target chooses the destination of an attempt. With Direct, attempts alternate between the shard, which comes first,
// and a gateway, which has newer routing or waits for it.
func (c *Client) target(what call, attempt int) (target, error) {
	if attempt%2 == 0 {
		if t := c.table.Load(); t != nil {
			if r := t.find(what); r != nil && !r.server.pulse.Silent() {
				return target{conn: r.server, epoch: t.epoch, tenure: r.tenure}, nil
			}
		}
	}
	place := c.gateway.Load()
	conn, err := c.conn(c.cfg.Addresses[int(place)%len(c.cfg.Addresses)])
	return target{conn: conn, gateway: true, place: place}, err
}

// unreachable records that a gateway does not respond.
func (c *Client) unreachable(to target) {
	if to.gateway {
		c.gateway.CompareAndSwap(to.place, to.place+1)
	}
}

// attempts holds a call and the state of its attempts.
type attempts struct {
	routing.Attempts
	client *Client
	what   call
}

func (c *Client) attempts(what call) attempts {
	return attempts{client: c, what: what, Attempts: routing.Attempts{
		Pace: &c.pace, Effect: routing.Effect{Write: what.write},
		AtOnce: c.table.Load() != nil, // the first retry goes to a gateway, so it needs no pause
	}}
}

// judge adapts a verdict to this client. The call is retried if the server is overloaded or a rate quota is used up. It
// is also retried if a shard could not load its copy of the group, because a gateway can use other copies, if any
// exist. If a gateway does not respond, judge records that, so that the next attempt uses another gateway.
func (a *attempts) judge(to target, err error, v routing.Verdict) routing.Verdict {
	switch {
	case v.Later(), !to.gateway && v.Reason == reason.GroupFailed:
		v.Fate = routing.Refused
		a.Hold = v.Reason == reason.QuotaExceeded
	case v.Reason == reason.ShardUnreachable:
		a.client.unreachable(to)
		if to.gateway && a.N()+1 >= len(a.client.cfg.Addresses) && a.client.noListener(err) {
			v.Fate = routing.Final
		}
	}
	return v
}

// noListener reports whether err means that no server is listening at the address. It returns false without
// Config.FailFast, and once any server has responded. It also returns false if the attempt was too slow, because the
// address may belong to a Service, which may route the next connection to another server. A slow attempt can also end
// with a canceled or closed connection, because the server's liveness.Pulse gives up such connections.
func (c *Client) noListener(err error) bool {
	if !c.cfg.FailFast || c.heard.Load() {
		return false
	}
	said := status.Convert(err).Message()
	late := func(words string) bool { return strings.Contains(said, words) }
	return strings.Contains(said, "connection error") &&
		!slices.ContainsFunc([]string{"timeout", "timed out", "deadline exceeded", "canceled", "closed network connection",
			"no route to host"}, late)
}

// failed records a failed attempt, and waits until it is time for the next one. If the call must not be attempted
// again, it returns the call's error.
func (a *attempts) failed(ctx context.Context, to target, err error, sent bool) error {
	v := a.judge(to, err, routing.Judge(status.Convert(err), sent))
	if a.Failed(err, v, sent) && a.Pause(ctx, v.Wait, nil, nil) {
		return nil
	}
	return a.end(ctx, err, v, sent)
}

// end returns the error with which the call fails when a failed attempt is not retried.
func (a *attempts) end(ctx context.Context, err error, v routing.Verdict, sent bool) error {
	e := a.newError(a.Report(err, v, sent))
	if v.Fate != routing.Final || v.TimedOut {
		e.ended = ctx.Err()
	}
	return e
}

// newError returns an error that says that the call failed, and why.
func (a *attempts) newError(err error) *Error {
	return newError(a.what.name(), err, a.Doubtful(routing.Judge(status.Convert(err), true)))
}

// bounded returns ctx with the client's timeout, unless ctx already has a deadline.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.cfg.CallTimeout)
}

// do makes a unary call and returns the response. It retries the call until it succeeds, until it fails with an error
// that a retry cannot change, or until the deadline is too near.
func do[A any](ctx context.Context, c *Client, what call, do func(ctx context.Context, to target,
	options ...grpc.CallOption) (A, error)) (answer A, err error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	a := c.attempts(what)
	for {
		to, err := c.target(what, a.N())
		if err != nil {
			return answer, a.newError(err)
		}
		// For a write, the peer shows whether the request may have been sent: gRPC sets the peer when the call gets a
		// stream on a connection. If the peer is not set, nothing was sent.
		var at *peer.Peer
		var options []grpc.CallOption
		if what.write {
			at = &peer.Peer{}
			options = append(options, grpc.Peer(at))
		}
		counted := to.tenure.Begin()
		answer, err = do(ctx, to, options...)
		to.tenure.End(counted)
		if err == nil {
			return answer, nil
		}
		if err := a.failed(ctx, to, err, at == nil || at.Addr != nil); err != nil {
			return answer, err
		}
	}
}

// unary makes a unary call, using a method of a service's generated client.
func unary[C, Q, A any](ctx context.Context, c *Client, what call, service func(grpc.ClientConnInterface) C,
	method func(C, context.Context, Q, ...grpc.CallOption) (A, error), request Q, more ...grpc.CallOption) (A, error) {
	return do(ctx, c, what, func(ctx context.Context, to target, options ...grpc.CallOption) (A, error) {
		if what.epoch != nil {
			*what.epoch = to.epoch
		}
		return method(service(to.conn), ctx, request, append(options, more...)...)
	})
}
