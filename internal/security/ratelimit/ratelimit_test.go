package ratelimit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/test/must"
)

// limitedBy returns how many connections the Guard has limited for the given reason.
func (g *Guard) limitedBy(reason string) int {
	return int(testutil.ToFloat64(g.counts.WithLabelValues(reason)))
}

// acceptConn returns both ends of a connection that the Guard watches.
func acceptConn(t *testing.T, g *Guard) (server, client net.Conn) {
	t.Helper()
	raw, client := net.Pipe()
	server, _, err := g.Credentials(insecure.NewCredentials()).ServerHandshake(raw)
	must.OK(t, err)
	t.Cleanup(func() { _, _ = server.Close(), client.Close() })
	return server, client
}

// settingsOf returns the bytes of a client that sends nothing but n SETTINGS frames.
func settingsOf(t *testing.T, n int) []byte {
	return sent(t, func(f *http2.Framer) error {
		for range n {
			if err := f.WriteSettings(); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestExcessIsReadSlowly checks that all bytes arrive unchanged, and that frames beyond the client's allowance arrive
// at a limited rate.
func TestExcessIsReadSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		g := New(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		server, client := acceptConn(t, g)
		const beyond = 5 * excessPerSecond
		all := settingsOf(t, creditFirst+excessAtOnce+beyond)
		go func() {
			_, _ = client.Write(all)
			_ = client.Close()
		}()
		begun := time.Now()
		got, err := io.ReadAll(server)
		if err != nil || !bytes.Equal(got, all) {
			t.Errorf("%d bytes of %d, or others, have come: %v", len(got), len(all), err)
		}
		if took := time.Since(begun).Round(10 * time.Millisecond); took != beyond/excessPerSecond*time.Second {
			t.Errorf("it took %v", took)
		}
		if n := g.limitedBy(reasonSlowed); n != 1 {
			t.Errorf("one connection is counted as %d", n)
		}
		if n := strings.Count(log.String(), "reason=frames_slowed"); n != 1 {
			t.Errorf("%d lines in the log: %s", n, log.String())
		}
	})
}

// TestConnectionsOfAnAddressShareItsExcess checks that the server does not read faster from a client that opens more
// connections, and that connections that would have to wait too long are closed.
func TestConnectionsOfAnAddressShareItsExcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{})
		const connections, each = 100, 2000
		var all sync.WaitGroup
		begun := time.Now()
		read := make([]error, connections)
		for i := range connections {
			server, client := acceptConn(t, g)
			content := settingsOf(t, each)
			all.Go(func() {
				_, _ = client.Write(content)
				_ = client.Close()
			})
			all.Go(func() {
				_, read[i] = io.Copy(io.Discard, server)
			})
		}
		all.Wait()
		closed := 0
		for _, err := range read {
			if errors.Is(err, errExcess) {
				closed++
			} else if err != nil {
				t.Error(err)
			}
		}
		if got := g.limitedBy(reasonClosed); got != closed || closed == 0 || closed == connections {
			t.Errorf("%d are closed, %d are counted", closed, got)
		}
		passed := (connections - closed) * (each - creditFirst)
		if most := (time.Since(begun).Seconds() + 1) * excessPerSecond; float64(passed) > most {
			t.Errorf("%d frames have passed in %v", passed, time.Since(begun))
		}
	})
}

// TestACloseEndsTheWait checks that a slow connection can be closed while it is waiting.
func TestACloseEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{})
		server, client := acceptConn(t, g)
		go func() { _, _ = client.Write(settingsOf(t, 100_000)) }()
		ended := make(chan error, 1)
		begun := time.Now()
		go func() {
			_, err := io.Copy(io.Discard, server)
			ended <- err
		}()
		time.Sleep(10 * time.Millisecond) // 10 ms of virtual time are not enough to end the wait
		synctest.Wait()
		if g.limitedBy(reasonSlowed) != 1 {
			t.Error("it does not wait")
		}
		_ = server.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if took := time.Since(begun); took != 10*time.Millisecond {
			t.Errorf("it went on to wait: %v", took)
		}
	})
}

func TestExemptConnectionsAreNotSlowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Exempt: func(credentials.AuthInfo) bool { return true }})
		server, client := acceptConn(t, g)
		begun := time.Now()
		go func() {
			_, _ = client.Write(settingsOf(t, 100_000))
			_ = client.Close()
		}()
		if _, err := io.Copy(io.Discard, server); err != nil || time.Since(begun) != 0 {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}

// halfOpen implements credentials whose handshakes end when a byte arrives or when the connection is closed.
type halfOpen struct {
	credentials.TransportCredentials
}

func (halfOpen) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	_, err := io.ReadFull(raw, make([]byte, 1))
	return raw, nil, err
}

