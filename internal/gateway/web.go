package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/base/descriptors"
	"sheaf.dev/sheaf/internal/call/web"
	"sheaf.dev/sheaf/internal/security/access/guard"
)

// These limits bound what a connection of HTTP costs whose peer does nothing.
const (
	webHeaderTime = 10 * time.Second // also for the handshake
	webBodyTime   = time.Minute
	webIdleTime   = time.Minute
)

// webSecurity is what decides about connections and calls of records over HTTP.
type webSecurity struct {
	interceptors guard.Interceptors
	credentials  credentials.TransportCredentials
}

// webServer serves records over HTTP (docs/http.md). Each request is made as a call of RecordService, which passes the
// same interceptors and has the same handler as a call that arrives over gRPC.
type webServer struct {
	g        *Gateway
	calls    calls
	server   *http.Server
	listener net.Listener
	served   chan error // the result of Serve
}

// startWeb starts to serve records over HTTP, if the configuration has an address for them.
func (g *Gateway) startWeb(ctx context.Context) error {
	if g.cfg.RecordsHTTP == "" {
		return nil
	}
	listener, err := g.cfg.Listener(ctx, g.cfg.RecordsHTTP)
	if err != nil {
		return fmt.Errorf("gateway: listen on %q for records over HTTP: %w", g.cfg.RecordsHTTP, err)
	}
	s := &webServer{g: g, calls: newCalls(g), served: make(chan error, 1),
		listener: &webListener{descriptors.Listen(listener, g.cfg.Logger), g.cfg.web.credentials}}
	s.server = &http.Server{
		Handler: s, ReadHeaderTimeout: webHeaderTime, IdleTimeout: webIdleTime, MaxHeaderBytes: message.HeaderBytesMax,
		Protocols: new(http.Protocols), ErrorLog: slog.NewLogLogger(g.cfg.Logger.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, webConnKey{}, c)
		},
	}
	s.server.Protocols.SetHTTP1(true)
	g.web = s
	go func() { s.served <- s.server.Serve(s.listener) }()
	return nil
}

// RecordsHTTPAddr returns the address of records over HTTP. It is empty if they are not served.
func (g *Gateway) RecordsHTTPAddr() string {
	if g.web == nil {
		return ""
	}
	return g.web.listener.Addr().String()
}

// stopping refuses new requests. The function wait, which it returns, waits for the requests in progress, and aborts
// them when ctx is done.
func (s *webServer) stopping(ctx context.Context) (wait func()) {
	if s == nil {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if s.server.Shutdown(ctx) != nil {
			_ = s.server.Close() // connections end in any case
		}
	}()
	return func() {
		<-done
		if err := <-s.served; !errors.Is(err, http.ErrServerClosed) {
			s.g.cfg.Logger.Error("records over HTTP have ended", "error", err)
		}
	}
}

type webConnKey struct{}

// webListener accepts connections whose handshake has yet to be performed.
type webListener struct {
	net.Listener
	credentials credentials.TransportCredentials
}

// Accept implements net.Listener.
func (l *webListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &webConn{Conn: raw, raw: raw, credentials: l.credentials}, nil
}

// webConn is a connection whose first read performs the handshake. So each handshake has a goroutine of its own, and
// the time limit of the first header.
type webConn struct {
	net.Conn // the connection after the handshake, or raw before it
	raw      net.Conn

	credentials credentials.TransportCredentials
	shaken      sync.Once
	info        credentials.AuthInfo // written by the handshake, which happens before any request
	failed      error

	mu     sync.Mutex // guards closed, and writes of Conn
	closed bool
}

// Read implements net.Conn.
func (c *webConn) Read(b []byte) (int, error) {
	c.shaken.Do(c.shake)
	if c.failed != nil {
		return 0, c.failed
	}
	return c.Conn.Read(b)
}

func (c *webConn) shake() {
	made, info, err := c.credentials.ServerHandshake(c.raw)
	if err != nil {
		c.failed = err
		return
	}
	c.info = info
	c.mu.Lock()
	c.Conn = made
	closed := c.closed
	c.mu.Unlock()
	if closed {
		_ = made.Close() // the server has closed the connection in the meantime
	}
}

