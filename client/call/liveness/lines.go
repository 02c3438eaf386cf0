package liveness

import (
	"context"
	"net"
	"sync"
)

// lines tracks the network connections to one server, so that all of them can be closed at once.
type lines struct {
	connect func(ctx context.Context, address string) (net.Conn, error)

	mu      sync.Mutex // guards all fields below
	open    map[*line]struct{}
	dialing map[*context.CancelFunc]struct{}
}

// line wraps one of the connections that lines tracks.
type line struct {
	net.Conn
	all *lines
}

// dial opens a connection to the server, and adds it to lines until it is closed.
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

// hangUp closes all connections, including those that are being opened.
func (l *lines) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for cancel := range l.dialing {
		(*cancel)()
	}
	for one := range l.open {
		_ = one.Conn.Close() // goroutines that read from the connection get an error
	}
	clear(l.open)
}
