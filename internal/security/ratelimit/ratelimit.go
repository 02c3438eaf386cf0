// Package ratelimit prevents clients from exhausting the CPU time and the memory of a gRPC server by flooding it. It
// limits the rate of handshakes for each address. It limits the rate at which the server reads HTTP/2 frames that
// honest clients do not send, such as endless settings or resets of streams that have just begun (see
// docs/adr/0047-floods-are-read-slowly.md). It also counts and limits the memory of incomplete messages (see
// docs/adr/0051-memory-before-the-decision.md).
package ratelimit

import (
	"cmp"
	"container/list"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
)

// These are the reasons for which a connection is limited. They appear in log lines, and as the label "reason" in
// metrics.
const (
	reasonQueue   = "handshakes_waiting"  // a connection is refused, because too many from its address are waiting
	reasonDropped = "connections_dropped" // the kernel drops new connections from an address for a second
	reasonShaking = "handshakes_underway" // the oldest handshake is closed, because too many handshakes are in progress
	reasonSlowed  = "frames_slowed"       // the server reads from a connection slowly
	reasonClosed  = "frames_closed"       // a connection is closed, because it would have to wait too long
	// reasonHeld means that a connection is closed because, of all connections, its incomplete messages and open calls
	// hold the most memory.
	reasonHeld = "messages_held"
	reasonLate = "messages_late" // a connection is closed, because a message takes too long to arrive
	// reasonUnknown means that the oldest connection without an identified caller is closed, because there are too many
	// of these connections.
	reasonUnknown = "unknown_connections"
)

var reasons = []string{reasonQueue, reasonDropped, reasonShaking, reasonSlowed, reasonClosed, reasonHeld, reasonLate,
	reasonUnknown}

// unknownMax limits the number of connections on which no caller of the store has been identified.
const unknownMax = 256

const (
	logEvery = time.Second // minimum time between two log lines with the same reason
	// patience is the longest time for which a slow connection may wait. A connection that would have to wait longer is
	// closed.
	patience   = 10 * time.Second
	slowBytes  = 1 << 10 // maximum number of bytes that are read from a slow connection at once
	chunkOfOne = 100     // maximum number of points that one wait pays for
)

var errRefused = errors.New("flood: too many connections of this address wait for a handshake")

// errIllegal is the error for a connection that is closed because its client has begun a call with an invalid stream
// number.
var errIllegal = errors.New("the client began a call with a stream that no client may begin")

// errExcess is the error for a connection that is closed because it would have to wait too long.
var errExcess = errors.New(
	"flood: the client sends too many frames other than calls (RST_STREAM, SETTINGS, CONTINUATION ...)")

// errHeld is the error for a connection that is closed because the server holds too much memory for it.
var errHeld = errors.New("flood: the client leaves too many bytes of messages without their end")

// Config configures a Guard. The zero value is valid.
type Config struct {
	// MessagesOnly switches the limits on handshakes and frames off, so that only messages are counted and limited.
	MessagesOnly bool
	// HeldBytesMax limits the memory for incomplete messages and open calls on all connections together, except those
	// that are exempt. The default is 256 MiB.
	HeldBytesMax int64
	// Known reports whether the handshake has identified a peer as a caller of the store. A connection from any other
	// peer may hold only a small amount of memory until Calls.Admit is called. If Known is nil, all peers count as
	// known.
	Known func(credentials.AuthInfo) bool
	// Exempt reports whether the server must never read slowly from a peer, because that peer forwards the calls of many
	// callers. If Exempt is nil, there is no such peer.
	Exempt func(credentials.AuthInfo) bool
	Logger *slog.Logger // if it is nil, nothing is logged
}

// Guard watches the connections of one server. It is safe for concurrent use.
type Guard struct {
	cfg    Config
	counts *prometheus.CounterVec
	logged map[string]*rate.Sometimes // limits how often each reason is logged

	mu      sync.Mutex
	known   addresses
	shaking list.List // all handshakes in progress (*handshake), oldest first
	open    map[*conn]struct{}
	unknown list.List // connections (*conn) whose handshake has not identified a caller, oldest first

	// held and exempt count the bytes of incomplete messages and open calls. Connections that are exempt count in
	// exempt, and all others count in held.
	held, exempt atomic.Int64

	dropping   dropping
	cannotDrop atomic.Bool // whether it was logged that the kernel cannot drop connections
}

