package operator

import (
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// connectionRest is for how long a connection is kept that nobody asks for: pools are looked at more often than
	// that.
	connectionRest = 2 * time.Minute
	// connectionBuffer is what each connection reads at once: answers are small, and there are a thousand connections.
	connectionBuffer = 4 << 10
)

// connections keeps one connection to each address that is asked again and again: to make one takes several times as
// long as a question. Safe for concurrent use.
type connections struct {
	now func() time.Time

	mu     sync.Mutex
	open   map[string]*connection // by address
	swept  time.Time              // when those that are not used were closed last
	closed bool
}

type connection struct {
	*grpc.ClientConn
	used time.Time
}

// to gives the connection to an address. Kept: somebody has used it before, so that whoever listened there may be gone.
func (c *connections) to(address string) (_ *connection, kept bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false, errors.New("the operator ends")
	}
	now := c.now()
	c.sweep(now)
	if there := c.open[address]; there != nil {
		there.used = now
		return there, true, nil
	}
	made, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(connectionRest),
		grpc.WithReadBufferSize(connectionBuffer), grpc.WithWriteBufferSize(connectionBuffer))
	if err != nil {
		return nil, false, err
	}
	c.open[address] = &connection{ClientConn: made, used: now}
	return c.open[address], false, nil
}

// sweep closes what was not used for a while. Called with mu held.
func (c *connections) sweep(now time.Time) {
	if now.Sub(c.swept) < connectionRest/4 {
		return
	}
	c.swept = now
	for address, there := range c.open {
		if now.Sub(there.used) >= connectionRest {
			delete(c.open, address)
			_ = there.Close() // answers only that it is closed already
		}
	}
}

// drop closes a connection on which a question has failed. gRPC would try to mend it, and wait longer each time.
func (c *connections) drop(address string, failed *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[address] == failed {
		delete(c.open, address)
	}
	_ = failed.Close() // answers only that it is closed already
}

// close ends all connections for good.
func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for address, there := range c.open {
		delete(c.open, address)
		_ = there.Close() // answers only that it is closed already
	}
}
