package clienttest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/storetest"
)

// longTimeout is a timeout longer than any test. If a call fails sooner, the timeout cannot be the reason.
const longTimeout = time.Hour

// This test does not run in a bubble, because it checks the operating system's and DNS's errors for an address at which
// nothing listens.
func TestFailFastReportsUnusedAddressAtOnce(t *testing.T) {
	for _, address := range []string{"127.0.0.1:1", "no-such-host.invalid:1"} {
		c, err := client.New(client.Config{Addresses: []string{address, address}, FailFast: true, CallTimeout: longTimeout})
		must.OK(t, err)
		ctx, key := testContext(t), client.Key{ID: 1}
		for name, do := range map[string]func() error{
			"get":      func() error { _, err := c.Get(ctx, key, nil); return err },
			"put":      func() error { _, err := c.Put(ctx, key, nil, nil); return err },
			"batchput": func() error { return c.BatchPut(ctx, []client.PutItem{{Key: key}})[0].Err },
			"upload":   func() error { _, err := c.Upload(ctx, key, bytes.NewReader(nil), nil); return err },
			"scan":     func() error { return lastError(c.Scan(ctx, nil)) },
			"download": func() error { _, err := c.Open(ctx, key, nil); return err },
			"named":    func() error { _, err := c.Named(ctx); return err },
		} {
			if err := do(); !errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrOutcomeUnknown) ||
				ctx.Err() != nil {
				t.Errorf("%s at %s: %v", name, address, err)
			}
		}
		must.OK(t, c.Close())
	}
}

func TestFailFastTakesAnotherAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Start(t)
		c, err := client.New(client.Config{Addresses: []string{"nobody:1", s.Addr()}, FailFast: true,
			CallTimeout: longTimeout,
			Dial:        s.Network.Dial})
		must.OK(t, err)
		defer func() { _ = c.Close() }() // the error does not matter
		if _, err := c.Put(testContext(t), client.Key{ID: 1}, nil, nil); err != nil {
			t.Errorf("the second address: %v", err)
		}
	})
}

// loadingServer is a server that always responds that its group is still loading.
type loadingServer struct {
	recordv1.UnimplementedRecordServiceServer
}

func (loadingServer) Get(context.Context, *recordv1.GetRequest) (*recordv1.GetResponse, error) {
	return nil, status.Error(codes.NotFound, "no")
}

func TestFailFastWaitsForAServerThatHasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := bubbletest.NewNet()
		listener, err := network.Listen(t.Context(), "server:0")
		must.OK(t, err)
		server := grpc.NewServer()
		recordv1.RegisterRecordServiceServer(server, loadingServer{})
		go func() { _ = server.Serve(listener) }() // Serve returns after Stop
		defer server.Stop()
		var calls atomic.Int64
		c, err := client.New(client.Config{
			Addresses: []string{listener.Addr().String()}, FailFast: true, CallTimeout: longTimeout, Dial: network.Dial,
			DialOptions: []grpc.DialOption{grpc.WithUnaryInterceptor(
				func(ctx context.Context, method string, in, out any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
					options ...grpc.CallOption) error {
					calls.Add(1)
					return invoke(ctx, method, in, out, cc, options...)
				})},
		})
		must.OK(t, err)
		defer func() { _ = c.Close() }() // the error does not matter
		if _, err := c.Get(testContext(t), client.Key{ID: 1}, nil); !errors.Is(err, client.ErrNotFound) {
			t.Fatal(err)
		}
		server.Stop()
		calls.Store(0)
		ctx, cancel := context.WithCancel(testContext(t))
		ended := make(chan error, 1)
		go func() {
			_, err := c.Get(ctx, client.Key{ID: 1}, nil)
			ended <- err
		}()
		for calls.Load() < 5 {
			select {
			case err := <-ended:
				t.Fatalf("after %d calls: %v", calls.Load(), err)
			case <-time.After(time.Millisecond):
			}
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestFailFastRetriesAddressAfterLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Start(t)
		for _, said := range []string{
			"i/o timeout",            // the network's error if there is no response
			"operation was canceled", // the error if a Pulse aborted the attempt because it took too long
		} {
			var dials atomic.Int64
			c, err := client.New(client.Config{
				Addresses: []string{s.Addr()}, FailFast: true, CallTimeout: longTimeout,
				DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
					if dials.Add(1) < 3 {
						return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New(said)}
					}
					return s.Network.Dial(ctx, address)
				})},
			})
			must.OK(t, err)
			if _, err := c.Put(testContext(t), client.Key{ID: 1}, nil, nil); err != nil || dials.Load() < 3 {
				t.Errorf("%s: after %d dials: %v", said, dials.Load(), err)
			}
			_ = c.Close() // the error does not matter
		}
	})
}

