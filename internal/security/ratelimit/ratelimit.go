// Package ratelimit keeps clients that flood a gRPC server from using up its processors. It limits the rate of
// handshakes per address, and the rate at which HTTP/2 frames are read that honest clients do not send (streams that
// are reset at once, endless settings). See docs/adr/0047-floods-are-read-slowly.md.
package ratelimit

import (
	"container/list"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
)

// Reasons in metrics and log lines.
const (
	reasonQueue   = "handshakes_waiting"  // refused: too many connections of the address wait
	reasonDropped = "connections_dropped" // the kernel drops new connections of the address for a second
	reasonShaking = "handshakes_underway" // the oldest handshake is closed: too many are under way
	reasonSlowed  = "frames_slowed"       // a connection is read slowly
	reasonClosed  = "frames_closed"       // a connection is closed: its turn would come too late
)

const (
	logEvery = time.Second // at most one line per reason
	// the longest wait of a connection that is read slowly; beyond it the connection is closed
	patience   = 10 * time.Second
	slowBytes  = 1 << 10 // size of one read of a slow connection
	chunkOfOne = 100     // number of points in one wait
)

var errRefused = errors.New("flood: too many connections of this address wait for a handshake")

// errExcess closes a connection whose turn would come too late.
var errExcess = errors.New(
	"flood: the client sends too many frames other than calls (RST_STREAM, SETTINGS, CONTINUATION ...)")

// Config configures a Guard.
type Config struct {
	// Exempt reports peers that are not read slowly: those that forward the calls of many others. Nil: none.
	Exempt func(credentials.AuthInfo) bool
	Logger *slog.Logger // nil: nothing is logged
}

// Guard watches the connections of one server. Safe for concurrent use.
type Guard struct {
	cfg    Config
	counts *prometheus.CounterVec
	logged map[string]*atomic.Int64 // time of the last log line of each reason, in ns

	mu      sync.Mutex
	known   addresses
	shaking list.List // all handshakes in progress (*handshake), the oldest first

	dropping   dropping
	cannotDrop atomic.Bool // a failure to drop was logged
}

// New makes a Guard.
func New(cfg Config) *Guard {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Exempt == nil {
		cfg.Exempt = func(credentials.AuthInfo) bool { return false }
	}
	g := &Guard{cfg: cfg, known: newAddresses(), logged: map[string]*atomic.Int64{}, dropping: newDropping(cfg.Logger),
		counts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sheaf_flood_limited_total",
			Help: "Connections refused, closed, or begun to be read slowly, by reason: handshakes_waiting, " +
				"handshakes_underway, frames_slowed, frames_closed; and connections_dropped, seconds for which the kernel drops " +
				"the new connections of an address.",
		}, []string{"reason"})}
	for _, reason := range []string{reasonQueue, reasonDropped, reasonShaking, reasonSlowed, reasonClosed} {
		g.counts.WithLabelValues(reason)
		g.logged[reason] = new(atomic.Int64)
	}
	return g
}

// Collectors returns the metrics of a Guard, for a registry.
func (g *Guard) Collectors() []prometheus.Collector { return []prometheus.Collector{g.counts} }

// limited counts and logs a limit applied to a connection.
func (g *Guard) limited(reason string, remote net.Addr) {
	g.counts.WithLabelValues(reason).Inc()
	last, now := g.logged[reason], time.Now().UnixNano()
	if before := last.Load(); now-before >= int64(logEvery) && last.CompareAndSwap(before, now) {
		g.cfg.Logger.Warn("a client does more than its address may, and is limited: docs/security.md, Floods", "reason",
			reason, "address", remote.String())
	}
}

// Credentials returns the credentials of a server whose connections are watched; inner performs their handshakes.
func (g *Guard) Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &guarded{TransportCredentials: inner, guard: g}
}

type guarded struct {
	credentials.TransportCredentials
	guard *Guard
}

// Clone implements credentials.TransportCredentials.
func (c *guarded) Clone() credentials.TransportCredentials {
	return &guarded{TransportCredentials: c.TransportCredentials.Clone(), guard: c.guard}
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *guarded) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	g := c.guard
	from, err := g.enter(raw)
	if err != nil {
		_ = raw.Close()
		return nil, nil, err
	}
	h := g.begin(raw, from)
	made, info, err := c.TransportCredentials.ServerHandshake(raw)
	g.end(h)
	if err != nil {
		g.leave(from)
		return nil, nil, err
	}
	watched := &conn{Conn: made, raw: raw, guard: g, from: from, frames: newFrames(), closed: make(chan struct{})}
	watched.exempt = g.cfg.Exempt(info)
	return watched, info, nil
}

