// Package liveness finds out that a server hangs: that it takes calls and answers none, because its process was
// stopped, its machine is gone, or the network swallows what is sent. gRPC notices that by its keepalive, which may not
// be quicker than 10 s; calls without a deadline of their own would wait for that long, though other servers could
// answer them.
//
// While calls wait and nothing is answered, the server's health is asked for. A server that answers anything at all is
// slow, and is waited for. Where it answers nothing, its connections are cut, which ends the calls on them.
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
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Defaults of Options.
const (
	DefaultAfter    = 500 * time.Millisecond
	DefaultPatience = 1500 * time.Millisecond
)

// looksPerAfter is how often the answers are counted in the time of Options.After.
const looksPerAfter = 2

// Options of a Pulse. The zero value is good.
type Options struct {
	After    time.Duration // without any answer, until the server is asked; 0: DefaultAfter
	Patience time.Duration // for the answer to that; 0: DefaultPatience
	// May is asked before the connections are cut; nil: they may be. A caller whose calls nobody else can answer gains
	// nothing.
	May func() bool
	// Hung is told when the connections are cut; nil: nobody is.
	Hung func()
	// Dial opens a connection to HOST:PORT, and ends with its context; nil: the Dial of this package, which is by TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// tick is the time between two looks.
func (o *Options) tick() time.Duration { return o.After / looksPerAfter }

// Pulse watches one server. Safe for concurrent use. Close must follow.
type Pulse struct {
	opts   Options
	lines  lines
	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup

	underWay atomic.Int64  // calls
	answers  atomic.Uint64 // of any kind
	watching atomic.Bool   // the goroutine runs
	silent   atomic.Bool   // it was found to hang, and has answered nothing since

	mu     sync.Mutex
	conn   grpc.ClientConnInterface // to ask by; nil: none yet
	closed bool
}

// New makes a Pulse. It does nothing while no call is under way.
func New(opts Options) *Pulse {
	if opts.After <= 0 {
		opts.After = DefaultAfter
	}
	if opts.Patience <= 0 {
		opts.Patience = DefaultPatience
	}
	if opts.Dial == nil {
		opts.Dial = Dial
	}
	p := &Pulse{opts: opts, lines: lines{connect: opts.Dial}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// DialOptions are for the connections to the server.
func (p *Pulse) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(p.lines.dial), grpc.WithChainUnaryInterceptor(p.unary),
		grpc.WithChainStreamInterceptor(p.stream),
	}
}

// Ask says by which connection the server is asked: one that was made with DialOptions.
func (p *Pulse) Ask(conn grpc.ClientConnInterface) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn = conn
}

// Silent tells that the server was found to hang and has answered nothing since: whoever can answer in its place is to
// be asked.
func (p *Pulse) Silent() bool { return p.silent.Load() }

// HangUp cuts all connections. gRPC ends the calls on them, and connects anew.
func (p *Pulse) HangUp() { p.lines.hangUp() }

// Close ends the watch. The connections stay.
func (p *Pulse) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wait.Wait()
}

// begin counts a call in, and sees to it that somebody watches.
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

// heard notes an answer.
func (p *Pulse) heard() {
	p.answers.Add(1)
	if p.silent.Load() {
		p.silent.Store(false)
	}
}

// isAnswer tells whether an error came from the server. gRPC makes the other ones itself, too.
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
		p.heard()
	}
	return err
}

// stream is a call with several messages, each of which counts as an answer.
type stream struct {
	grpc.ClientStream
	pulse *Pulse
	one   bool        // answer comes, no more
	leave func() bool // what ends it with its context
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
		s.pulse.heard()
	}
	if err != nil || s.one {
		s.leave()
		s.end()
	}
	return err
}

// watch looks at the answers until no call is under way.
func (p *Pulse) watch() {
	tick := time.NewTicker(p.opts.tick())
	defer tick.Stop()
	seen, looks := p.answers.Load(), 0
	for {
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			return
		}
		answers := p.answers.Load()
		switch looks++; {
		case p.silent.Load():
			ctx, cancel := context.WithTimeout(p.ctx, p.opts.Patience)
			p.ask(ctx) // until it is back
			cancel()
		case answers != seen:
			looks = 0
		case p.underWay.Load() == 0:
			if p.rest() {
				return
			}
			looks = 0
		case looks >= looksPerAfter:
			if p.hangs(answers) {
				p.cut()
			}
			looks = 0
		}
		seen = p.answers.Load()
	}
}

// rest ends the watch, unless a call has begun meanwhile.
func (p *Pulse) rest() bool {
	p.watching.Store(false)
	return p.underWay.Load() == 0 || !p.watching.CompareAndSwap(false, true)
}

// hangs asks the server, which has given so many answers. True: it gave none, within its time. The time is counted in
// ticks: while this process itself is held up, no tick comes, and the ticks that are left when it goes on are the time
// in which an answer that came meanwhile is read.
func (p *Pulse) hangs(answers uint64) bool {
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
	tick := time.NewTicker(p.opts.tick())
	defer tick.Stop()
	for waited := time.Duration(0); waited < p.opts.Patience; waited += p.opts.tick() {
		select {
		case <-tick.C:
		case <-asked:
			return false // it lives; or it is gone, which gRPC tells the calls
		}
	}
	return p.ctx.Err() == nil && p.answers.Load() == answers && p.underWay.Load() > 0
}

// ask has the server counted as heard where it answers.
func (p *Pulse) ask(ctx context.Context) {
	p.mu.Lock()
	conn := p.conn
	p.mu.Unlock()
	if conn == nil {
		return
	}
	if _, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}); err == nil || isAnswer(err) {
		p.heard()
	}
}

func (p *Pulse) cut() {
	if p.opts.May != nil && !p.opts.May() {
		return
	}
	p.silent.Store(true)
	if p.opts.Hung != nil {
		p.opts.Hung()
	}
	p.lines.hangUp()
}
