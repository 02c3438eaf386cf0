package telemetry

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sheaf.dev/sheaf/internal/test/must"
)

// pipeListener is a listener whose connections are in memory.
type pipeListener chan net.Conn

func (p pipeListener) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (p pipeListener) Close() error   { return nil }
func (p pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// TestClientsOfHTTPHoldLittle checks that an HTTP client can occupy only little memory of a server, and only for a
// limited time.
func TestClientsOfHTTPHoldLittle(t *testing.T) {
	for name, c := range map[string]struct {
		sent   string
		answer string
		within time.Duration
	}{
		"long headers":             {"GET / HTTP/1.1\r\nX: " + strings.Repeat("y", 1<<20), "431", time.Second},
		"headers that do not end":  {"GET / HTTP/1.1\r\n", "", headerTime},
		"nothing":                  {"", "", headerTime},
		"nothing behind an answer": {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "200", idleTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, listener := Server(http.NotFoundHandler(), nil), make(pipeListener, 1)
				server.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
				served := make(chan error, 1)
				go func() { served <- server.Serve(listener) }()
				near, far := net.Pipe()
				listener <- far
				begun := time.Now()
				go func() { _, _ = io.WriteString(near, c.sent) }()
				all, err := io.ReadAll(bufio.NewReader(near))
				if err != nil && !errors.Is(err, io.ErrClosedPipe) || !strings.Contains(string(all), c.answer) {
					t.Errorf("answered %.80q: %v", all, err)
				}
				if took := time.Since(begun); took > c.within+time.Second {
					t.Errorf("it is held for %v", took)
				}
				close(listener)
				<-served
				_ = server.Shutdown(context.Background())
			})
		})
	}
}

// TestServerLimitsItsConnections checks that a server never holds more than connectionsMax connections, with and
// without TLS. The metric reports the number of connections, and the next client to connect is served.
func TestServerLimitsItsConnections(t *testing.T) {
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"plaintext": func(conn net.Conn) net.Conn { return conn },
		"TLS":       func(conn net.Conn) net.Conn { return tls.Server(conn, &tls.Config{MinVersion: tls.VersionTLS13}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				registry := prometheus.NewRegistry()
				server, listener := Server(http.NotFoundHandler(), registry), make(pipeListener)
				served := make(chan error, 1)
				go func() { served <- server.Serve(listener) }()
				connect := func() net.Conn {
					near, far := net.Pipe()
					listener <- wrap(far)
					synctest.Wait()
					return near
				}
				const more = 3
				var all []net.Conn
				for n := range connectionsMax + more {
					all = append(all, connect())
					if want := min(n+1, connectionsMax); metric(t, registry, "sheaf_http_connections") != float64(want) {
						t.Fatalf("%v connections are counted, of %d", metric(t, registry, "sheaf_http_connections"), want)
					}
				}
				if n := metric(t, registry, "sheaf_http_closed_connections_total"); n != more {
					t.Errorf("%v connections are counted as closed", n)
				}
				for n, conn := range all {
					_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
					if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) != (n >= more) {
						t.Errorf("connection %d: %v", n, err)
					}
				}
				if name == "plaintext" {
					last := connect()
					go func() { _, _ = io.WriteString(last, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }()
					answer, err := http.ReadResponse(bufio.NewReader(last), nil)
					if err != nil || answer.StatusCode != http.StatusNotFound || answer.Body.Close() != nil {
						t.Errorf("the next connection: %v, %v", answer, err)
					}
				}
				time.Sleep(2 * idleTime)
				if n := metric(t, registry, "sheaf_http_connections"); n != 0 {
					t.Errorf("%v connections are counted, and none is open", n)
				}
				close(listener)
				<-served
			})
		})
	}
}

// metric returns the value of a gauge or counter without labels.
func metric(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	must.OK(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