// New creates a Guard.
func New(cfg Config) *Guard {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Exempt == nil {
		cfg.Exempt = func(credentials.AuthInfo) bool { return false }
	}
	if cfg.Known == nil {
		cfg.Known = func(credentials.AuthInfo) bool { return true }
	}
	cfg.HeldBytesMax = cmp.Or(cfg.HeldBytesMax, 256<<20)
	g := &Guard{cfg: cfg, known: newAddresses(), open: map[*conn]struct{}{}, logged: map[string]*rate.Sometimes{},
		dropping: newDropping(cfg.Logger),
		counts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sheaf_flood_limited_total",
			Help: "Connections refused, closed, or begun to be read slowly, by reason: handshakes_waiting, " +
				"handshakes_underway, frames_slowed, frames_closed, messages_held, messages_late, unknown_connections; and " +
				"connections_dropped, seconds for which the kernel drops the new connections of an address.",
		}, []string{"reason"})}
	for _, reason := range reasons {
		g.counts.WithLabelValues(reason)
		g.logged[reason] = &rate.Sometimes{Interval: logEvery}
	}
	return g
}

// Collectors returns the metrics of a Guard, to be registered.
func (g *Guard) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		g.counts,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sheaf_unfinished_message_bytes",
			Help: "Memory of messages of callers that have not arrived completely, and of open calls beyond 16 of a connection.",
		}, func() float64 { return float64(g.held.Load() + g.exempt.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sheaf_unknown_connections",
			Help: "Open connections on which no caller of the store was identified when they were made.",
		}, func() float64 {
			g.mu.Lock()
			defer g.mu.Unlock()
			return float64(g.unknown.Len())
		}),
	}
}

// limited logs and counts a connection that was limited for the given reason.
func (g *Guard) limited(reason string, remote net.Addr) {
	g.counts.WithLabelValues(reason).Inc()
	g.logged[reason].Do(func() {
		g.cfg.Logger.Warn("a client does more than its address may, and is limited: docs/security.md, Floods", "reason",
			reason, "address", remote.String())
	})
}

// Credentials returns server credentials that watch each connection. The handshakes are performed by inner.
func (g *Guard) Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &guarded{TransportCredentials: inner, guard: g}
}

type guarded struct {
	credentials.TransportCredentials
	guard *Guard
}

func (c *guarded) Clone() credentials.TransportCredentials {
	return &guarded{TransportCredentials: c.TransportCredentials.Clone(), guard: c.guard}
}

func (c *guarded) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	g := c.guard
	if g.cfg.MessagesOnly {
		made, info, err := c.TransportCredentials.ServerHandshake(raw)
		if err != nil {
			return nil, nil, err
		}
		return g.watch(made, raw, nil, info), info, nil
	}
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
	return g.watch(made, raw, from, info), info, nil
}

// Handshakes returns server credentials that limit handshakes, and nothing else, for servers that do not speak HTTP/2.
// Such a server has to limit by itself how long a connection without an identified caller stays open.
func (g *Guard) Handshakes(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &limited{TransportCredentials: inner, guard: g}
}

// limited implements credentials whose handshakes are limited.
type limited struct {
	credentials.TransportCredentials
	guard *Guard
}

// Clone implements credentials.TransportCredentials.
func (c *limited) Clone() credentials.TransportCredentials {
	return &limited{TransportCredentials: c.TransportCredentials.Clone(), guard: c.guard}
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *limited) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	from, err := c.guard.enter(raw)
	if err != nil {
		_ = raw.Close()
		return nil, nil, err
	}
	h := c.guard.begin(raw, from)
	made, info, err := c.TransportCredentials.ServerHandshake(raw)
	c.guard.end(h)
	if err != nil {
		c.guard.leave(from)
		return nil, nil, err
	}
	return &leaving{Conn: made, leave: func() { c.guard.leave(from) }}, info, nil
}

// leaving is a connection that no longer counts for its address when it is closed.
type leaving struct {
	net.Conn
	once  sync.Once
	leave func()
}

// Close implements net.Conn.
func (l *leaving) Close() error {
	l.once.Do(l.leave)
	return l.Conn.Close()
}

