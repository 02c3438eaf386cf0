package message

import (
	"context"
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
}

type heldKey struct{}

// NewStream makes one, of which codec encodes the messages.
func NewStream(stream grpc.ServerStream, codec encoding.CodecV2, from Allowance, most time.Duration) *Stream {
	s := &Stream{ServerStream: stream, held: NewHeld(from), most: most, slow: make(chan struct{})}
	s.ctx = context.WithValue(stream.Context(), heldKey{}, s.held)
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
	held, ok := ctx.Value(heldKey{}).(*Held)
	if !ok {
		return NewHeld(unbounded{}) // no call of ours
	}
	return held
}

type unbounded struct{}

func (unbounded) Take(int64, int64) error { return nil }
func (unbounded) Add(int64)               {}

// Context implements grpc.ServerStream.
func (s *Stream) Context() context.Context { return s.ctx }

// SendMsg implements grpc.ServerStream. One at a time, as of every stream.
func (s *Stream) SendMsg(m any) error {
	s.under.Store(true)
	s.timer.Reset(s.most)
	s.message.message = m
	err := s.ServerStream.SendMsg(&s.message)
	s.message.message = nil
	s.timer.Stop()
	s.under.Store(false)
	return err
}

// Slow is closed when a message took too long.
func (s *Stream) Slow() <-chan struct{} { return s.slow }

// Cut tells that the caller is answered while the handler goes on: what gRPC holds of its messages stays until the
// caller reads it.
func (s *Stream) Cut() { s.cut.Store(true) }

// End gives back what is held. To be called when the handler has ended, before the stream is told so.
func (s *Stream) End() {
	// A stream whose context ended before its handler was reset, or has lost its connection.
	s.held.End(!s.cut.Load() && s.ServerStream.Context().Err() != nil)
}
