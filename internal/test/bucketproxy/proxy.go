// Package bucketproxy is a proxy in front of a bucket's HTTP server. The proxy injects faults like those of real
// buckets and connections, and counts each fault as fired.
package bucketproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// rememberedBytesMax bounds the size of a remembered response.
const rememberedBytesMax = 32 << 20

// Proxy forwards requests to a server, unless a fault handles them. All methods are safe for concurrent use.
type Proxy struct {
	server   http.Server
	listener net.Listener
	upstream http.Transport
	done     chan struct{}

	mu       sync.Mutex
	fault    *Fault
	requests []Request
	answers  map[requestKey]answer // for each GET, the newest response; nil if nothing is remembered
}

// Request is a request that the proxy has received.
type Request struct{ Method, URI string }

// requestKey identifies a GET request by its URI and Range header.
type requestKey struct{ uri, ranged string }

func askedBy(r *http.Request) requestKey {
	return requestKey{r.URL.RequestURI(), r.Header.Get("Range")}
}

// answer is a complete response from the server.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// Start starts a proxy on a port of the loopback interface. dial connects to the server.
func Start(ctx context.Context, dial func(ctx context.Context) (net.Conn, error)) (*Proxy, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, done: make(chan struct{})}
	p.upstream.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	p.upstream.DisableCompression, p.upstream.DisableKeepAlives = true, true
	p.server.Handler = http.HandlerFunc(p.serve)
	go func() {
		defer close(p.done)
		_ = p.server.Serve(listener) // Serve returns when Close is called
	}()
	return p, nil
}

// URL returns the URL at which the proxy listens.
func (p *Proxy) URL() string { return "http://" + p.listener.Addr().String() }

// Close stops the proxy and closes its connections.
func (p *Proxy) Close() error {
	err := p.server.Close()
	<-p.done
	p.upstream.CloseIdleConnections()
	return err
}

// Set makes the proxy inject a fault into all later requests. With nil, requests are forwarded without a fault.
func (p *Proxy) Set(f *Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

// Requests returns the requests that have arrived since the last call to Requests.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.requests
	p.requests = nil
	return all
}

// Remember makes the proxy keep the newest response to each GET, for Stale and Other.
func (p *Proxy) Remember() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers = map[requestKey]answer{}
}

func (p *Proxy) remembered() map[requestKey]answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.answers)
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.requests = append(p.requests, Request{r.Method, r.URL.RequestURI()})
	fault := p.fault
	p.mu.Unlock()
	if fault != nil && (fault.match == nil || fault.match(r)) && fault.serve(p, w, r) {
		return
	}
	a, err := p.forward(r, r.Body)
	if err != nil {
		drop(w)
		return
	}
	a.write(w, a.body)
}

// forward sends a request to the server, with the given body in place of the original one, and returns the whole
// response.
func (p *Proxy) forward(r *http.Request, body io.Reader) (answer, error) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host = "http", r.Host
	out.RequestURI = ""
	out.Header.Del("Expect") // the proxy itself has already sent 100 Continue
	out.Header.Del("Connection")
	if out.Body = http.NoBody; r.ContentLength != 0 {
		out.Body = io.NopCloser(body)
	}
	response, err := p.upstream.RoundTrip(out)
	if err != nil {
		return answer{}, err
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, rememberedBytesMax))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return answer{}, err
	}
	a := answer{response.StatusCode, response.Header, content}
	if r.Method == http.MethodHead {
		a.header.Set("Content-Length", fmt.Sprint(response.ContentLength))
	} else {
		a.header.Set("Content-Length", fmt.Sprint(len(content)))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answers != nil && r.Method == http.MethodGet {
		p.answers[askedBy(r)] = a
	}
	return a, nil
}

// write sends the response with the given body in place of the original one. If the body is shorter than the length
// in the header, the connection is closed.
func (a answer) write(w http.ResponseWriter, body []byte) {
	header := w.Header()
	for name, values := range a.header {
		if name != "Connection" {
			header[name] = values
		}
	}
	w.WriteHeader(a.status)
	_, _ = io.Copy(w, bytes.NewReader(body)) // the client may have disconnected, which is no error
}

// drop resets the connection to the client without a response, as a failed host would.
func drop(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// Fault is a fault that the proxy injects into matching requests.
type Fault struct {
	match func(*http.Request) bool
	// serve responds to a request. It must count the fault as fired before the client can notice the fault. If serve
	// returns false, it has done nothing, and the request is forwarded.
	serve func(p *Proxy, w http.ResponseWriter, r *http.Request) bool
	fired atomic.Int64
}

// Fired returns the number of requests that the fault has affected.
func (f *Fault) Fired() int { return int(f.fired.Load()) }

// For restricts a fault to the requests for which match is true.
func (f *Fault) For(match func(*http.Request) bool) *Fault {
	f.match = match
	return f
}
