package liveness

import (
	"context"
	"net"
	"sync"
)

// lines are the connections to one server as the network has them, so that they can be cut.
type lines struct {
	connect func(ctx context.Context, address string) (net.Conn, error)

	mu      sync.Mutex // guards what follows
	open    map[*line]struct{}
	dialing map[*context.CancelFunc]struct{}
}

// line is one of them.
type line struct {
	net.Conn
	all *lines
}

// dial is the dialer of a server's connections.
func (l *lines) dial(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.mu.Lock()
	if l.open == nil {
		l.open, l.dialing = map[*line]struct{}{}, map[*context.CancelFunc]struct{}{}
	}
	l.dialing[&cancel] = struct{}{}
	l.mu.Unlock()
	conn, err := l.connect(ctx, address)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.dialing, &cancel)
	if err != nil {
		return nil, err
	}
	one := &line{Conn: conn, all: l}
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

// hangUp cuts all of them, and those that are being made.
func (l *lines) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for cancel := range l.dialing {
		(*cancel)()
	}
	for one := range l.open {
		_ = one.Conn.Close() // whoever reads from it sees that
	}
	clear(l.open)
}
