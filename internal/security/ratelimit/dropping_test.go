package ratelimit

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/internal/test/must"
)

// startEchoServer starts a server at an address. It sends back whatever it receives.
func startEchoServer(t *testing.T, address string, config net.ListenConfig, open func(net.Conn) net.Conn) string {
	t.Helper()
	listener, err := config.Listen(t.Context(), "tcp", address)
	must.OK(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			raw, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				if conn := open(raw); conn != nil {
					_, _ = io.Copy(conn, conn)
					_ = conn.Close()
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// dial connects from one of this machine's addresses. If the first packet is dropped, the kernel sends another one
// after a second.
func dial(t *testing.T, to, from string, patience time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(ctx, "tcp", to)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}

// timedOut reports whether an attempt to connect has timed out without any response.
func timedOut(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, os.ErrDeadlineExceeded)
}

func echoes(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second)) // replaces the deadline that was set for dialling
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Errorf("an open connection: %v", err)
	}
}

const (
	tooSoon  = 300 * time.Millisecond // shorter than the second after which a kernel repeats its packet
	whenever = 20 * time.Second       // long enough for several repetitions
)

// TestNewConnectionsAreDropped drops new connections from some addresses for a while. Other addresses must be able to
// connect, and open connections must remain usable.
func TestNewConnectionsAreDropped(t *testing.T) {
	for _, c := range []struct {
		name, listen      string
		dropped, accepted []string
	}{
		{"IPv4", "127.0.0.1:0", []string{"127.0.0.2", "127.0.0.3", "127.9.9.9"},
			[]string{"127.0.0.1", "127.0.1.2", "127.2.0.0"}},
		{"IPv4 to a socket of both", "[::]:0", []string{"127.0.0.2", "127.0.0.3"}, []string{"127.0.0.1", "127.0.0.4"}},
		{"IPv6", "[::1]:0", []string{"::1"}, nil},
		{"IPv6 to a socket of both", "[::]:0", []string{"::1"}, []string{"127.0.0.1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if probe, err := new(net.ListenConfig).Listen(t.Context(), "tcp", c.listen); err != nil {
				t.Skipf("no IPv6: %v", err)
			} else {
				_ = probe.Close()
			}
			d := newDropping(slog.New(slog.DiscardHandler))
			d.lasts = time.Hour
			var config net.ListenConfig
			d.listens(&config)
			to := startEchoServer(t, c.listen, config, func(raw net.Conn) net.Conn { return raw })
			_, port, err := net.SplitHostPort(to)
			must.OK(t, err)
			reach := func(from string) string {
				if net.ParseIP(from).To4() == nil {
					return net.JoinHostPort("::1", port)
				}
				return net.JoinHostPort("127.0.0.1", port)
			}
			open, err := dial(t, reach(c.dropped[0]), c.dropped[0], whenever)
			must.OK(t, err)
			for _, from := range append(c.dropped, "2001:db8::1", "10.0.0.1") {
				if begun, err := d.begin(prefix(&net.TCPAddr{IP: net.ParseIP(from)})); !begun || err != nil {
					t.Fatalf("%s: %v, %v", from, begun, err)
				}
				if begun, err := d.begin(prefix(&net.TCPAddr{IP: net.ParseIP(from)})); begun || err != nil {
					t.Errorf("%s for the second time: %v, %v", from, begun, err)
				}
			}
			for _, from := range c.dropped {
				if _, err := dial(t, reach(from), from, tooSoon); !timedOut(err) {
					t.Errorf("%s is not dropped: %v", from, err)
				}
			}
			for _, from := range c.accepted {
				if _, err := dial(t, reach(from), from, whenever); err != nil {
					t.Errorf("%s: %v", from, err)
				}
			}
			echoes(t, open)
			for _, from := range c.dropped {
				d.end(prefix(&net.TCPAddr{IP: net.ParseIP(from)}))
				if _, err := dial(t, reach(from), from, whenever); err != nil {
					t.Errorf("%s later on: %v", from, err)
				}
			}
		})
	}
}

