package ratelimit

import (
	"container/list"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

// conn is a connection on which the Guard counts and limits frames.
type conn struct {
	net.Conn
	raw    net.Conn
	guard  *Guard
	from   *address
	exempt bool
	calls  *Calls
	// stranger is the connection's list element in Guard.unknown, or nil if it is not in that list. Guarded by the
	// Guard's mutex.
	stranger *list.Element

	messages messages
	written  atomic.Int64 // number of bytes that the server has written
	frames   frames       // used only by the goroutine that reads
	// slow is true if the last read exceeded the connection's allowance. Only the goroutine that reads uses it.
	slow bool
	// counted is true if the metric already includes this connection as a slow one. Only the goroutine that reads uses
	// it.
	counted bool

	once   sync.Once
	closed chan struct{}
}

// Read implements net.Conn. If the data exceeds the connection's allowance, Read waits before it returns.
func (c *conn) Read(into []byte) (int, error) {
	if err := c.holdsTooMuch(); err != nil {
		return 0, err
	}
	unknown, err := c.unknown()
	if err != nil {
		return 0, err
	}
	// Small reads keep the amount of data that passes between two waits low.
	if (c.slow || unknown) && len(into) > slowBytes {
		into = into[:slowBytes]
	}
	n, err := c.Conn.Read(into)
	excess := c.frames.take(into[:n], c.written.Load())
	if c.frames.illegal {
		c.guard.limited(reasonClosed, c.RemoteAddr())
		_ = c.Close()
		return 0, errIllegal
	}
	if c.exempt || c.from == nil {
		return n, err
	}
	if c.calls.refused.Load() > 0 {
		excess += int(c.calls.refused.Swap(0)) // each refused call has cost the server a decision, so it counts as excess
	}
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

// holdsTooMuch closes the connection and returns an error if the connection takes up too much memory. It must be
// called before a read. By then gRPC has processed all frames of earlier reads, so the decisions about their calls
// have been made.
func (c *conn) holdsTooMuch() error {
	c.messages.calls.reads()
	if c.guard.held.Load() > c.guard.cfg.HeldBytesMax {
		c.guard.shed()
	}
	// The memory of open calls is subtracted here, because unknownBytesMax applies only to messages. The number of open
	// calls has a limit of its own.
	if c.messages.bytes.Load() <= unknownBytesMax || c.calls.admitted.Load() ||
		c.messages.calls.others() <= unknownBytesMax {
		return nil
	}
	c.guard.limited(reasonHeld, c.RemoteAddr())
	_ = c.Close()
	return errHeld
}

// unknown reports whether no caller has been identified on the connection so far. If none has, it first waits until
// the number of unanswered calls is low enough. It must be called before a read. By then gRPC has processed all frames
// of earlier reads, so any caller whom these frames identify is known already.
func (c *conn) unknown() (bool, error) {
	calls := &c.messages.calls
	if !calls.bounded.Load() {
		return false, nil
	}
	for {
		if c.calls.admitted.Load() || c.calls.undecided.Load() {
			calls.bounded.Store(false)
			return false, nil
		}
		if !calls.tooMany() {
			return true, nil
		}
		select {
		case <-calls.fewer:
		case <-c.closed:
			return false, net.ErrClosed
		}
	}
}

// wait waits until the address is allowed to spend the given number of points.
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
	if !c.counted {
		c.counted = true
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

func (c *conn) Write(b []byte) (int, error) {
	// The frames must be counted before they are written, because the client may react to them before the write returns.
	c.messages.wrote(b)
	c.messages.calls.writes(len(b))
	n, err := c.Conn.Write(b)
	c.messages.calls.wrote()
	c.written.Add(int64(n))
	return n, err
}

func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.messages.close()
		c.guard.forget(c)
	})
	return c.Conn.Close()
}

// SyscallConn implements syscall.Conn, which gRPC needs to set socket options.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if below, ok := c.raw.(syscall.Conn); ok {
		return below.SyscallConn()
	}
	return nil, fmt.Errorf("flood: %T has no socket", c.raw)
}
