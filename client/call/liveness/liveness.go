// Package liveness detects that a server hangs. A server that hangs accepts calls and answers none, because its process
// was stopped, its machine failed, or the network drops its packets. gRPC detects this only by its keepalive, which
// takes at least 10 s. Calls without a deadline of their own would wait that long, even if other servers could answer
// them.
//
// While calls wait and the server sends no response, the Pulse checks the server's health. A server that responds at
// all is considered slow, and calls wait for it. If it does not respond, the Pulse closes its connections, which aborts
// the calls on them.
package liveness

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const (
	// After is how long a server may stay silent before it is probed.
	After = 500 * time.Millisecond
	// Patience is how long a server may take to respond to the probe.
	Patience = 1500 * time.Millisecond
	// checksPerAfter is the number of times that the Pulse checks for responses in each period of length After.
	checksPerAfter = 2
	// tick is the interval between two checks for responses.
	tick = After / checksPerAfter
)

// These constants configure the connections. The keepalive time must not be below 10 s, because a server disconnects
// clients that ping more often. The pauses are short, because the client should reconnect soon after a server has
// restarted.
const (
	keepaliveTime  = 20 * time.Second
	keepaliveWait  = 5 * time.Second
	reconnectFirst = 20 * time.Millisecond // the first pause between two attempts to connect
	// reconnectMax is the longest pause between two attempts, and the minimum time limit of one attempt.
	reconnectMax = 2 * time.Second
)

// Options configures a Pulse. The zero value is usable.
type Options struct {
	// May reports whether the connections may be closed. If May is nil, they may always be closed. Closing them is
	// useless if no other server can answer the calls.
	May func() bool
	// Hung, if not nil, is called when the connections are closed.
	Hung func()
	// Dial opens a connection to HOST:PORT, and returns when its context is done. The default is this package's Dial,
	// which uses TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Pulse watches one server. Pulse is safe for concurrent use. The owner must call Close.
type Pulse struct {
	opts   Options
	lines  lines
	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup

	underWay atomic.Int64  // number of calls in progress
	answers  atomic.Uint64 // number of responses received, of any kind
	watching atomic.Bool   // the watch goroutine is running
	silent   atomic.Bool   // whether the server was found to hang, and has not responded since

	mu     sync.Mutex
	conn   grpc.ClientConnInterface // connection for health checks; nil until Ask is called
	closed bool
}

// New creates a Pulse. It is idle while no call is in progress.
func New(opts Options) *Pulse {
	if opts.Dial == nil {
		opts.Dial = Dial
	}
	p := &Pulse{opts: opts, lines: lines{connect: opts.Dial}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// DialOptions returns the options with which connections to the server must be created. The options also determine
// how gRPC detects a broken connection, and how soon it reconnects.
func (p *Pulse) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(p.lines.dial), grpc.WithChainUnaryInterceptor(p.unary),
		grpc.WithChainStreamInterceptor(p.stream),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveWait}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: reconnectFirst, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectMax},
			MinConnectTimeout: reconnectMax,
		}),
		grpc.WithDisableServiceConfig(),
	}
}

// Ask sets the connection used for health checks, which must have been created with DialOptions.
func (p *Pulse) Ask(conn grpc.ClientConnInterface) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn = conn
}

// Silent reports whether the server was found to hang and has not responded since. If so, use another server if one can
// answer.
func (p *Pulse) Silent() bool { return p.silent.Load() }

// HangUp closes all connections. gRPC aborts the calls on them, and reconnects.
func (p *Pulse) HangUp() { p.lines.hangUp() }

// Close stops the Pulse. The connections stay open.
func (p *Pulse) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wait.Wait()
}

// begin counts a new call, and starts the watch goroutine if needed.
func (p *Pulse) begin() {
	p.underWay.Add(1)
	if !p.watching.Load() && p.watching.CompareAndSwap(false, true) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.closed {
			p.wait.Go(p.watch)
		}
	}
}