// openUntil opens connections from an address until enough() returns true, and returns their number. It opens several
// at the same time, because otherwise a slow machine might not exceed the permitted rate.
func openUntil(t *testing.T, to, from string, enough func() bool) int {
	t.Helper()
	var opened atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for !enough() && !t.Failed() {
				if n := opened.Add(1); n > 10*(handshakesAtOnce+waitingMax) {
					t.Errorf("%d connections", n)
				}
				if _, err := dial(t, to, from, tooSoon); err != nil && !timedOut(err) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return int(opened.Load())
}

// TestFrequentConnectionsAreDropped checks that if an address connects too often, the kernel drops its new
// connections, but neither those from other addresses nor connections that are already open.
func TestFrequentConnectionsAreDropped(t *testing.T) {
	g := New(Config{})
	g.dropping.lasts = time.Hour
	creds := g.Credentials(insecure.NewCredentials())
	var config net.ListenConfig
	g.Listens(&config)
	to := startEchoServer(t, "127.0.0.1:0", config, func(raw net.Conn) net.Conn {
		conn, _, err := creds.ServerHandshake(raw)
		if err != nil {
			return nil // a refused connection is closed immediately
		}
		return conn
	})
	const loud = "127.0.0.2"
	open, err := dial(t, to, loud, whenever)
	must.OK(t, err)
	echoes(t, open)
	opened := openUntil(t, to, loud, func() bool { return g.limitedBy(reasonDropped) > 0 })
	if opened < handshakesAtOnce+waitingMax-1 || g.limitedBy(reasonQueue) == 0 {
		t.Errorf("%d connections, %d refused", opened, g.limitedBy(reasonQueue))
	}
	if _, err := dial(t, to, loud, tooSoon); !timedOut(err) {
		t.Errorf("it is not dropped: %v", err)
	}
	other, err := dial(t, to, "127.0.0.3", whenever)
	must.OK(t, err)
	echoes(t, other)
	echoes(t, open)
	g.dropping.end(prefix(&net.TCPAddr{IP: net.ParseIP(loud)}))
	if _, err := dial(t, to, loud, whenever); err != nil {
		t.Errorf("later on: %v", err)
	}
}

// TestDroppedAddressesAreLimited checks that at most droppedMax addresses are dropped at the same time. It also
// checks that nothing is dropped if there is no listener, and that an invalid address is not dropped.
func TestDroppedAddressesAreLimited(t *testing.T) {
	d := newDropping(slog.New(slog.DiscardHandler))
	d.lasts = time.Hour
	at := func(n int) netip.Prefix {
		return prefix(&net.TCPAddr{IP: net.IPv4(10, 0, byte(n>>8), byte(n))})
	}
	if begun, err := d.begin(at(0)); begun || err != nil {
		t.Errorf("without a listener: %v, %v", begun, err)
	}
	var config net.ListenConfig
	d.listens(&config)
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.OK(t, err)
	if begun, err := d.begin(netip.Prefix{}); begun || err != nil {
		t.Errorf("what is no address: %v, %v", begun, err)
	}
	for n := range droppedMax + 10 {
		if begun, err := d.begin(at(n)); begun != (n < droppedMax) || err != nil {
			t.Errorf("address %d: %v, %v", n, begun, err)
		}
	}
	for n := range droppedMax {
		d.end(at(n))
	}
	d.lasts = time.Millisecond
	// The address can be dropped again as soon as the previous drop has ended.
	for times := 0; times < 3; {
		begun, err := d.begin(at(1))
		must.OK(t, err)
		if begun {
			times++
		} else {
			time.Sleep(time.Millisecond)
		}
	}
	_ = listener.Close()
	d.mu.Lock()
	err = d.apply()
	left := len(d.sockets)
	d.mu.Unlock()
	if err != nil || left != 0 {
		t.Errorf("%d sockets are left of a closed listener: %v", left, err)
	}
}

// TestRemovalOfDroppedAddressIsRetried checks what happens if an address is no longer to be dropped, but the kernel
// does not accept the filter without it. The Guard must try again, and must log the problem once.
func TestRemovalOfDroppedAddressIsRetried(t *testing.T) {
	var logged strings.Builder
	d := newDropping(slog.New(slog.NewTextHandler(&logged, nil)))
	refusals := 3
	d.attach = func(fd int, program []unix.SockFilter) error {
		if len(program) == 0 && refusals > 0 {
			refusals--
			return unix.ENOMEM
		}
		return attach(fd, program)
	}
	var config net.ListenConfig
	d.listens(&config)
	to := startEchoServer(t, "127.0.0.1:0", config, func(raw net.Conn) net.Conn { return raw })
	const loud = "127.0.0.2"
	d.lasts = time.Hour
	who := prefix(&net.TCPAddr{IP: net.ParseIP(loud)})
	if begun, err := d.begin(who); !begun || err != nil {
		t.Fatal(begun, err)
	}
	d.end(who)
	if _, err := dial(t, to, loud, tooSoon); !timedOut(err) {
		t.Errorf("it is not dropped any more: %v", err)
	}
	d.mu.Lock()
	d.lasts = time.Millisecond
	d.mu.Unlock()
	d.end(who) // the first attempt fails, and end then makes another one by itself
	if _, err := dial(t, to, loud, whenever); err != nil {
		t.Error(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if refusals != 0 || len(d.now) > 0 || strings.Count(logged.String(), "127.0.0.2") != 1 {
		t.Errorf("%d refusals are left, %d addresses; logged: %s", refusals, len(d.now), &logged)
	}
}