// watch wraps a connection in one that counts and limits frames and messages. The argument made is the connection to
// wrap, as the handshake has returned it, and the argument raw is the connection before the handshake.
func (g *Guard) watch(made, raw net.Conn, from *address, info credentials.AuthInfo) *conn {
	c := &conn{Conn: made, raw: raw, guard: g, from: from, frames: newFrames(), closed: make(chan struct{}),
		exempt: g.cfg.Exempt(info)}
	c.frames.messages, c.messages.all, c.messages.calls.conn = &c.messages, &g.held, &c.messages
	if c.exempt {
		c.messages.all = &g.exempt
	}
	c.messages.late = func() {
		if c.exempt {
			return // forwarded calls were limited already, in the process that received them from the client
		}
		g.limited(reasonLate, c.RemoteAddr())
		_ = c.Close()
	}
	known := g.cfg.Known(info)
	if counted, ok := info.(Counted); ok {
		c.calls = counted.Calls()
	} else {
		c.calls, known = unlimited(), true
	}
	c.messages.calls.decided = c.calls
	if known {
		c.calls.Admit()
	}
	var oldest *conn
	g.mu.Lock()
	g.open[c] = struct{}{}
	if !known {
		c.messages.calls.bound()
		c.stranger = g.unknown.PushBack(c)
		if g.unknown.Len() > unknownMax {
			oldest = g.unknown.Remove(g.unknown.Front()).(*conn)
			oldest.stranger = nil
		}
	}
	g.mu.Unlock()
	if oldest != nil && !oldest.calls.admitted.Load() {
		g.limited(reasonUnknown, oldest.RemoteAddr())
		_ = oldest.Close()
	}
	return c
}

// shed closes the connection that holds the most memory if all connections together hold more than HeldBytesMax.
func (g *Guard) shed() {
	g.mu.Lock()
	var most *conn
	if g.held.Load() > g.cfg.HeldBytesMax {
		for c := range g.open {
			if !c.exempt && (most == nil || c.messages.bytes.Load() > most.messages.bytes.Load()) {
				most = c
			}
		}
	}
	if most != nil {
		// Another call to shed must not close another connection because of the same bytes.
		most.messages.close()
	}
	g.mu.Unlock()
	if most != nil {
		g.limited(reasonHeld, most.RemoteAddr())
		_ = most.Close()
	}
}

// enter waits until a connection may start its handshake. If enter returns no error, the caller must call leave
// later.
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
		time.Sleep(wait) // never longer than waitingMax / handshakesPerSecond seconds
	}
	g.mu.Lock()
	from.waiting--
	g.mu.Unlock()
	return from, nil
}

// Listens prepares the configuration with which the server creates its listener. If Listens is not called, the kernel
// drops no connections, so the server has to accept each connection before it can limit it.
func (g *Guard) Listens(config *net.ListenConfig) { g.dropping.listens(config) }

// drop makes the kernel drop new connections from an address for some time.
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

// forget removes a connection that was closed from the Guard's lists.
func (g *Guard) forget(c *conn) {
	g.mu.Lock()
	delete(g.open, c)
	if c.stranger != nil {
		g.unknown.Remove(c.stranger)
		c.stranger = nil
	}
	g.mu.Unlock()
	if c.from != nil {
		g.leave(c.from)
	}
}

// leave tells the Guard that a connection no longer uses its address. The argument is the result of enter.
func (g *Guard) leave(from *address) {
	g.mu.Lock()
	from.users--
	g.mu.Unlock()
}

// handshake tracks a TLS handshake that is in progress.
type handshake struct {
	raw       net.Conn
	from      *address
	inAddress *list.Element // nil if the handshake has ended
	inAll     *list.Element
}

// begin registers a handshake. If too many handshakes from the same address are in progress, begin closes the oldest
// one from that address. If too many handshakes are in progress altogether, it also closes the oldest of all. Honest
// handshakes are hardly affected, because they take only milliseconds.
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
		_ = old.raw.Close() // the goroutine that reads from the connection gets the error
	}
	return h
}

// end unregisters a handshake, whether or not it has succeeded.
func (g *Guard) end(h *handshake) {
	g.mu.Lock()
	h.remove(g)
	g.mu.Unlock()
}

// remove removes a handshake from the Guard's lists. The caller holds the mutex.
func (h *handshake) remove(g *Guard) {
	if h.inAddress == nil {
		return
	}
	h.from.shaking.Remove(h.inAddress)
	g.shaking.Remove(h.inAll)
	h.inAddress, h.inAll = nil, nil
}
