// Package livenesstest provides a listener that simulates a hanging server.
package livenesstest

import (
	"net"
	"sync"
)

// Listener is a listener that can hang. While it hangs, it accepts connections, but does not read from them, like a
// process that was stopped.
type Listener struct {
	net.Listener

	mu    sync.Mutex
	moves chan struct{} // closed unless the listener hangs
}

// Listen returns a Listener that wraps another listener.
func Listen(l net.Listener) *Listener {
	moves := make(chan struct{})
	close(moves)
	return &Listener{Listener: l, moves: moves}
}

// Hang makes all connections stall.
func (l *Listener) Hang() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moves = make(chan struct{})
}

// GoOn ends the hang.
func (l *Listener) GoOn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.moves:
	default:
		close(l.moves)
	}
}

func (l *Listener) wait() {
	l.mu.Lock()
	moves := l.moves
	l.mu.Unlock()
	<-moves
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, all: l}, nil
}

type conn struct {
	net.Conn
	all *Listener
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.all.wait()
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	c.all.wait()
	return c.Conn.Write(b)
}
