// Package bubbletest runs whole shards, gateways and clients in the virtual time of testing/synctest: a test waits for
// what it awaits and for no clock, so that the speed of the machine cannot fail it.
//
// A bubble holds no socket, file of the operating system or other process: goroutines that wait for one keep virtual
// time from passing. Connections go through a Net, files are those of vfstest.NewMem, and etcd is one in memory.
package bubbletest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// Run runs a test in a bubble with a network of its own. What the test starts has ended when it returns: t.Cleanup of
// the test within runs in the bubble, too.
func Run(t *testing.T, test func(t *testing.T, network *Net)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, NewNet()) })
}

// Net is a network in memory: listeners by address. Safe for concurrent use.
type Net struct {
	mu        sync.Mutex // guards what follows
	ports     int
	listeners map[string]*listener
}

// NewNet makes a network on which nobody listens.
func NewNet() *Net { return &Net{listeners: map[string]*listener{}} }

// bufferBytes is what one direction of a connection takes before writing to it waits, as the buffers of a socket do.
const bufferBytes = 256 << 10

type listener struct {
	*bufconn.Listener
	network *Net
	address address
}

type address string

func (a address) Network() string { return "memory" }
func (a address) String() string  { return string(a) }

func (l *listener) Addr() net.Addr { return l.address }

// Close ends the listener. Connections that were accepted are not touched, as with sockets.
func (l *listener) Close() error {
	l.network.mu.Lock()
	if l.network.listeners[string(l.address)] == l {
		delete(l.network.listeners, string(l.address))
	}
	l.network.mu.Unlock()
	return l.Listener.Close()
}

// Listen listens at an address "host:port"; port 0 takes one that nobody had. An address in use is an error.
func (n *Net) Listen(_ context.Context, at string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if port == "0" {
		n.ports++
		at = fmt.Sprintf("%s:%d", host, 10_000+n.ports)
	}
	if n.listeners[at] != nil {
		return nil, fmt.Errorf("listen memory %s: address already in use", at)
	}
	l := &listener{Listener: bufconn.Listen(bufferBytes), network: n, address: address(at)}
	n.listeners[at] = l
	return l, nil
}

// Dial connects to who listens at an address. Without a listener the connection is refused at once.
func (n *Net) Dial(ctx context.Context, at string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[at]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial memory %s: connection refused", at)
	}
	c, err := l.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// conn is a connection. One that was closed here says so in the words of a socket, by which clients tell it from one
// that the other side refused.
type conn struct {
	net.Conn
	closed atomic.Bool
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, c.told("read", err)
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, c.told("write", err)
}

func (c *conn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

func (c *conn) told(op string, err error) error {
	if errors.Is(err, io.ErrClosedPipe) && c.closed.Load() {
		return &net.OpError{Op: op, Net: "memory", Err: net.ErrClosed}
	}
	return err
}

// Target is the name by which grpc.NewClient reaches an address of this network: it looks nothing up.
func Target(at string) string { return "passthrough:///" + at }

// Dialer is the option of grpc.NewClient with which it dials through this network.
func (n *Net) Dialer() grpc.DialOption { return grpc.WithContextDialer(n.Dial) }