// enter waits until a connection may start its handshake. Unless it returns an error, the caller must call leave.
func (g *Guard) enter(raw net.Conn) (*address, error) {
	now := time.Now()
	g.mu.Lock()
	from := g.known.of(raw.RemoteAddr(), now)
	if from.waiting >= waitingMax {
		g.mu.Unlock()
		g.limited(reasonQueue, raw.RemoteAddr())
		g.drop(raw.RemoteAddr())
		return nil, errRefused
	}
	from.users++
	from.waiting++
	turn := from.handshakes.ReserveN(now, 1)
	g.mu.Unlock()
	if wait := turn.DelayFrom(now); wait > 0 {
		time.Sleep(wait) // at most waitingMax / handshakesPerSecond
	}
	g.mu.Lock()
	from.waiting--
	g.mu.Unlock()
	return from, nil
}

// Listens prepares the server's listener. Without it, all connections are accepted before they are limited.
func (g *Guard) Listens(config *net.ListenConfig) { g.dropping.listens(config) }

// drop makes the kernel drop the new connections of an address for a while.
func (g *Guard) drop(remote net.Addr) {
	begun, err := g.dropping.begin(prefix(remote))
	if err != nil && !g.cannotDrop.Swap(true) {
		g.cfg.Logger.Warn(
			"the kernel cannot drop the connections of an address: they are refused one by one, which takes this process more "+
				"time", "error", err)
	}
	if begun {
		g.limited(reasonDropped, remote)
	}
}

// leave undoes enter.
func (g *Guard) leave(from *address) {
	g.mu.Lock()
	from.users--
	g.mu.Unlock()
}

// handshake is one handshake in progress.
type handshake struct {
	raw       net.Conn
	from      *address
	inAddress *list.Element // nil: it is over
	inAll     *list.Element
}

// begin registers a handshake. If the address has too many, it closes the oldest one of the address. If there are too
// many in all, it also closes the oldest one of all. An honest handshake takes milliseconds.
func (g *Guard) begin(raw net.Conn, from *address) *handshake {
	h := &handshake{raw: raw, from: from}
	var closing []*handshake
	g.mu.Lock()
	for from.shaking.Len() >= shakingMax {
		oldest := from.shaking.Front().Value.(*handshake)
		oldest.remove(g)
		closing = append(closing, oldest)
	}
	for g.shaking.Len() >= shakingInAll {
		oldest := g.shaking.Front().Value.(*handshake)
		oldest.remove(g)
		closing = append(closing, oldest)
	}
	h.inAddress, h.inAll = from.shaking.PushBack(h), g.shaking.PushBack(h)
	g.mu.Unlock()
	for _, old := range closing {
		g.limited(reasonShaking, old.raw.RemoteAddr())
		_ = old.raw.Close() // readers of the connection get the error
	}
	return h
}

// end unregisters a handshake, successful or not.
func (g *Guard) end(h *handshake) {
	g.mu.Lock()
	h.remove(g)
	g.mu.Unlock()
}

// remove removes a handshake from the lists. The caller holds the mutex.
func (h *handshake) remove(g *Guard) {
	if h.inAddress == nil {
		return
	}
	h.from.shaking.Remove(h.inAddress)
	g.shaking.Remove(h.inAll)
	h.inAddress, h.inAll = nil, nil
}

// conn is a connection whose frames are watched.
type conn struct {
	net.Conn
	raw    net.Conn
	guard  *Guard
	from   *address
	exempt bool

	written atomic.Int64 // bytes
	frames  frames       // used only by the one reader
	slow    bool         // the last read exceeded the connection's allowance; used only by the one reader
	told    bool         // the slow reading was counted; used only by the one reader

	once   sync.Once
	closed chan struct{}
}

// Read implements net.Conn. It delays data that exceed the connection's allowance.
func (c *conn) Read(into []byte) (int, error) {
	if c.exempt {
		return c.Conn.Read(into)
	}
	if c.slow && len(into) > slowBytes { // small reads, so that little data passes after each wait
		into = into[:slowBytes]
	}
	n, err := c.Conn.Read(into)
	excess := c.frames.take(into[:n], c.written.Load())
	c.slow = excess > 0
	for excess > 0 {
		points := min(excess, chunkOfOne)
		excess -= points
		if failed := c.wait(points); failed != nil {
			return 0, failed
		}
	}
	return n, err
}

// wait waits for points of the address.
func (c *conn) wait(points int) error {
	turn := c.from.excess.ReserveN(time.Now(), points)
	wait := turn.Delay()
	if wait == 0 {
		return nil
	}
	if wait > patience || wait == rate.InfDuration {
		turn.Cancel()
		c.guard.limited(reasonClosed, c.RemoteAddr())
		_ = c.Close()
		return errExcess
	}
	if !c.told {
		c.told = true
		c.guard.limited(reasonSlowed, c.RemoteAddr())
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.closed:
		turn.Cancel()
		return net.ErrClosed
	}
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.guard.leave(c.from)
	})
	return c.Conn.Close()
}

// SyscallConn implements syscall.Conn: gRPC sets options of the socket.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if below, ok := c.raw.(syscall.Conn); ok {
		return below.SyscallConn()
	}
	return nil, fmt.Errorf("flood: %T has no socket", c.raw)
}
