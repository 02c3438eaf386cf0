package livenesstest_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/liveness"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/leaktest"
	"sheaf.dev/sheaf/internal/test/livenesstest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/stoptest"
)

// slowServer is a server whose Get calls wait until the test sends a value to the channel turn.
type slowServer struct {
	recordv1.UnimplementedRecordServiceServer
	begun chan struct{}
	turn  chan struct{}
}

func (s *slowServer) Get(ctx context.Context, _ *recordv1.GetRequest) (*recordv1.GetResponse, error) {
	s.begun <- struct{}{}
	select {
	case <-s.turn:
	case <-ctx.Done():
	}
	return &recordv1.GetResponse{}, ctx.Err()
}

func (s *slowServer) Watch(_ *recordv1.WatchRequest, stream grpc.ServerStreamingServer[recordv1.WatchResponse]) error {
	s.begun <- struct{}{}
	<-stream.Context().Done()
	return stream.Context().Err()
}

type rig struct {
	*slowServer
	listener *livenesstest.Listener
	pulse    *liveness.Pulse
	client   recordv1.RecordServiceClient
	health   *observedHealth
}

// observedHealth is a health server that lets a test observe each check.
type observedHealth struct {
	*health.Server
	before atomic.Pointer[func()] // called before the response; nil if no function is set
}

func (a *observedHealth) Check(ctx context.Context, in *healthv1.HealthCheckRequest) (
	*healthv1.HealthCheckResponse, error,
) {
	if before := a.before.Load(); before != nil {
		(*before)()
	}
	return a.Server.Check(ctx, in)
}

// newRig creates a rig in a bubble of testing/synctest, with connections in memory.
func newRig(t *testing.T, opts liveness.Options) *rig {
	t.Helper()
	network := bubbletest.NewNet()
	l, err := network.Listen(t.Context(), "server:0")
	must.OK(t, err)
	opts.Dial = network.Dial
	return newRigOn(t, l, opts)
}

func newRigOn(t *testing.T, l net.Listener, opts liveness.Options) *rig {
	t.Helper()
	r := &rig{slowServer: &slowServer{begun: make(chan struct{}), turn: make(chan struct{})},
		listener: livenesstest.Listen(l), pulse: liveness.New(opts)}
	server := grpc.NewServer()
	recordv1.RegisterRecordServiceServer(server, r.slowServer)
	r.health = &observedHealth{Server: health.NewServer()}
	healthv1.RegisterHealthServer(server, r.health)
	go func() { _ = server.Serve(r.listener) }()
	t.Cleanup(server.Stop)
	t.Cleanup(r.listener.GoOn)
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(),
		append(r.pulse.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	must.OK(t, err)
	r.pulse.Ask(conn)
	t.Cleanup(func() { _ = conn.Close() })
	t.Cleanup(r.pulse.Close)
	r.client = recordv1.NewRecordServiceClient(conn)
	return r
}

// call starts a call, and returns when the server has received it.
func (r *rig) call(t *testing.T) <-chan error {
	answer := make(chan error, 1)
	go func() {
		_, err := r.client.Get(t.Context(), &recordv1.GetRequest{})
		answer <- err
	}()
	<-r.begun
	return answer
}

func TestCallsAtHungServerAreAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := make(chan struct{}, 10)
		r := newRig(t, liveness.Options{Hung: func() { hung <- struct{}{} }})
		unary := r.call(t)
		stream, err := r.client.Watch(t.Context(), &recordv1.WatchRequest{})
		must.OK(t, err)
		<-r.begun
		r.listener.Hang()
		if err := <-unary; status.Code(err) != codes.Unavailable {
			t.Errorf("unary: %v", err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("stream: %v", err)
		}
		<-hung
		if !r.pulse.Silent() {
			t.Error("it counts as alive")
		}
		r.listener.GoOn()
		for r.pulse.Silent() { // no call is in progress, so only the health checks notice that the server responds again
			time.Sleep(time.Millisecond)
		}
		again := r.call(t)
		r.turn <- struct{}{}
		if err := <-again; err != nil {
			t.Errorf("after it went on: %v", err)
		}
	})
}

func TestClientWaitsForSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, liveness.Options{})
		answer := r.call(t)
		select {
		case err := <-answer:
			t.Fatalf("the call ended: %v", err)
		case <-time.After(10 * time.Second): // by now, the server has been checked about twenty times
		}
		r.turn <- struct{}{}
		if err := <-answer; err != nil || r.pulse.Silent() {
			t.Errorf("%v, silent %v", err, r.pulse.Silent())
		}
	})
}

// While a process is suspended, it cannot receive responses. It must not conclude from this that its server hangs. In
// this test, the process is suspended for most of the time within which the server must respond, and the response
// arrives a little later. The test does not run in a bubble, because a bubble's time does not pass while a process is
// suspended.
func TestSuspendedProcessBlamesNoServer(t *testing.T) {
	t.Cleanup(func() { leaktest.VerifyNone(t) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	r := newRigOn(t, l, liveness.Options{})
	stopped := make(chan struct{})
	stop := sync.OnceFunc(func() {
		stoptest.Self(t, liveness.Patience-200*time.Millisecond)
		close(stopped)
		time.Sleep(400 * time.Millisecond)
	})
	r.health.before.Store(&stop)
	answer := r.call(t)
	<-stopped
	select {
	case err := <-answer:
		t.Fatalf("the call ended: %v", err)
	case <-time.After(liveness.After):
	}
	r.turn <- struct{}{}
	if err := <-answer; err != nil || r.pulse.Silent() {
		t.Errorf("%v, silent %v", err, r.pulse.Silent())
	}
}

func TestCallsWaitIfNoOtherShardCanAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan struct{}, 1000)
		r := newRig(t, liveness.Options{May: func() bool { asked <- struct{}{}; return false }})
		answer := r.call(t)
		r.listener.Hang()
		for range 3 {
			<-asked
		}
		r.listener.GoOn()
		r.turn <- struct{}{}
		if err := <-answer; err != nil {
			t.Error(err)
		}
	})
}