func (c *webConn) current() net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Conn
}

// Close implements net.Conn.
func (c *webConn) Close() error {
	c.mu.Lock()
	c.closed = true
	conn := c.Conn
	c.mu.Unlock()
	return conn.Close()
}

// SetReadDeadline implements net.Conn.
func (c *webConn) SetReadDeadline(t time.Time) error { return c.current().SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *webConn) SetWriteDeadline(t time.Time) error { return c.current().SetWriteDeadline(t) }

// SetDeadline implements net.Conn.
func (c *webConn) SetDeadline(t time.Time) error { return c.current().SetDeadline(t) }

// callContext returns the context of the call that a request makes. Only the token of the request is passed on, because
// other headers could name another caller.
func callContext(r *http.Request) context.Context {
	ctx := r.Context()
	c, _ := ctx.Value(webConnKey{}).(*webConn)
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: c.RemoteAddr(), LocalAddr: c.LocalAddr(), AuthInfo: c.info})
	if tokens := r.Header.Values("Authorization"); len(tokens) > 0 {
		ctx = metadata.NewIncomingContext(ctx, metadata.MD{"authorization": tokens})
	}
	return ctx
}

// ServeHTTP implements http.Handler.
func (s *webServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := &answer{w: w, control: http.NewResponseController(w)}
	if r.ContentLength != 0 {
		// This also bounds how long the server waits for a body that nothing here reads.
		_ = a.control.SetReadDeadline(time.Now().Add(webBodyTime)) // a connection that is closed fails in the next read
	}
	err := s.serve(a, r)
	if err == nil {
		return
	}
	a.fail(err)
	if a.begun {
		// The server closes the connection without the end of the body, so that the client notices that it is cut.
		panic(http.ErrAbortHandler)
	}
}

// serve answers a request. If it returns an error before the answer has begun, the answer is that error.
func (s *webServer) serve(a *answer, r *http.Request) error {
	path := r.URL.Path
	handle, allowed := s.scan, "GET"
	switch {
	case r.URL.RawPath != "":
		return a.refuse(http.StatusNotFound, "the path is not in its shortest form")
	case strings.HasPrefix(path, web.RecordPrefix):
		handle, allowed = s.record, "GET, HEAD"
	case path == web.BatchPath:
		handle, allowed = s.batch, "POST"
	case path != web.ScanPath:
		return a.refuse(http.StatusNotFound, "there are /v1/records/GROUP/ID, /v1/scan.tar and /v1/batch.tar")
	}
	if !strings.Contains(allowed, r.Method) {
		a.w.Header().Set("Allow", allowed)
		return a.refuse(http.StatusMethodNotAllowed, "this path allows "+allowed)
	}
	if allowed != "POST" && r.ContentLength != 0 {
		a.w.Header().Set("Connection", "close")
		return &web.BadRequestError{Field: "body", Text: "a " + r.Method + " has none here"}
	}
	h := a.w.Header()
	h.Set("Cache-Control", "private, no-cache")
	h.Set("X-Content-Type-Options", "nosniff")
	return handle(a, r)
}

// viewOf returns the error for a request that names a view.
func viewOf(view string, given bool) error {
	if given {
		return invalid("view", "is %.40q, but records over HTTP are those of now: read a view by gRPC or Arrow Flight", view)
	}
	return nil
}

// readBatchBody reads the body of a batch.
func readBatchBody(a *answer, r *http.Request) (*web.Batch, error) {
	b, err := web.ParseBatch(r.Body)
	if err != nil {
		a.w.Header().Set("Connection", "close") // the rest of the body is not read
		return nil, bodyError(err)
	}
	return b, a.control.SetReadDeadline(time.Time{}) // the answer may take longer
}

func bodyError(err error) error {
	if _, ok := errors.AsType[*web.BadRequestError](err); ok {
		return err
	}
	if _, ok := errors.AsType[*web.TooLargeError](err); ok {
		return err
	}
	return &web.BadRequestError{Field: "body", Text: "cannot be read: " + err.Error()}
}
