package gateway

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/call/web"
	"sheaf.dev/sheaf/internal/security/access/guard"
)

// calls makes calls of RecordService inside this process, with the handlers and the interceptors of its gRPC server.
type calls struct {
	g            *Gateway
	interceptors guard.Interceptors
	unary        map[string]grpc.MethodHandler // by full name
	streams      map[string]grpc.StreamHandler
}

func newCalls(g *Gateway) calls {
	c := calls{g: g, interceptors: g.cfg.web.interceptors, unary: map[string]grpc.MethodHandler{},
		streams: map[string]grpc.StreamHandler{}}
	service := g.recordService()
	for _, m := range service.Methods {
		c.unary["/"+service.ServiceName+"/"+m.MethodName] = m.Handler
	}
	for _, s := range service.Streams {
		c.streams["/"+service.ServiceName+"/"+s.StreamName] = s.Handler
	}
	return c
}

// invoke makes a unary call. The caller frees the response.
func (c *calls) invoke(ctx context.Context, full string, in proto.Message) (mem.BufferSlice, error) {
	receive := func(v any) (err error) {
		v.(*frame).bufs, err = message.Codec{}.Marshal(in)
		return err
	}
	out, err := c.unary[full](nil, ctx, receive, func(ctx context.Context, in any, info *grpc.UnaryServerInfo,
		do grpc.UnaryHandler) (any, error) {
		return c.g.countUnary(ctx, in, info, func(ctx context.Context, in any) (any, error) {
			return c.interceptors.Unary(ctx, in, info, do)
		})
	})
	if err != nil {
		return nil, err
	}
	return codec{}.Marshal(out)
}

// stream makes a streaming call, whose answer is written to the stream's answer. When stream returns, nothing writes to
// the answer any more.
func (c *calls) stream(ctx context.Context, full string, s *webStream, do grpc.StreamHandler) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.ctx = ctx
	info := &grpc.StreamServerInfo{FullMethod: full, IsServerStream: true}
	err := c.g.countStream(nil, s, info, func(server any, stream grpc.ServerStream) error {
		return c.interceptors.Stream(server, stream, info, do)
	})
	s.answer.close()
	return err
}

// webStream is the stream of a call that a request makes.
type webStream struct {
	ctx     context.Context
	request proto.Message // what the handler receives; nil if it receives nothing
	answer  *answer
	// write writes a message to the answer. If it is nil, the bytes of the message are written.
	write func(message mem.BufferSlice) error
}

var _ grpc.ServerStream = (*webStream)(nil)

// Context implements grpc.ServerStream.
func (s *webStream) Context() context.Context { return s.ctx }

// SetHeader implements grpc.ServerStream.
func (*webStream) SetHeader(metadata.MD) error { return nil }

// SendHeader implements grpc.ServerStream.
func (*webStream) SendHeader(metadata.MD) error { return nil }

// SetTrailer implements grpc.ServerStream.
func (*webStream) SetTrailer(metadata.MD) {}

// RecvMsg implements grpc.ServerStream.
func (s *webStream) RecvMsg(m any) (err error) {
	m.(*frame).bufs, err = message.Codec{}.Marshal(s.request)
	return err
}

// SendMsg implements grpc.ServerStream.
func (s *webStream) SendMsg(m any) error {
	bufs, err := codec{}.Marshal(m)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	defer bufs.Free()
	return s.answer.within(func() error {
		if s.write != nil {
			return s.write(bufs)
		}
		return s.answer.writeAll(scan(bufs))
	})
}

// errAnswered is the error for a write to an answer that is over.
var errAnswered = status.Error(codes.Canceled, "the request has ended")

// answer is the answer to a request. One goroutine at a time writes to it. It gives the caller sendTimeout to take each
// write.
type answer struct {
	w       http.ResponseWriter
	control *http.ResponseController

	turn   longlock.Mutex // held by writes, and guards the fields below
	begun  bool           // whether the status has been written
	over   bool           // whether the call has ended
	broken bool           // whether a write was interrupted or has failed
	ending atomic.Bool    // set before close waits for turn

	isTar bool // whether a failure is written as a member of an archive
}

// within runs a function that writes to the answer.
func (a *answer) within(write func() error) error {
	a.turn.Lock()
	defer a.turn.Unlock()
	if a.over {
		return errAnswered
	}
	return write()
}

// begin writes the status. The headers are set already.
func (a *answer) begin(code int) {
	if !a.begun {
		a.begun = true
		_ = a.allow() // the next write fails as well
		a.w.WriteHeader(code)
	}
}

// allow gives the caller time for the next write.
func (a *answer) allow() error {
	err := a.control.SetWriteDeadline(time.Now().Add(sendTimeout))
	if a.ending.Load() { // close may have set its deadline before this one
		return errAnswered
	}
	return err
}

// writeAll writes the bytes of a scanner.
func (a *answer) writeAll(s scanner) error {
	a.begin(http.StatusOK)
	for s.left > 0 {
		s.fill()
		part := s.cur[:min(len(s.cur), s.left)]
		err := a.allow()
		if err == nil {
			_, err = a.w.Write(part)
		}
		if err != nil {
			a.broken = true
			return status.Error(codes.Canceled, "the caller does not take the answer: "+err.Error())
		}
		s.cur, s.left = s.cur[len(part):], s.left-len(part)
	}
	return nil
}

// close ends the answer. It interrupts a write in progress.
func (a *answer) close() {
	a.ending.Store(true)
	if !a.turn.TryLock() {
		_ = a.control.SetWriteDeadline(time.Unix(1, 0)) // a connection that is closed needs none
		a.turn.Lock()
		a.broken = true
	}
	a.over = true
	a.turn.Unlock()
	a.ending.Store(false)
}

// fail answers with an error. If the answer has begun, fail writes the error into the archive, if it is one. It is
// called after close, or instead of it.
func (a *answer) fail(err error) {
	a.turn.Lock()
	defer a.turn.Unlock()
	p := web.ProblemOf(err)
	if refused, ok := errors.AsType[*refusal](err); ok {
		p = refused.problem
	}
	if !a.begun {
		_ = a.allow() // the write fails as well
		for _, name := range []string{"ETag", "Content-Range", "Content-Length"} {
			a.w.Header().Del(name)
		}
		p.Write(a.w)
		return
	}
	if a.isTar && !a.broken && a.allow() == nil {
		_, _ = a.w.Write(web.AppendCut(nil, p.JSON())) // a caller who has gone needs no answer
		_ = a.control.Flush()
	}
}

// refusal is an error that only HTTP has.
type refusal struct{ problem web.Problem }

// Error implements error.
func (r *refusal) Error() string { return r.problem.Message }

func (*answer) refuse(code int, text string) error {
	c := codes.NotFound
	if code == http.StatusMethodNotAllowed {
		c = codes.Unimplemented
	}
	p := web.ProblemOf(status.Error(c, text))
	p.Status = code
	return &refusal{p}
}
