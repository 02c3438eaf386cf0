package clienttest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/must"
)

// routingServer is a gateway that only serves WatchRouting.
type routingServer struct {
	recordv1.UnimplementedRoutingServiceServer
	leaders chan string
}

func (s *routingServer) WatchRouting(_ *recordv1.WatchRoutingRequest,
	stream recordv1.RoutingService_WatchRoutingServer,
) error {
	for epoch := uint64(1); ; epoch++ {
		select {
		case leader := <-s.leaders:
			err := stream.Send(&recordv1.WatchRoutingResponse{Epoch: epoch, Mode: recordv1.RoutingMode_ROUTING_MODE_HASH,
				Groups: []*recordv1.GroupRoute{{
					Group: "0000", KeyLast: 1<<64 - 1, LeaderAddress: leader,
				}}})
			if err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// readServer is a shard that serves gets. If hangs is set, the shard never responds to them.
type readServer struct {
	recordv1.UnimplementedRecordServiceServer
	asked chan struct{}
	hangs bool
}

func (s *readServer) Get(ctx context.Context, in *recordv1.GetRequest) (*recordv1.GetResponse, error) {
	if s.hangs {
		s.asked <- struct{}{}
		<-ctx.Done() // like a read from a disk that does not respond
		return nil, ctx.Err()
	}
	return &recordv1.GetResponse{Record: &recordv1.Record{Key: in.GetKey()}}, nil
}

// A direct client must not wait for a leader whose disk hangs. When another shard becomes the leader, the client must
// call that shard instead.
func TestDirectReadAvoidsShardWithHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := bubbletest.NewNet()
		serve := func(register func(*grpc.Server)) string {
			listener, err := network.Listen(t.Context(), "server:0")
			must.OK(t, err)
			server := grpc.NewServer()
			healthv1.RegisterHealthServer(server, health.NewServer())
			register(server)
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(server.Stop)
			return listener.Addr().String()
		}
		gateway := &routingServer{leaders: make(chan string)}
		hung := &readServer{asked: make(chan struct{}), hangs: true}
		at := func(s *readServer) string {
			return serve(func(server *grpc.Server) { recordv1.RegisterRecordServiceServer(server, s) })
		}
		first, second := at(hung), at(&readServer{})
		c, err := client.New(client.Config{Direct: true, Dial: network.Dial,
			Addresses: []string{serve(func(server *grpc.Server) {
				recordv1.RegisterRoutingServiceServer(server, gateway)
				recordv1.RegisterRecordServiceServer(server, &readServer{})
			})}})
		must.OK(t, err)
		defer func() { _ = c.Close() }()
		gateway.leaders <- first
		ended := make(chan error, 1)
		go func() { // until the client has the routing, calls go to the gateway
			for asked := false; !asked; {
				answered := make(chan error, 1)
				go func() {
					_, err := c.Get(testContext(t), client.Key{ID: 1}, nil)
					answered <- err
				}()
				select {
				case err := <-answered:
					if err != nil {
						ended <- err
						return
					}
					time.Sleep(time.Millisecond)
				case <-hung.asked:
					asked = true
					gateway.leaders <- second
					ended <- <-answered
				}
			}
		}()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
