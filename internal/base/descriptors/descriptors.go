// Package descriptors reserves file descriptors for files while a process accepts connections. Idle connections occupy
// descriptors before a client has authenticated. Without a reserve, they could use up the descriptors that the next
// segment of a log needs.
package descriptors

import (
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// reservePart determines how many descriptors are reserved for files: the limit divided by reservePart, but at
	// most reserveMax.
	reservePart = 4
	reserveMax  = 4096
	// connectionsMin is the number of connections that are always accepted, so that a process remains reachable even if
	// its files need almost all descriptors.
	connectionsMin = 16
	// refusalPeriod is how long Refused returns an error after a connection was refused. It is also the minimum time
	// between two log lines about refusals.
	refusalPeriod = time.Minute
)

// Listener accepts connections while enough descriptors are left for files, and closes other connections immediately.
// Safe for concurrent use.
type Listener struct {
	net.Listener
	logger *slog.Logger

	mu      sync.Mutex
	open    map[*counted]struct{}
	refused int64     // number of connections that were refused
	last    time.Time // time of the newest refusal
	logged  time.Time
	limit   uint64 // the descriptor limit at the newest refusal
}

// Listen wraps a listener. Connections that have no file descriptor, for example connections in memory, are always
// accepted.
func Listen(inner net.Listener, logger *slog.Logger) *Listener {
	return &Listener{Listener: inner, logger: logger, open: map[*counted]struct{}{}}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if limit, short := isShort(conn); short && l.refuse(limit) {
			_ = conn.Close() // nothing has been sent to the client
			continue
		}
		c := &counted{Conn: conn, of: l}
		l.mu.Lock()
		l.open[c] = struct{}{}
		l.mu.Unlock()
		return c, nil
	}
}

// DisconnectAll closes all open connections. The listener stays open.
func (l *Listener) DisconnectAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		_ = c.Conn.Close() // ignore the error, because whoever uses the connection gets an error as well
	}
}

// refuse decides whether to refuse a connection that arrived while descriptors are short, and counts the refusal. It
// returns false if the connection is accepted because fewer than connectionsMin are open.
func (l *Listener) refuse(limit uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) < connectionsMin {
		return false
	}
	now := time.Now()
	l.refused, l.last, l.limit = l.refused+1, now, limit
	if now.Sub(l.logged) > refusalPeriod {
		l.logged = now
		l.logger.Warn("connections are refused: the file descriptors that are left are kept for files; raise the limit "+
			"(ulimit -n, LimitNOFILE)", "limit", limit, "open_connections", len(l.open), "refused", l.refused)
	}
	return true
}

// Refused returns an error if connections were refused in the last minute, and nil otherwise.
func (l *Listener) Refused() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused == 0 || time.Since(l.last) > refusalPeriod {
		return nil
	}
	return fmt.Errorf("%d connections were refused so far, the last one %v ago: of %d file descriptors those that are "+
		"left are kept for files: raise the limit (ulimit -n, LimitNOFILE), or see who keeps %d connections open",
		l.refused, time.Since(l.last).Round(time.Second), l.limit, len(l.open))
}

// isShort reports whether a new connection occupies one of the reserved descriptors. It also returns the descriptor
// limit. The kernel always assigns the lowest free number, so all numbers below the connection's descriptor are in
// use.
func isShort(conn net.Conn) (limit uint64, short bool) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return 0, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	var now syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now) != nil {
		return 0, false
	}
	err = raw.Control(func(fd uintptr) {
		short = uint64(fd)+min(now.Cur/reservePart, reserveMax) >= now.Cur
	})
	return now.Cur, short && err == nil
}

// counted wraps an accepted connection, which is in Listener.open until it is closed.
type counted struct {
	net.Conn
	of *Listener
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
