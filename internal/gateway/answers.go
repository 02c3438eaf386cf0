package gateway

import (
	"errors"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
)

// answers bounds the memory held for answers that are forwarded. It implements message.Allowance.
type answers struct {
	limit int64
	used  atomic.Int64
}

// Take implements message.Allowance.
func (a *answers) Take(n, have int64) error {
	if used := a.used.Add(n); used > a.limit && used != have+n {
		a.used.Add(-n)
		return overloaded("the gateway is at its limit of %d bytes of answers; wait and try again", a.limit)
	}
	return nil
}

// Add implements message.Allowance.
func (a *answers) Add(n int64) { a.used.Add(n) }

// sendWithin runs the handler of a stream and counts the memory that it holds for answers. It ends the stream if one
// message takes longer than sendTimeout, or if the gateway stops and no message moves. The handler ends when the
// stream has ended.
func (g *Gateway) sendWithin(stream grpc.ServerStream, handle func(grpc.ServerStream) error) error {
	out := message.NewStream(stream, codec{}, &g.answers, sendTimeout)
	ended := make(chan error, 1)
	g.streams.Go(func() {
		err := handle(out)
		out.End()
		ended <- err
	})
	err := out.Await(ended, g.stopping)
	switch {
	case errors.Is(err, message.ErrSlow):
		return fail(codes.Unavailable, reason.SlowReader,
			"a message of the answer was not taken for %v: read faster, or go on from the last cursor", sendTimeout)
	case errors.Is(err, message.ErrStopping):
		return fail(codes.Unavailable, reason.Stopping, "the gateway is stopping: go on from the last cursor")
	}
	return err
}

// forward sends a message to the caller. While it waits, the shard continues until the window of its stream is full.
// The argument bytes is how much the shard has sent so far.
func forward(held *message.Held, to grpc.ServerStream, out *frame, bytes int64) error {
	n := 2*int64(out.bufs.Len()) + min(streamWindow, bytes) // one message waits, one is in the transport
	if err := held.More(n); err != nil {
		out.free()
		return err
	}
	err := to.SendMsg(out)
	_ = held.More(-n) // a reduction is never refused; unwritten bytes stay counted
	return err
}
