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

// Stream is the stream of a call whose response bytes are counted, and whose caller must receive each message within a
// time limit. Without the limit, a caller that does not read could hold the call's memory forever. Keepalive does not
// detect such a caller, because its connection still responds.
type Stream struct {
	grpc.ServerStream
	held    *Held
	ctx     context.Context
	message counted // the message being sent; there is one at a time
	most    time.Duration
	timer   *time.Timer
	under   atomic.Bool // whether SendMsg is in progress
	once    sync.Once
	slow    chan struct{} // closed when a message took too long
	aborted atomic.Bool
	refused chan error // carries the error that was passed to the function that AbortOf returned

	waits atomic.Int64 // number of SendMsg and RecvMsg calls in progress
	moved atomic.Int64 // number of messages sent and received
}

// Await returns these errors if it stops waiting before the call has ended.
var (
	// ErrSlow means that the caller did not receive a message within the time limit.
	ErrSlow = errors.New("a message was not taken in time")
	// ErrStopping means that the process is stopping, and that the call waited for its caller for stoppingPatience
	// without exchanging a message.
	ErrStopping = errors.New("stopping")
)

// stoppingPatience is how long a stopping process waits for a caller's next message. An active caller takes far less
// time.
const stoppingPatience = 2 * time.Second

type streamKey struct{}

// NewStream creates a Stream that encodes its messages with codec.
func NewStream(stream grpc.ServerStream, codec encoding.CodecV2, from Allowance, most time.Duration) *Stream {
	s := &Stream{ServerStream: stream, held: &Held{from: from}, most: most, slow: make(chan struct{}),
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

// HeldOf returns a call's Held. The context must be that of a Stream, or derive from it. For other contexts HeldOf
// returns a Held without a limit.
func HeldOf(ctx context.Context) *Held {
	s, ok := ctx.Value(streamKey{}).(*Stream)
	if !ok {
		return &Held{from: unbounded{}} // the call has no Stream
	}
	return s.held
}

// AbortOf returns a function that aborts, with an error, the Stream to whose context ctx belongs. It returns nil if
// there is no Stream. The caller receives the error, while the handler continues until the stream has ended.
func AbortOf(ctx context.Context) func(error) {
	if s, ok := ctx.Value(streamKey{}).(*Stream); ok {
		return s.refuse
	}
	return nil
}

// refuse makes Await return an error. If refuse is called more than once, Await returns the first error.
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

// SendMsg implements grpc.ServerStream. Only one SendMsg may run at a time, as for every stream.
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

// RecvMsg implements grpc.ServerStream. Only one RecvMsg may run at a time, as for every stream.
func (s *Stream) RecvMsg(m any) error {
	s.waits.Add(1)
	err := s.ServerStream.RecvMsg(m)
	s.moved.Add(1)
	s.waits.Add(-1)
	return err
}

// Await waits until the handler has ended, and returns the handler's error. It returns earlier with ErrSlow, with
// ErrStopping (only after stopping is closed), or with the error that was passed to the function that AbortOf
// returned. The caller then receives this error while the handler still runs. The handler continues until the stream
// has ended, because gRPC holds messages until the caller reads them. Call Await only once.
func (s *Stream) Await(ended <-chan error, stopping <-chan struct{}) error {
	var look <-chan time.Time
	moved := int64(0)
	for {
		select {
		case err := <-ended:
			return err
		case <-s.slow:
			s.aborted.Store(true)
			return ErrSlow
		case err := <-s.refused:
			s.aborted.Store(true)
			return err
		case <-stopping:
			stopping = nil
			ticker := time.NewTicker(stoppingPatience)
			defer ticker.Stop()
			look, moved = ticker.C, s.moved.Load()
		case <-look:
			now := s.moved.Load()
			if now == moved && s.waits.Load() > 0 {
				s.aborted.Store(true)
				return ErrStopping
			}
			moved = now
		}
	}
}

// End returns the held bytes to the allowance. Call it when the handler has returned, before the stream ends.
func (s *Stream) End() {
	// If a stream's context was done before its handler returned, the stream was reset or has lost its connection.
	s.held.end(!s.aborted.Load() && s.ServerStream.Context().Err() != nil)
}
