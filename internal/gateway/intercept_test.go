package gateway_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/test/messagetest"
)

// Interceptors decide what a caller may do, so a call that bypasses them would be a security hole.
func TestEveryCallPassesTheInterceptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := messagetest.NewInterceptors()
		c := newCluster(t, named(), gateway.Config{ServerOptions: seen.ServerOptions()}, "a")
		called := seen.CheckEveryCall(t, c.conn)
		for _, method := range []string{
			recordv1.RecordService_Put_FullMethodName, recordv1.RecordService_Watch_FullMethodName,
			recordv1.AdminService_AcceptLoss_FullMethodName,
			recordv1.RoutingService_WatchRouting_FullMethodName, "/grpc.health.v1.Health/Check",
		} {
			if !slices.Contains(called, method) {
				t.Errorf("%s was not called: reflection does not tell of it", method)
			}
		}
	})
}

// A message that is too large is not forwarded to a shard, but the interceptors see the call and its key.
func TestInterceptorsSeeATooLargePut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := messagetest.NewInterceptors()
		c := newCluster(t, hash(1), gateway.Config{ServerOptions: seen.ServerOptions()}, "a")
		in := &recordv1.PutRequest{Key: key(7), Data: make([]byte, 8<<20+1)}
		_, err := c.records.Put(c.ctx, in, grpc.MaxCallSendMsgSize(64<<20))
		wantError(t, err, codes.FailedPrecondition, "USE_UPLOAD")
		if got, _ := seen.Request(recordv1.RecordService_Put_FullMethodName).(*recordv1.PutRequest); got.GetKey().
			GetId() != 7 {
			t.Fatalf("the interceptor saw %v", got.GetKey())
		}
	})
}
