// Package bubbletest runs whole shards, gateways and clients in the virtual time of testing/synctest. A test waits for
// events and never for a real clock, so a slow machine cannot make it fail.
//
// A bubble must not contain a socket, a real file or another process, because virtual time stands still while a
// goroutine waits for one of these. Therefore connections go through a Net, files are in a vfstest.NewMem, and etcd
// runs in memory.
package bubbletest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
)

// Run runs a test in a bubble with its own network. When Run returns, everything that the test has started must have
// stopped. Functions that the test registers with t.Cleanup run inside the bubble, too.
func Run(t *testing.T, test func(t *testing.T, network *Net)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, NewNet()) })
}

// Net is a network in memory. A listener is found by its address. Net is safe for concurrent use.
type Net struct {
	mu        sync.Mutex // guards the fields below
	ports     int
	listeners map[string]*listener
}

// NewNet creates a network without listeners.
func NewNet() *Net { return &Net{listeners: map[string]*listener{}} }

type listener struct {
	network *Net
	address address
	dialed  chan net.Conn
	closed  chan struct{}
	close   sync.Once
}

type address string

func (a address) Network() string { return "memory" }
func (a address) String() string  { return string(a) }

func (l *listener) Addr() net.Addr { return l.address }

// Close stops the listener. Accepted connections remain open, as with sockets.
func (l *listener) Close() error {
	l.network.mu.Lock()
	if l.network.listeners[string(l.address)] == l {
		delete(l.network.listeners, string(l.address))
	}
	l.network.mu.Unlock()
	l.close.Do(func() { close(l.closed) })
	return nil
}

// Accept returns the next connection, or net.ErrClosed after Close.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	case c := <-l.dialed:
		return c, nil
	}
}

// Listen listens at an address "host:port". Port 0 selects a port that has not been used before. Listen fails if the
// address is in use.
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
	l := &listener{network: n, address: address(at), dialed: make(chan net.Conn), closed: make(chan struct{})}
	n.listeners[at] = l
	return l, nil
}

// Dial connects to the listener at an address, and waits until the listener has accepted the connection. If there is no
// listener, it immediately returns an error.
func (n *Net) Dial(ctx context.Context, at string) (net.Conn, error) {
	refused := fmt.Errorf("dial memory %s: connection refused", at)
	n.mu.Lock()
	l := n.listeners[at]
	n.mu.Unlock()
	if l == nil {
		return nil, refused
	}
	client, server := newConns()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.closed:
		return nil, refused
	case l.dialed <- server:
		return client, nil
	}
}

// Target returns the target to pass to grpc.NewClient for an address of this network. gRPC does not look up this
// target in DNS.
func Target(at string) string { return "passthrough:///" + at }

// Dialer returns the option of grpc.NewClient that dials through this network.
func (n *Net) Dialer() grpc.DialOption { return grpc.WithContextDialer(n.Dial) }
