package bubbletest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// bufferBytes is the number of bytes that each direction of a connection can buffer, as a socket does. When the
// buffer is full, a write waits.
const bufferBytes = 256 << 10

// conn is one end of a connection in memory.
//
// It replaces google.golang.org/grpc/test/bufconn, which creates four timers for each connection, and these timers
// fire immediately. Go 1.26 runs such timers of one bubble concurrently. If the race detector is on, they share one
// of its contexts, and the program crashes. This crash once aborted the race step of CI. Eight goroutines that call
// time.AfterFunc(0, f) in a bubble reproduce it.
type conn struct {
	in, out *half
	closed  atomic.Bool
	noise   *noise // delays reads; nil outside of a soak
}

// newConns returns the two ends of a new connection.
func newConns() (client, server *conn) {
	up, down := newHalf(), newHalf()
	return &conn{in: down, out: up, noise: newNoise()}, &conn{in: up, out: down, noise: newNoise()}
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.in.read(b)
	c.noise.delay()
	return n, c.translateError("read", err)
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.out.write(b)
	return n, c.translateError("write", err)
}

// translateError translates the error of a pipe that was closed at this end into the error that a closed socket
// returns, so that clients can distinguish this case from a connection that the other end has closed. It returns any
// other error unchanged.
func (c *conn) translateError(op string, err error) error {
	if errors.Is(err, io.ErrClosedPipe) && c.closed.Load() {
		return &net.OpError{Op: op, Net: "memory", Err: net.ErrClosed}
	}
	return err
}

// Close closes this end. The other end can still read what was written, and then receives io.EOF.
func (c *conn) Close() error {
	c.closed.Store(true)
	c.in.change(func() { c.in.noReader = true })
	c.out.change(func() { c.out.noWriter = true })
	return nil
}

func (*conn) LocalAddr() net.Addr  { return address("memory") }
func (*conn) RemoteAddr() net.Addr { return address("memory") }

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readBy, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writeBy, t)
	return nil
}

// half is one direction of a connection.
type half struct {
	mu      sync.Mutex // guards the fields below
	changed sync.Cond
	data    bytes.Buffer // bytes that were written and have not been read yet
	// noReader is set when the reading end is closed. noWriter is set when the writing end is closed.
	noReader, noWriter bool
	readBy, writeBy    deadline
}

// deadline is a time after which reads or writes fail. Its timer exists only until that time.
type deadline struct {
	timer  *time.Timer // nil if there is no deadline or it has passed
	passed bool
}

func newHalf() *half {
	h := &half{}
	h.changed.L = &h.mu
	return h
}

// change calls set(), which changes the state, and then wakes all reads and writes that are waiting.
func (h *half) change(set func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	set()
	h.changed.Broadcast()
}

func (h *half) read(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.noReader:
			return 0, io.ErrClosedPipe
		case h.data.Len() > 0:
			defer h.changed.Broadcast()
			return h.data.Read(b)
		case h.noWriter:
			return 0, io.EOF
		case h.readBy.passed:
			return 0, os.ErrDeadlineExceeded
		}
		h.changed.Wait()
	}
}

func (h *half) write(b []byte) (n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(b) > 0 {
		free := bufferBytes - h.data.Len()
		switch {
		case h.noReader || h.noWriter:
			return n, io.ErrClosedPipe
		case free > 0:
			part, _ := h.data.Write(b[:min(free, len(b))]) // never returns an error
			n, b = n+part, b[part:]
			h.changed.Broadcast()
		case h.writeBy.passed:
			return n, os.ErrDeadlineExceeded
		default:
			h.changed.Wait()
		}
	}
	return n, nil
}

// setDeadline replaces a deadline of this half. The zero time removes it.
func (h *half) setDeadline(d *deadline, at time.Time) {
	h.change(func() {
		if d.timer != nil {
			d.timer.Stop()
		}
		left := time.Until(at)
		d.timer, d.passed = nil, !at.IsZero() && left <= 0
		if left <= 0 {
			return
		}
		var own *time.Timer
		own = time.AfterFunc(left, func() {
			// If the timer has been replaced in the meantime, the old timer must not make the new deadline pass.
			h.change(func() { d.passed = d.passed || d.timer == own })
		})
		d.timer = own
	})
}
