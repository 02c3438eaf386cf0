package memetcdtest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"sheaf.dev/sheaf/internal/test/must"
)

// TestStopDuringStreamStartDoesNotBlockBubble stops the server at the moment at which a stream begins, while one
// goroutine reads from the stream and another one writes to it. Virtual time must continue to pass, so that the
// client can connect again. A run with noise on its connections once found a case in which virtual time stood still.
// The test takes 0.3 s of CPU time.
func TestStopDuringStreamStartDoesNotBlockBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := New(t)
		conn := server.Client(t).ActiveConnection()
		for range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			stream, err := pb.NewWatchClient(conn).Watch(ctx, grpc.WaitForReady(true))
			must.OK(t, err)
			go func() {
				for {
					if _, err := stream.Recv(); err != nil {
						return
					}
				}
			}()
			server.Away()
			go func() { _ = stream.Send(&pb.WatchRequest{}) }() // returns an error if the stream has already ended
			synctest.Wait()
			server.Back()
			time.Sleep(10 * time.Second)
			cancel()
			synctest.Wait()
		}
	})
}
