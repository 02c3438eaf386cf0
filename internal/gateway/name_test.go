package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver/dns"

	"sheaf.dev/sheaf/internal/test/must"
)

// fakeResolver is a name server that resolves every name to one address.
type fakeResolver struct{ address atomic.Pointer[[4]byte] }

// serve responds to queries until the socket is closed.
func (n *fakeResolver) serve(socket net.PacketConn) {
	buffer := make([]byte, 1500)
	for {
		length, from, err := socket.ReadFrom(buffer)
		if err != nil {
			return
		}
		if length < 12 {
			continue
		}
		question := buffer[12:length]
		end := bytes.IndexByte(question, 0) + 5 // the type and the class of the question follow the name
		if end < 5 || end > len(question) {
			continue
		}
		question = question[:end]
		isA := binary.BigEndian.Uint16(question[end-4:]) == 1
		// The header of the response has the query's id, flags without an error, one question, and one answer or none.
		answer := append(bytes.Clone(buffer[:2]), 0x84, 0, 0, 1, 0, 0, 0, 0, 0, 0)
		answer = append(answer, question...)
		if isA {
			answer[7] = 1
			// The answer consists of a pointer to the name in the question, type A, class IN, a TTL of one second, and the
			// length of the address, which follows.
			answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4)
			answer = append(answer, n.address.Load()[:]...)
		}
		_, _ = socket.WriteTo(answer, from) // if this response is lost, the client asks again
	}
}

// twoListeners returns two listeners with different loopback addresses and the same port. No other program uses this
// port.
func twoListeners(t *testing.T) (first, second net.Listener, port string) {
	t.Helper()
	var config net.ListenConfig
	for tries := 0; ; tries++ {
		first, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
		must.OK(t, err)
		_, port, err = net.SplitHostPort(first.Addr().String())
		must.OK(t, err)
		second, err := config.Listen(t.Context(), "tcp", "127.0.0.2:"+port)
		if err == nil {
			t.Cleanup(func() { _, _ = first.Close(), second.Close() }) // an error means that the server has already closed it
			return first, second, port
		}
		if _ = first.Close(); tries == 100 {
			t.Fatal(err)
		}
	}
}

// serve starts a gRPC server on a listener.
func serve(t *testing.T, listener net.Listener) *grpc.Server {
	t.Helper()
	server := grpc.NewServer()
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return server
}

// nameServer is the address of the DNS server that this process uses; nil means the machine's DNS server.
var nameServer atomic.Pointer[string]

// TestMain sets the resolver of the process before any test runs, because a look-up may continue after the end of its
// test.
func TestMain(m *testing.M) {
	machine := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn,
		error) {
		if server := nameServer.Load(); server != nil {
			network, address = "udp", *server
		}
		return (&net.Dialer{Resolver: machine}).DialContext(ctx, network, address)
	}}
	os.Exit(m.Run())
}

// TestShardHasAnotherAddress moves a shard to a new address behind the same name, as a restart on Kubernetes does.
// The test does not run in a bubble because DNS needs sockets.
func TestShardHasAnotherAddress(t *testing.T) {
	var n fakeResolver
	n.address.Store(&[4]byte{127, 0, 0, 1})
	socket, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	must.OK(t, err)
	defer func() { _ = socket.Close() }()
	go n.serve(socket)
	nameServer.Store(new(socket.LocalAddr().String()))
	defer nameServer.Store(nil)
	dns.SetMinResolutionInterval(time.Hour) // with the resolver dns, a client would repeat a look-up only after an hour

	listener, later, port := twoListeners(t)
	first := serve(t, listener)
	s, err := newRouter(Config{Logger: slog.New(slog.DiscardHandler),
		ShardCredentials: func(string) credentials.TransportCredentials { return insecure.NewCredentials() },
	}).connect("a-0", "a-0.shards.example.:"+port)
	must.OK(t, err)
	defer s.closeNow()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	await := func(server string) {
		t.Helper()
		for conn := s.conns[0]; ; {
			state := conn.GetState()
			if state == connectivity.Ready {
				return
			}
			conn.Connect()
			if !conn.WaitForStateChange(ctx, state) {
				t.Fatalf("no connection to the %s server: %v", server, state)
			}
		}
	}
	await("first")
	first.Stop()
	for s.conns[0].GetState() == connectivity.Ready {
		if !s.conns[0].WaitForStateChange(ctx, connectivity.Ready) {
			t.Fatal("the connection to a server that has stopped is still there")
		}
	}
	serve(t, later)
	n.address.Store(&[4]byte{127, 0, 0, 2})
	await("second")
}
