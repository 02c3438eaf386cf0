package gateway

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A machine that is gone says nothing: the kernel asks for a sign of life each second, and takes a connection for broken when nothing of what
// was sent, be it such a question, is acknowledged for so long. A shard's own silence does not count: its kernel answers.
const (
	askEvery   = time.Second
	silenceMax = 2 * time.Second
)

// shardDialer makes connections that notice it.
var shardDialer = net.Dialer{
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: askEvery, Interval: askEvery, Count: 2},
	Control: func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silenceMax.Milliseconds()))
		})
		return errors.Join(err, set)
	},
}

// lines are the connections to one shard as the network has them, so that they can be cut: gRPC alone would let the calls at
// a shard that does not answer wait for their deadline.
type lines struct {
	mu   sync.Mutex
	open map[*line]struct{}
}

// line is one of them.
type line struct {
	net.Conn
	all *lines
}

// dial is the dialer of a shard's connections.
func (l *lines) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := shardDialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	one := &line{Conn: conn, all: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[*line]struct{}{}
	}
	l.open[one] = struct{}{}
	return one, nil
}

// Close implements net.Conn.
func (l *line) Close() error {
	l.all.mu.Lock()
	delete(l.all.open, l)
	l.all.mu.Unlock()
	return l.Conn.Close()
}

// hangUp cuts all of them. gRPC ends the calls on them, and connects anew.
func (l *lines) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for one := range l.open {
		_ = one.Conn.Close() // whoever reads from it sees that
	}
	clear(l.open)
}
