package message

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
)

// Stream is the stream of a call whose answers are counted, and whose caller has a longest time to take one message. A
// caller that does not read would hold what the call holds for as long as it likes: keepalive does not notice it, as
// its connection answers.
type Stream struct {
	grpc.ServerStream
	held    *Held
	ctx     context.Context
	message counted // the one being sent: one at a time
	most    time.Duration
	timer   *time.Timer
	under   atomic.Bool // SendMsg is under way
	once    sync.Once
	slow    chan struct{} // closed when a message took too long
	cut     atomic.Bool
	refused chan error // by Cut

	waits atomic.Int64 // SendMsg and RecvMsg that are under way
	moved atomic.Int64 // messages sent and received
}

// Why Await does not wait for a call.
var (
	// ErrSlow: a message took longer than it may.
	ErrSlow = errors.New("a message was not taken in time")
	// ErrStopping: the process is to end, and the caller neither takes nor sends a message.
	ErrStopping = errors.New("stopping")
)

// stoppingPatience is how long a process that is to end waits for the next message of a caller: far longer than one
// takes who is there.
const stoppingPatience = 2 * time.Second

type streamKey struct{}

// NewStream makes one, of which codec encodes the messages.
func NewStream(stream grpc.ServerStream, codec encoding.CodecV2, from Allowance, most time.Duration) *Stream {
	s := &Stream{ServerStream: stream, held: newHeld(from), most: most, slow: make(chan struct{}),
		refused: make(chan error, 1)}
	s.ctx = context.WithValue(stream.Context(), streamKey{}, s)
	s.message.codec, s.message.held = codec, s.held
	s.timer = time.AfterFunc(most, func() {
		if s.under.Load() {
			s.once.Do(func() { close(s.slow) })
		}
	})
	s.timer.Stop()
	return s
}

// HeldOf is what counts for the call of a context that is, or comes from, that of a Stream.
func HeldOf(ctx context.Context) *Held {
	s, ok := ctx.Value(streamKey{}).(*Stream)
	if !ok {
		return newHeld(unbounded{}) // no call of ours
	}
	return s.held
}

// CutterOf gives what ends the Stream of a context, or of one that it comes from, with an error; nil: there is none.
// The caller is answered so, while the handler goes on until the stream has ended.
func CutterOf(ctx context.Context) func(error) {
	if s, ok := ctx.Value(streamKey{}).(*Stream); ok {
		return s.refuse
	}
	return nil
}

// refuse makes Await answer with an error. Of several calls the first one counts.
func (s *Stream) refuse(err error) {
	select {
	case s.refused <- err:
	default:
	}
}

type unbounded struct{}

func (unbounded) Take(int64, int64) error { return nil }
func (unbounded) Add(int64)               {}

// Context implements grpc.ServerStream.
func (s *Stream) Context() context.Context { return s.ctx }

// SendMsg implements grpc.ServerStream. One at a time, as of every stream.
func (s *Stream) SendMsg(m any) error {
	s.waits.Add(1)
	s.under.Store(true)
	s.timer.Reset(s.most)
	s.message.message = m
	err := s.ServerStream.SendMsg(&s.message)
	s.message.message = nil
	s.timer.Stop()
	s.under.Store(false)
	s.moved.Add(1)
	s.waits.Add(-1)
	return err
}

// RecvMsg implements grpc.ServerStream. One at a time, as of every stream.
func (s *Stream) RecvMsg(m any) error {
	s.waits.Add(1)
	err := s.ServerStream.RecvMsg(m)
	s.moved.Add(1)
	s.waits.Add(-1)
	return err
}

// Await gives the error with which the handler ended, or ErrSlow, or, from the moment on that stopping is closed,
// ErrStopping, or what CutterOf gave was called with. With these the caller is answered while the handler goes on until
// the stream has ended: what gRPC holds of its messages stays until the caller reads it. To be called once.
func (s *Stream) Await(ended <-chan error, stopping <-chan struct{}) error {
	var look <-chan time.Time
	moved := int64(0)
	for {
		select {
		case err := <-ended:
			return err
		case <-s.slow:
			s.cut.Store(true)
			return ErrSlow
		case err := <-s.refused:
			s.cut.Store(true)
			return err
		case <-stopping:
			stopping = nil
			ticker := time.NewTicker(stoppingPatience)
			defer ticker.Stop()
			look, moved = ticker.C, s.moved.Load()
		case <-look:
			now := s.moved.Load()
			if now == moved && s.waits.Load() > 0 {
				s.cut.Store(true)
				return ErrStopping
			}
			moved = now
		}
	}
}

// End gives back what is held. To be called when the handler has ended, before the stream is told so.
func (s *Stream) End() {
	// A stream whose context ended before its handler was reset, or has lost its connection.
	s.held.end(!s.cut.Load() && s.ServerStream.Context().Err() != nil)
}