// answered records that the server has sent a response.
func (p *Pulse) answered() {
	p.answers.Add(1)
	if p.silent.Load() {
		p.silent.Store(false)
	}
}

// isAnswer reports whether an error came from the server. gRPC also creates errors itself.
func isAnswer(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return false
	}
	return true
}

func (p *Pulse) unary(ctx context.Context, method string, in, out any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption) error {
	if method == healthv1.Health_Check_FullMethodName {
		return invoke(ctx, method, in, out, conn, options...)
	}
	p.begin()
	err := invoke(ctx, method, in, out, conn, options...)
	p.underWay.Add(-1)
	if err == nil || isAnswer(err) {
		p.answered()
	}
	return err
}

// stream is a streaming call, in which each message received counts as a response.
type stream struct {
	grpc.ClientStream
	pulse *Pulse
	one   bool        // whether the server sends only one response
	leave func() bool // unregisters the function that runs when the stream's context is done
	once  sync.Once
}

func (p *Pulse) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	p.begin()
	s := &stream{pulse: p, one: !desc.ServerStreams}
	var err error
	if s.ClientStream, err = open(ctx, desc, conn, method, options...); err != nil {
		p.underWay.Add(-1)
		return nil, err
	}
	s.leave = context.AfterFunc(ctx, s.end)
	return s, nil
}

func (s *stream) end() { s.once.Do(func() { s.pulse.underWay.Add(-1) }) }

// RecvMsg implements grpc.ClientStream.
func (s *stream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil || errors.Is(err, io.EOF) || isAnswer(err) {
		s.pulse.answered()
	}
	if err != nil || s.one {
		s.leave()
		s.end()
	}
	return err
}

// watch checks for responses until no call is in progress.
func (p *Pulse) watch() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	seen, looks := p.answers.Load(), 0
	for {
		select {
		case <-ticker.C:
		case <-p.ctx.Done():
			return
		}
		answers := p.answers.Load()
		switch looks++; {
		case p.silent.Load():
			ctx, cancel := context.WithTimeout(p.ctx, Patience)
			p.ask(ctx) // repeated until the server responds
			cancel()
		case answers != seen:
			looks = 0
		case p.underWay.Load() == 0:
			if p.rest() {
				return
			}
			looks = 0
		case looks >= checksPerAfter:
			if p.isHung(answers) {
				p.disconnect()
			}
			looks = 0
		}
		seen = p.answers.Load()
	}
}

// rest decides whether the watch goroutine may end because no call is in progress. It returns true if the goroutine
// must return, and false if a call has started since the last check.
func (p *Pulse) rest() bool {
	p.watching.Store(false)
	return p.underWay.Load() == 0 || !p.watching.CompareAndSwap(false, true)
}

// isHung probes the server, and reports whether it fails to send a further response in time. The argument answers is
// the number of responses that the server has sent so far. isHung measures time in ticks, because no tick occurs while
// this process itself is suspended. After the process resumes, the remaining ticks leave time to read responses that
// have arrived in the meantime.
func (p *Pulse) isHung(answers uint64) bool {
	ctx, cancel := context.WithCancel(p.ctx)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		p.ask(ctx)
	}()
	defer func() {
		cancel()
		<-asked
	}()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for waited := time.Duration(0); waited < Patience; waited += tick {
		select {
		case <-ticker.C:
		case <-asked:
			return false // either the server is alive, or it has stopped and gRPC aborts the calls
		}
	}
	return p.ctx.Err() == nil && p.answers.Load() == answers && p.underWay.Load() > 0
}

// ask probes the server and records its response.
func (p *Pulse) ask(ctx context.Context) {
	p.mu.Lock()
	conn := p.conn
	p.mu.Unlock()
	if conn == nil {
		return
	}
	if _, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}); err == nil || isAnswer(err) {
		p.answered()
	}
}

func (p *Pulse) disconnect() {
	if p.opts.May != nil && !p.opts.May() {
		return
	}
	p.silent.Store(true)
	if p.opts.Hung != nil {
		p.opts.Hung()
	}
	p.lines.hangUp()
}