// hangsOnce returns an address. The first connection to it is accepted, receives some bytes (the argument words), and
// then hangs. Later connections are forwarded to another address (the argument to). The counter taken counts all
// connections.
func hangsOnce(t *testing.T, network *bubbletest.Net, words []byte, to string, taken *atomic.Int64) string {
	t.Helper()
	listener, err := network.Listen(t.Context(), "hangs:0")
	must.OK(t, err)
	t.Cleanup(func() { _ = listener.Close() }) // the error does not matter
	serve := func(conn net.Conn) {
		defer func() { _ = conn.Close() }() // the error does not matter
		if taken.Add(1) == 1 {
			_, _ = conn.Write(words)
			_, _ = io.Copy(io.Discard, conn)
			return
		}
		behind, err := network.Dial(t.Context(), to)
		if err != nil {
			return // the client's call reports the failure
		}
		defer func() { _ = behind.Close() }() // the error does not matter
		go func() { _, _ = io.Copy(conn, behind) }()
		_, _ = io.Copy(behind, conn)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the listener was closed
			}
			go serve(conn)
		}
	}()
	return listener.Addr().String()
}

// If a connection does not respond, a Pulse closes it. FailFast must not conclude from this that nobody listens at
// the address, because the next connection may reach another server at the same address.
func TestFailFastRetriesAddressAfterHungConnection(t *testing.T) {
	for name, words := range map[string][]byte{
		"before it was ready": nil,
		"with the call":       {0, 0, 0, 4, 0, 0, 0, 0, 0}, // an empty SETTINGS frame, after which the client sends calls
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := storetest.Start(t)
				var taken atomic.Int64
				c, err := client.New(client.Config{
					Addresses: []string{hangsOnce(t, s.Network, words, s.Addr(), &taken)}, FailFast: true, CallTimeout: longTimeout,
					Dial: s.Network.Dial,
				})
				must.OK(t, err)
				defer func() { _ = c.Close() }() // the error does not matter
				if _, err := c.Put(testContext(t), client.Key{ID: 1}, nil, nil); err != nil || taken.Load() < 2 {
					t.Errorf("after %d connections: %v", taken.Load(), err)
				}
			})
		})
	}
}

// If a server ends a download with the status OK before all data was sent, the client must notice that data is
// missing, and continue the download.
func TestDownloadContinuesAfterEarlyEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Start(t)
		f := &faults{}
		c, ctx, key, data := s.Client(t, f.config()), testContext(t), client.Key{ID: 1}, pattern(4<<20)
		put, err := c.Put(ctx, key, data, nil)
		if err != nil || put.Size != int64(len(data)) {
			t.Fatalf("%+v, %v", put, err)
		}
		f.message = func(_ string, n int, _ any) error {
			if n < 3 || f.fired.Add(1) > 2 {
				return nil
			}
			return io.EOF
		}
		for _, slice := range []*client.DownloadOptions{nil, {Offset: 1, Length: 3 << 20}, {Offset: 5, Length: 1 << 62}} {
			f.fired.Store(0)
			want := data
			if slice != nil {
				want = data[slice.Offset:min(slice.Offset+slice.Length, int64(len(data)))]
			}
			var out bytes.Buffer
			if _, err := c.Download(ctx, key, &out, slice); err != nil || !bytes.Equal(out.Bytes(), want) || f.fired.Load() < 2 {
				t.Fatalf("%+v: %d of %d bytes, %v; the fault fired %d times", slice, out.Len(), len(want), err, f.fired.Load())
			}
		}
	})
}