// TestTheOldestHandshakesAreDropped checks what happens if an address begins too many handshakes. The oldest
// handshakes must be closed, and the newest one, which may be honest, must continue.
func TestTheOldestHandshakesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{})
		creds := g.Credentials(halfOpen{insecure.NewCredentials()})
		const many = handshakesAtOnce + shakingMax
		var clients []net.Conn
		failed := make(chan error, many)
		for range many {
			raw, client := net.Pipe()
			clients = append(clients, client)
			go func() {
				made, _, err := creds.ServerHandshake(raw)
				if err == nil {
					_ = made.Close()
				}
				failed <- err
			}()
			synctest.Wait() // each handshake must have begun before the next one begins
		}
		time.Sleep(many * time.Second / handshakesPerSecond)
		synctest.Wait()
		if len(failed) != many-shakingMax || g.limitedBy(reasonShaking) != len(failed) {
			t.Errorf("%d have made room, %d are counted, want %d", len(failed), g.limitedBy(reasonShaking), many-shakingMax)
		}
		for range len(failed) {
			if <-failed == nil {
				t.Error("one that made room is served")
			}
		}
		if _, err := clients[many-1].Write([]byte{1}); err != nil {
			t.Error(err)
		}
		if err := <-failed; err != nil {
			t.Errorf("the newest: %v", err)
		}
		for _, client := range clients {
			_ = client.Close()
		}
		synctest.Wait()
		if g.shaking.Len() != 0 || len(failed) != shakingMax-1 {
			t.Errorf("%d are under way, %d have ended", g.shaking.Len(), len(failed))
		}
		for _, a := range g.known.known {
			if a.users != 0 || a.waiting != 0 || a.shaking.Len() != 0 {
				t.Errorf("left of an address: %+v", a)
			}
		}
	})
}

// TestHandshakesHaveARate checks the limit on the rate of handshakes from one address. Handshakes above the rate have
// to wait, and those that would have to wait too long are refused.
func TestHandshakesHaveARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{})
		creds := g.Credentials(insecure.NewCredentials())
		const many = handshakesAtOnce + waitingMax + 50
		var all sync.WaitGroup
		var mu sync.Mutex
		refused, atOnce := 0, 0
		begun := time.Now()
		for range many {
			raw, _ := net.Pipe()
			all.Go(func() {
				made, _, err := creds.ServerHandshake(raw)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case errors.Is(err, errRefused):
					refused++
				case err != nil:
					t.Error(err)
				default:
					_ = made.Close()
					if time.Since(begun) == 0 {
						atOnce++
					}
				}
			})
			synctest.Wait()
		}
		all.Wait()
		if refused != 50 || atOnce != handshakesAtOnce || g.limitedBy(reasonQueue) != refused {
			t.Errorf("%d refused, %d counted, %d at once", refused, g.limitedBy(reasonQueue), atOnce)
		}
		if took := time.Since(begun).Round(10 * time.Millisecond); took != waitingMax*time.Second/handshakesPerSecond {
			t.Errorf("it took %v", took)
		}
	})
}

// TestAddressesAreForgotten checks that the record of an address is dropped when it no longer has an effect, and that
// all addresses beyond addressesMax share one budget.
func TestAddressesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := newAddresses()
		at := func(n int) net.Addr {
			return &net.TCPAddr{IP: net.IPv4(10, byte(n>>16), byte(n>>8), byte(n)), Port: 1}
		}
		busy := known.of(at(0), time.Now())
		busy.handshakes.AllowN(time.Now(), handshakesAtOnce)
		for n := range sweepFirst {
			known.of(at(n), time.Now())
		}
		known.of(at(sweepFirst), time.Now())
		if len(known.known) != 2 || known.of(at(0), time.Now()) != busy {
			t.Errorf("%d addresses are known", len(known.known))
		}
		for n := range addressesMax + 10 {
			known.of(at(n), time.Now()).users++
		}
		if len(known.known) != addressesMax || known.of(at(addressesMax+20), time.Now()) != known.others {
			t.Errorf("%d addresses are known", len(known.known))
		}
	})
}

// TestConnectionsCountedAsOneAddress checks which connections count as coming from one address: those from the same
// IPv4 address, even if it is mapped into IPv6, and those from the same /64 of IPv6.
func TestConnectionsCountedAsOneAddress(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1", "10.0.0.1", true}, {"10.0.0.1", "10.0.0.2", false}, {"10.0.0.1", "::ffff:10.0.0.1", true},
		{"2001:db8::1", "2001:db8::ffff:1", true}, {"2001:db8::1", "2001:db8:0:1::1", false},
	} {
		of := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: len(ip)} }
		if (prefix(of(c.a)) == prefix(of(c.b))) != c.same {
			t.Errorf("%s and %s: %v", c.a, c.b, !c.same)
		}
	}
	if a, b := prefix(&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "a"}),
		prefix(&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "b"}); !a.IsValid() || a != b {
		t.Errorf("%v, %v", a, b)
	}
}

// slowHealth responds to a call immediately if the call names a service, and otherwise when the call is cancelled.
type slowHealth struct {
	healthv1.UnimplementedHealthServer
}

func (slowHealth) Check(ctx context.Context, r *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	if r.GetService() == "" {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, nil
}

// TestManyCancellationsAreServed checks that if a gRPC client cancels half of its calls, the server never reads
// slowly from it, no matter how many calls the client makes.
func TestManyCancellationsAreServed(t *testing.T) {
	g := New(Config{})
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.OK(t, err)
	server := grpc.NewServer(grpc.Creds(g.Credentials(insecure.NewCredentials())))
	healthv1.RegisterHealthServer(server, slowHealth{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	made, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.OK(t, err)
	defer func() { _ = made.Close() }()
	client := healthv1.NewHealthClient(made)
	for range 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := make(chan error, 1)
		go func() {
			_, err := client.Check(ctx, &healthv1.HealthCheckRequest{})
			cancelled <- err
		}()
		if _, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "x"}); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-cancelled; status.Code(err) != codes.Canceled {
			t.Fatal(err)
		}
	}
	for _, reason := range []string{reasonQueue, reasonShaking, reasonSlowed, reasonClosed} {
		if n := g.limitedBy(reason); n != 0 {
			t.Errorf("%s: %d", reason, n)
		}
	}
}
