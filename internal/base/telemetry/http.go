package telemetry

import (
	"container/list"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// These are the limits of an HTTP server whose clients are not trusted.
const (
	headerBytesMax = 16 << 10 // net/http adds 4 KiB to this limit
	headerTime     = 10 * time.Second
	requestTime    = 30 * time.Second // long enough, because no page expects a request body
	answerTime     = 5 * time.Minute  // long enough to record a profile
	idleTime       = 2 * time.Minute
	// connectionsMax bounds the open connections of a server. Probes, scrapers and browsers together need about ten.
	connectionsMax = 256
)

// Server returns a server for HTTP pages that limits how much memory each connection holds, and for how long. By
// default, net/http accepts 1 MiB of headers, and keeps connections that are idle or whose client does not read. If
// there are more than 256 connections, the server closes the oldest one, so that the next caller is served. Server
// registers the metrics of the connections at registry, which may be nil.
func Server(pages http.Handler, registry prometheus.Registerer) *http.Server {
	c := &connections{open: map[net.Conn]*list.Element{}}
	closed := prometheus.NewCounter(prometheus.CounterOpts{Name: "sheaf_http_closed_connections_total",
		Help: "Connections of HTTP that were closed because there were more than 256."})
	if registry != nil {
		registry.MustRegister(closed, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sheaf_http_connections",
			Help: "Open connections of HTTP, at most 256: of more, the oldest one is closed."}, c.count))
	}
	return &http.Server{
		Handler: pages, MaxHeaderBytes: headerBytesMax, ReadHeaderTimeout: headerTime, ReadTimeout: requestTime,
		WriteTimeout: answerTime, IdleTimeout: idleTime,
		ConnState: func(conn net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				if oldest := c.add(conn); oldest != nil {
					closed.Inc()
					shut(oldest)
				}
			case http.StateClosed, http.StateHijacked:
				c.remove(conn)
			}
		},
	}
}

// Pages adds the pages that every process serves: /metrics, /healthz and /readyz. The page /healthz succeeds whenever
// the process can respond. The page /readyz fails with the error that ready returns, if any.
func Pages(mux *http.ServeMux, metrics prometheus.Gatherer, ready func(ctx context.Context) error) {
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
}

// Profiles serves the profiles for go tool pprof, below /debug/pprof/. A client that can reach the profiles sees the
// command line of the process and can keep a CPU busy. Therefore they must be served only on a loopback address.
func Profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // also serves heap, goroutine, allocs, block and mutex
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol) // for requests whose arguments are too long for a URL
	return mux
}

// connections tracks the open connections of a server. Safe for concurrent use.
type connections struct {
	mu    sync.Mutex
	order list.List // elements are net.Conn, the oldest first
	open  map[net.Conn]*list.Element
}

// add adds a connection. If the server then has too many connections, add removes and returns the oldest one.
func (c *connections) add(conn net.Conn) (oldest net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[conn] = c.order.PushBack(conn)
	if c.order.Len() <= connectionsMax {
		return nil
	}
	oldest, _ = c.order.Remove(c.order.Front()).(net.Conn)
	delete(c.open, oldest)
	return oldest
}

// remove removes a connection that is closed.
func (c *connections) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.open[conn]; at != nil {
		c.order.Remove(at)
		delete(c.open, conn)
	}
}

func (c *connections) count() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return float64(c.order.Len())
}

// shut closes a connection without sending the TLS close alert. Sending it to a client that does not read would block,
// and the server could not accept other connections meanwhile.
func shut(conn net.Conn) {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	_ = conn.Close()
}
