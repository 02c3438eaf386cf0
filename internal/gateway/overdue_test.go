package gateway_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/test/must"
)

// suspendedContext is the context of a call in a process that was suspended until after the deadline, and whose timers
// have not fired yet.
type suspendedContext struct{ context.Context }

func (suspendedContext) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

type stoppedStream struct{ grpc.ServerStream }

func (s stoppedStream) Context() context.Context { return suspendedContext{s.ServerStream.Context()} }

// A write that was held beyond its deadline must not be sent. The gateway itself does not check this, because gRPC
// sends no request whose deadline has passed.
func TestWritesHeldBeyondTheirDeadlineAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := gateway.Config{ServerOptions: []grpc.ServerOption{
			grpc.UnaryInterceptor(func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any,
				error) {
				return handle(suspendedContext{ctx}, in)
			}),
			grpc.StreamInterceptor(func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
				handle grpc.StreamHandler) error {
				return handle(service, stoppedStream{stream})
			}),
		}}
		c := newCluster(t, hash(1), late, "a")
		_, err := c.records.Put(c.ctx, &recordv1.PutRequest{Key: key(1)})
		wantError(t, err, codes.DeadlineExceeded, "")
		_, err = c.records.Delete(c.ctx, &recordv1.DeleteRequest{Key: key(1)})
		wantError(t, err, codes.DeadlineExceeded, "")
		stream, err := c.records.Upload(c.ctx)
		must.OK(t, err)
		must.OK(t, stream.Send(
			&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: key(
				1)}}}))
		_, err = stream.CloseAndRecv()
		wantError(t, err, codes.DeadlineExceeded, "")
		s := c.shards["a"]
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.applied != 0 || len(s.calls) != 0 {
			t.Errorf("%d writes applied, calls %v", s.applied, s.calls)
		}
	})
}
