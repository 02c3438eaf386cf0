package client

import (
	"cmp"
	"context"
	"slices"
	"sort"
	"time"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/client/call/liveness"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
)

// table is a routing table that a gateway has sent. It is immutable.
type table struct {
	epoch uint64
	hash  []*shardRoute // sorted by first key; nil with Named routing
	named map[string]*shardRoute
}

// shardRoute is the route to the shard that leads a group.
type shardRoute struct {
	first, last uint64
	server      *server
	tenure      *liveness.Tenure // the period in which the server leads the group
}

// supersededPatience limits how long a call may still wait for a shard after another shard has become the group's
// leader.
const supersededPatience = 2 * time.Second

// find returns the route for a call, or nil if the table has none.
func (t *table) find(what call) *shardRoute {
	switch {
	case what.key == nil && what.group == "":
		return nil
	case what.key == nil:
		return t.named[what.group]
	case t.hash == nil:
		return t.named[what.key.Group]
	}
	key := routing.Key(what.key.ID)
	i := sort.Search(len(t.hash), func(i int) bool { return t.hash[i].last >= key })
	if i == len(t.hash) || t.hash[i].first > key {
		return nil
	}
	return t.hash[i]
}

// route returns the route to the leader of a group, or nil if there is none.
func (t *table) route(group string) *shardRoute {
	if t == nil {
		return nil
	}
	return t.named[group]
}

// follows takes over the tenure of the previous route if the same server still leads the group. Otherwise it ends that
// tenure and begins a new one.
func (r *shardRoute) follows(before *shardRoute) {
	switch {
	case before == nil:
		r.tenure = r.server.pulse.Tenure()
	case before.server == r.server:
		r.tenure = before.tenure
	default:
		r.tenure = r.server.pulse.Tenure()
		before.tenure.Over(supersededPatience, func() {})
	}
}

// setTable replaces the routing table with one that a gateway has sent. The table contains no routes to shards
// without an address, because gateways wait for those shards.
func (c *Client) setTable(message *recordv1.WatchRoutingResponse) {
	t := &table{epoch: message.GetEpoch(), named: make(map[string]*shardRoute, len(message.GetGroups()))}
	before := c.table.Load()
	inUse := map[string]bool{}
	hash := message.GetMode() == recordv1.RoutingMode_ROUTING_MODE_HASH
	if hash {
		t.hash = []*shardRoute{}
	}
	for _, g := range message.GetGroups() {
		address := g.GetLeaderAddress()
		if address == "" {
			continue
		}
		to, err := c.conn(address)
		if err != nil {
			continue // the client is closed or the address is invalid; calls to the group go to a gateway instead
		}
		inUse[address] = true
		r := &shardRoute{first: g.GetKeyFirst(), last: g.GetKeyLast(), server: to}
		r.follows(before.route(g.GetGroup()))
		t.named[g.GetGroup()] = r
		if hash {
			t.hash = append(t.hash, r)
		}
	}
	slices.SortFunc(t.hash, func(a, b *shardRoute) int { return cmp.Compare(a.first, b.first) })
	c.table.Store(t)
	c.forget(inUse)
}

// forget closes connections that neither the table nor the configuration names, but leaves the calls on them some time
// to finish.
func (c *Client) forget(inUse map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for address, s := range c.conns {
		if !inUse[address] && !slices.Contains(c.cfg.Addresses, address) {
			delete(c.conns, address)
			c.leaving[s] = time.AfterFunc(closeAfter, func() {
				_ = s.close()
				c.mu.Lock()
				defer c.mu.Unlock()
				delete(c.leaving, s)
			})
		}
	}
}

// watchRouting keeps the table up to date until ctx is done.
func (c *Client) watchRouting(ctx context.Context) {
	defer close(c.watched)
	n := 0
	for ctx.Err() == nil {
		to, err := c.target(call{}, 1)
		if err == nil {
			err = c.followRouting(ctx, to, func() { n = 0 })
		}
		if err != nil {
			c.unreachable(to)
		}
		backoff.Sleep(ctx, c.pace.Pause(n))
		n++
	}
}

func (c *Client) followRouting(ctx context.Context, to target, received func()) error {
	request := &recordv1.WatchRoutingRequest{InParts: true}
	if t := c.table.Load(); t != nil {
		request.KnownEpoch = t.epoch
	}
	stream, err := recordv1.NewRoutingServiceClient(to.conn).WatchRouting(ctx, request,
		grpc.MaxCallRecvMsgSize(routingBytes))
	if err != nil {
		return err
	}
	for {
		message, err := recordv1.ReceiveRouting(stream)
		if err != nil {
			return err
		}
		received()
		c.setTable(message)
	}
}
