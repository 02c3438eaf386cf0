package telemetry

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections are in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// An HTTP client can occupy only little memory of a server, and only for a limited time.
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
				server, listener := Server(http.NotFoundHandler()), make(pipes, 1)
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
