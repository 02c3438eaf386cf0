package gateway

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
)

// replayBytesMax bounds the size of uploads that the gateway keeps for a retry.
const replayBytesMax = 1 << 20

var (
	uploadDesc   = &grpc.StreamDesc{ClientStreams: true}
	downloadDesc = &grpc.StreamDesc{ServerStreams: true}
	bidiDesc     = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
)

// newAnswers returns the budget of memory held for responses that are forwarded.
func newAnswers(limit int64) *message.Budget {
	return message.NewBudget(limit, func(limit int64) error {
		return overloaded("the gateway is at its limit of %d bytes of answers; wait and try again", limit)
	})
}

// sendWithin runs the handler of a stream and counts the memory that the handler holds for responses. It aborts the
// stream if one message takes longer than sendTimeout, or if the gateway stops while the stream is idle. The handler
// returns when the stream is aborted.
func (g *Gateway) sendWithin(stream grpc.ServerStream, handle func(grpc.ServerStream) error) error {
	out := message.NewStream(stream, codec{}, g.answers, sendTimeout)
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

// forward sends a message to the caller. While forward waits, the shard continues to send until the window of its
// stream is full. The argument bytes is the number of bytes that the shard has sent so far.
func forward(held *message.Held, to grpc.ServerStream, out *frame, bytes int64) error {
	n := 2*int64(out.bufs.Len()) + min(streamWindow, bytes) // one message waits in this process, and one in the transport
	if err := held.More(n); err != nil {
		out.free()
		return err
	}
	err := to.SendMsg(out)
	_ = held.More(-n) // More never refuses a reduction; unwritten bytes stay counted
	return err
}

// counted returns a stream handler that calls handle, and counts the calls in progress and the memory that they hold
// for responses.
func (g *Gateway) counted(full string, handle func(grpc.ServerStream) error) grpc.StreamHandler {
	mm := g.metrics.method(full)
	return func(_ any, stream grpc.ServerStream) error {
		err := g.admit(0)
		if err == nil {
			err = g.sendWithin(stream, handle)
			g.release(0)
		}
		mm.done(status.Code(err), time.Time{})
		return err
	}
}

// download forwards a call with one request and a stream of responses. The call is retried only before the first
// response.
func (g *Gateway) download(m *method) grpc.StreamHandler {
	return g.counted(m.full, func(stream grpc.ServerStream) error {
		in := &frame{keep: true}
		if err := stream.RecvMsg(in); err != nil {
			return err
		}
		defer in.free()
		var k key
		if err := m.readKey(in, &k); err != nil {
			return err
		}
		if err := g.may(stream.Context(), m.verb, &k); err != nil {
			return err
		}
		return g.pump(stream.Context(), stream, func(call *repeated, ctx context.Context, do attempt) error {
			return call.route(ctx, &k, m.creates, do)
		}, m.full, in, nil)
	})
}

// download sends a request to a shard, and returns the stream of responses.
func (s *shard) download(ctx context.Context, full string, in *frame) (grpc.ClientStream, error) {
	from, err := s.conn().NewStream(ctx, downloadDesc, full)
	if err != nil {
		return nil, err
	}
	if err := from.SendMsg(in); err != nil && !errors.Is(err, io.EOF) { // after io.EOF, RecvMsg returns the reason
		return nil, err
	}
	return from, from.CloseSend()
}

// pump opens a stream at the shard that the function through chooses, sends the request in the argument in to the
// shard, and forwards all responses. If change is not nil, it may change each response before that. ctx is the
// context of the caller's stream, or is derived from it. Flow control bounds a stream on both sides;
// Limits.AnswerBytesMax bounds all streams together.
func (g *Gateway) pump(ctx context.Context, stream grpc.ServerStream,
	through func(*repeated, context.Context, attempt) error, full string, in *frame, change func(*frame) error) error {
	call := g.repeated(routing.Effect{})
	held := message.HeldOf(ctx)
	idles := full == recordv1.RecordService_Watch_FullMethodName // a Watch has no responses while nothing changes
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return through(&call, ctx, func(ctx context.Context, s place) (bool, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // aborts the shard's stream if the caller's stream ends first
		from, err := s.download(ctx, full, in)
		if err != nil {
			return true, err
		}
		tenure := s.tenure
		if idles {
			tenure = nil
		}
		bytes := int64(0)
		for first := true; ; first = false {
			out := &frame{}
			counted := tenure.Begin()
			err := from.RecvMsg(out)
			tenure.End(counted)
			if err != nil {
				if errors.Is(err, io.EOF) {
					stream.SetTrailer(own(from.Trailer()))
					return true, nil
				}
				if first {
					return true, err
				}
				return true, finalError{unreachable(err, s.name)}
			}
			if change != nil {
				if err := change(out); err != nil {
					out.free()
					return true, finalError{err}
				}
			}
			bytes += int64(out.bufs.Len())
			if err := forward(held, stream, out, bytes); err != nil {
				return true, finalError{err}
			}
		}
	})
}

// pumpGroup does the same as pump, but for a request to the leader of a group that is identified by name.
func (g *Gateway) pumpGroup(ctx context.Context, stream grpc.ServerStream, group, full string, request proto.Message,
	change func(*frame) error) error {
	encoded, err := proto.Marshal(request)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	in := &frame{keep: true, bufs: mem.BufferSlice{mem.SliceBuffer(encoded)}}
	return g.pump(ctx, stream, func(call *repeated, ctx context.Context, do attempt) error {
		return call.named(ctx, group, do)
	}, full, in, change)
}

// finalError wraps an error after which the call must not be retried, for example because the stream has already
// delivered data.
type finalError struct{ error }

// Unwrap returns the wrapped error.
func (b finalError) Unwrap() error { return b.error }

// upload forwards a stream of requests. The call is retried only while the gateway still holds everything that was
// sent.
func (g *Gateway) upload(m *method) grpc.StreamHandler {
	return g.counted(m.full, func(stream grpc.ServerStream) error {
		first := &frame{keep: true}
		if err := stream.RecvMsg(first); err != nil {
			if errors.Is(err, io.EOF) {
				return invalid("header", "the stream ended before its first message")
			}
			return err
		}
		u := &uploading{g: g, m: m, stream: stream, held: []*frame{first}, bytes: int64(first.bufs.Len())}
		defer u.drop()
		if err := tooLarge(m.full, first); err != nil {
			return err
		}
		var k key
		if err := m.readKey(first, &k); err != nil {
			return err
		}
		if err := g.may(stream.Context(), m.verb, &k); err != nil {
			return err
		}
		call := g.repeated(routing.Effect{Write: true, Once: !k.requestID})
		return call.route(stream.Context(), &k, m.creates, func(ctx context.Context, s place) (bool, error) {
			return u.send(ctx, s.shard)
		})
	})
}

// uploading holds the state of an upload in progress.
type uploading struct {
	g      *Gateway
	m      *method
	stream grpc.ServerStream
	held   []*frame // all received frames, as long as they fit into replayBytesMax
	bytes  int64    // size of the received frames
	gone   bool     // the frames did not fit and were dropped, so a retry is impossible
	ended  bool     // the caller has half-closed
}

// drop frees all held frames.
func (u *uploading) drop() {
	for _, f := range u.held {
		f.free()
	}
	u.held = nil
}

// send makes one attempt: it sends the held frames, then further frames as they arrive.
func (u *uploading) send(ctx context.Context, s *shard) (sent bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	to, err := s.conn().NewStream(ctx, uploadDesc, u.m.full)
	if err != nil {
		return false, err
	}
	for _, f := range u.held {
		if err := to.SendMsg(f); err != nil {
			return u.answer(to, s)
		}
	}
	for !u.ended {
		f := &frame{}
		if err := u.stream.RecvMsg(f); err != nil {
			if errors.Is(err, io.EOF) {
				u.ended = true
				break
			}
			return true, finalError{err} // the caller has disconnected; without a half-close the shard stores nothing
		}
		if err := tooLarge(u.m.full, f); err != nil {
			f.free()
			return true, finalError{err}
		}
		u.hold(f)
		if err := to.SendMsg(f); err != nil {
			if !f.keep {
				f.free()
			}
			return u.answer(to, s)
		}
	}
	if err := to.CloseSend(); err != nil {
		return true, err
	}
	return u.answer(to, s)
}

// hold keeps a frame for another attempt, as long as all frames fit into replayBytesMax.
func (u *uploading) hold(f *frame) {
	if u.gone {
		return
	}
	u.bytes += int64(f.bufs.Len())
	if u.bytes > replayBytesMax {
		u.gone = true
		u.drop()
		return
	}
	f.keep = true
	u.held = append(u.held, f)
}

// answer waits for the shard's response and forwards it.
func (u *uploading) answer(to grpc.ClientStream, s *shard) (sent bool, err error) {
	out := &frame{}
	if err := to.RecvMsg(out); err != nil {
		if errors.Is(err, io.EOF) {
			err = status.Error(codes.Internal, "the shard ended the upload without an answer")
		}
		st := status.Convert(err)
		// The shard can only have stored the upload if the stream was half-closed.
		refused := !u.ended && routing.Judge(st, false).Fate == routing.Refused
		switch {
		case !u.gone:
			return !refused, err
		case !refused && routing.Judge(st, true).Fate == routing.Unknown:
			return true, finalError{outcomeUnknown(err)}
		}
		return !refused, finalError{unreachable(err, s.name)}
	}
	u.stream.SetTrailer(own(to.Trailer()))
	if err := u.stream.SendMsg(out); err != nil {
		return true, finalError{err}
	}
	return true, nil
}
