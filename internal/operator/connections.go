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
	// connectionRest is how long an unused connection is kept. Pools are reconciled more often, so the connections to
	// their shards are kept.
	connectionRest = 2 * time.Minute
	// connectionBuffer is the size of each connection's read buffer in bytes. Responses are small, and there are about a
	// thousand connections.
	connectionBuffer = 4 << 10
)

// connections keeps one connection to each shard that is queried repeatedly, because opening one takes several times as
// long as a request. It is safe for concurrent use.
type connections struct {
	now  func() time.Time
	keys *Keys

	mu     sync.Mutex
	open   map[wayTo]*connection
	swept  time.Time // time when unused connections were last closed
	closed bool
}

// wayTo identifies a shard and the credentials for it. A shard's wayTo changes when the operator gets other keys for
// the shard's store.
type wayTo struct {
	fleet.ShardAt
	keys *certs.Source // nil if connections do not use TLS
}

type connection struct {
	*grpc.ClientConn
	way  wayTo
	used time.Time
}

// to returns the connection to a shard. The result kept is true if the connection was used before, so the process at
// its address may have ended since.
func (c *connections) to(shard fleet.ShardAt) (_ *connection, kept bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false, errors.New("the operator ends")
	}
	now := c.now()
	c.sweep(now)
	way := wayTo{shard, c.keys.of(shard.Store)}
	if shard.TLS && way.keys == nil {
		return nil, false, fleet.ErrNoCredentials
	}
	if there := c.open[way]; there != nil {
		there.used = now
		return there, true, nil
	}
	made, err := grpc.NewClient("passthrough:///"+shard.Address, grpc.WithTransportCredentials(way.credentials()),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(connectionRest),
		grpc.WithReadBufferSize(connectionBuffer), grpc.WithWriteBufferSize(connectionBuffer))
	if err != nil {
		return nil, false, err
	}
	c.open[way] = &connection{ClientConn: made, way: way, used: now}
	return c.open[way], false, nil
}

// sweep closes connections that have not been used for a while. The caller holds mu.
func (c *connections) sweep(now time.Time) {
	if now.Sub(c.swept) < connectionRest/4 {
		return
	}
	c.swept = now
	for way, there := range c.open {
		if now.Sub(there.used) >= connectionRest {
			delete(c.open, way)
			_ = there.Close() // Close fails only if the connection is already closed
		}
	}
}

// drop closes a connection on which a request has failed. If it stayed open, gRPC would try to reconnect with growing
// pauses.
func (c *connections) drop(failed *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[failed.way] == failed {
		delete(c.open, failed.way)
	}
	_ = failed.Close() // Close fails only if the connection is already closed
}

// Close closes all connections. Later requests fail.
func (c *connections) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for way, there := range c.open {
		delete(c.open, way)
		_ = there.Close() // Close fails only if the connection is already closed
	}
}

// credentials returns credentials that accept only the shard with the name in w. They follow the current transport of
// the store.
func (w wayTo) credentials() credentials.TransportCredentials {
	if w.keys == nil {
		return insecure.NewCredentials()
	}
	return w.keys.Client(w.keys.Own(identity.Shard, w.Name))
}
