package shard

import (
	"errors"
	"net"
	"sync"
	"time"
)

// sharedListener lets servers take turns on one address without a moment at which nobody listens.
type sharedListener struct {
	root  net.Listener
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func shareListener(root net.Listener) *sharedListener {
	l := &sharedListener{root: root, conns: make(chan net.Conn), done: make(chan struct{})}
	go l.run()
	return l
}

func (l *sharedListener) run() {
	for {
		conn, err := l.root.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // out of file descriptors, mostly: it passes
			time.Sleep(50 * time.Millisecond)
			continue
		}
		select {
		case l.conns <- conn:
		case <-l.done:
			_ = conn.Close() // the process ends
		}
	}
}

func (l *sharedListener) close() error {
	l.once.Do(func() { close(l.done) })
	return l.root.Close()
}

// turn is one server's use of the listener.
type turn struct {
	*sharedListener
	begun  func() // called once, when the server is about to accept; may be nil
	first  sync.Once
	closed chan struct{}
	last   sync.Once
}

func (l *sharedListener) turn(begun func()) *turn {
	return &turn{sharedListener: l, begun: begun, closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (t *turn) Accept() (net.Conn, error) {
	t.first.Do(func() {
		if t.begun != nil {
			t.begun()
		}
	})
	select {
	case <-t.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case conn := <-t.conns:
		return conn, nil
	case <-t.closed:
	case <-t.done:
	}
	return nil, net.ErrClosed
}

// Addr implements net.Listener.
func (t *turn) Addr() net.Addr { return t.root.Addr() }

// Close implements net.Listener: the address stays open for the next one.
func (t *turn) Close() error {
	t.last.Do(func() { close(t.closed) })
	return nil
}
