package gateway

import (
	"context"
	"net"
	"sync"
)

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
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
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
