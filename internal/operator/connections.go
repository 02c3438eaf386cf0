package operator

import (
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

const (
	// connectionRest is for how long a connection is kept that nobody asks for: pools are looked at more often than
	// that.
	connectionRest = 2 * time.Minute
	// connectionBuffer is what each connection reads at once: answers are small, and there are a thousand connections.
	connectionBuffer = 4 << 10
)

// connections keeps one connection to each shard that is asked again and again: to make one takes several times as
// long as a question. Safe for concurrent use.
type connections struct {
	now  func() time.Time
	keys *Keys

	mu     sync.Mutex
	open   map[wayTo]*connection
	swept  time.Time // when those that are not used were closed last
	closed bool
}

// wayTo a shard: it is another one when the operator has other keys.
type wayTo struct {
	fleet.ShardAt
	keys *certs.Source // nil: without TLS
}

type connection struct {
	*grpc.ClientConn
	way  wayTo
	used time.Time
}

// to gives the connection to a shard. Kept: somebody has used it before, so that whoever listened there may be gone.
func (c *connections) to(shard fleet.ShardAt) (_ *connection, kept bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false, errors.New("the operator ends")
	}
	now := c.now()
	c.sweep(now)
	way := wayTo{shard, c.keys.of(shard.Store)}
	if there := c.open[way]; there != nil {
		there.used = now
		return there, true, nil
	}
	made, err := grpc.NewClient("passthrough:///"+shard.Address, grpc.WithTransportCredentials(way.credentials()),
		grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(connectionRest),
		grpc.WithReadBufferSize(connectionBuffer), grpc.WithWriteBufferSize(connectionBuffer))
	if err != nil {
		return nil, false, err
	}
	c.open[way] = &connection{ClientConn: made, way: way, used: now}
	return c.open[way], false, nil
}

// sweep closes what was not used for a while. Called with mu held.
func (c *connections) sweep(now time.Time) {
	if now.Sub(c.swept) < connectionRest/4 {
		return
	}
	c.swept = now
	for way, there := range c.open {
		if now.Sub(there.used) >= connectionRest {
			delete(c.open, way)
			_ = there.Close() // answers only that it is closed already
		}
	}
}

// drop closes a connection on which a question has failed. gRPC would try to mend it, and wait longer each time.
func (c *connections) drop(failed *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[failed.way] == failed {
		delete(c.open, failed.way)
	}
	_ = failed.Close() // answers only that it is closed already
}

// close ends all connections for good.
func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for way, there := range c.open {
		delete(c.open, way)
		_ = there.Close() // answers only that it is closed already
	}
}

// credentials take the shard of that name alone, and follow the transport that the store was told.
func (w wayTo) credentials() credentials.TransportCredentials {
	if w.keys == nil {
		return insecure.NewCredentials()
	}
	return w.keys.Client(w.keys.Own(identity.Shard, w.Name))
}
