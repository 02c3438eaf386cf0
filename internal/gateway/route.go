package gateway

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/liveness"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/internal/placement"
)

// These are settings of the connections to shards.
const (
	connsPerShard   = 2
	streamWindow    = 1 << 20
	connWindow      = 4 << 20
	closeConnsAfter = 2 * time.Minute // calls in flight may still use the connections
)

// shard holds the connections to one shard, and its state.
type shard struct {
	name    string
	address string
	conns   []*grpc.ClientConn
	next    atomic.Uint32
	// generation is the volume's generation at its last registration; guarded by router.mu.
	generation uint64
	// superseded is true if another shard now leads a group that this shard led before. Guarded by router.mu.
	superseded bool
	pulse      *liveness.Pulse
}

// conn returns one of the connections, in round-robin order.
func (s *shard) conn() *grpc.ClientConn {
	return s.conns[s.next.Add(1)%uint32(len(s.conns))]
}

// route holds a group's shards, and the destination of calls to the group.
type route struct {
	group  string
	told   *shard   // the leader according to etcd, or else the first known member; nil if no member is known
	voters []string // addresses of the voting members
	holds  bool     // a shard has created the group, or restores it, so it may hold records
	votes  int      // number of voting members, including those without a known address
	// unknown says why the group's location is unknown if the group's key in etcd cannot be used. It is empty if the
	// key can be used.
	unknown string
	// waits is a message that explains why the group waits for its restore. It is empty if the group does not wait.
	waits string

	members []*shard              // the voting members
	tenure  *liveness.Tenure      // tenure of the shard in told
	lead    atomic.Pointer[shard] // destination of calls: the shard in told, unless an error has named another one
}

// leader returns the destination of calls, or nil if none is known. If the leader hangs and another member does not,
// leader returns that member. The receiver r may be nil.
func (r *route) leader() *shard {
	if r == nil {
		return nil
	}
	s := r.lead.Load()
	if s == nil || len(r.members) < 2 || !s.pulse.Silent() {
		return s
	}
	at := slices.Index(r.members, s)
	for i := range r.members {
		if next := r.members[(at+1+i)%len(r.members)]; !next.pulse.Silent() {
			r.lead.CompareAndSwap(s, next)
			return next
		}
	}
	return s
}

// place is the destination of an attempt: a shard and, if etcd names the shard as the group's leader, its tenure as the
// leader.
type place struct {
	*shard
	tenure *liveness.Tenure // nil if the tenure is unknown
}

// place returns one of the group's shards as a destination.
func (r *route) place(s *shard) place {
	if r == nil || s != r.told {
		return place{shard: s}
	}
	return place{shard: s, tenure: r.tenure}
}

// learn changes the destination of calls after a call to a shard has failed, because the group may have a new leader.
// If the error names that member, calls then go to it. Otherwise they go to the next member in the list.
func (r *route) learn(from *shard, v routing.Verdict) {
	if len(r.members) < 2 || v.Fate == routing.Final || v.Reason == reason.Overloaded {
		return
	}
	next := r.members[(slices.Index(r.members, from)+1)%len(r.members)]
	if address := v.Info["address"]; address != "" {
		i := slices.IndexFunc(r.members, func(s *shard) bool { return s.address == address })
		if i < 0 || r.members[i] == from {
			return // no other known member has this address, so wait for the next view
		}
		next = r.members[i]
	}
	r.lead.CompareAndSwap(from, next) // has no effect if another call has already changed the destination
}

// failures are the shards that have failed a call for a reason that concerns their own copy of the group.
type failures struct {
	broken  []*shard // they cannot load their copy
	without []*shard // their copy lacks what the view of the call needs
}

// next returns the destination of the next attempt: the leader, unless its copy lacks what the call needs.
func (f *failures) next(r *route) *shard {
	s := r.leader()
	if s == nil || !slices.Contains(f.without, s) {
		return s
	}
	for _, other := range r.members {
		if !slices.Contains(f.without, other) {
			return other
		}
	}
	return s
}

// judgeView judges an answer of VIEW_EXPIRED, which a shard gives for its own copy if it names itself. The view of the
// group has expired only if every copy says so.
func (f *failures) judgeView(r *route, at *shard, v routing.Verdict) routing.Verdict {
	if v.Info["shard"] == "" || r == nil {
		v.Fate = routing.Final
		return v
	}
	if !slices.Contains(f.without, at) {
		f.without = append(f.without, at)
	}
	v.Fate = routing.Final
	if slices.ContainsFunc(r.members, func(s *shard) bool { return !slices.Contains(f.without, s) }) {
		v.Fate = routing.Refused
	}
	return v
}

// judge does the same as routing.Judge, but for an error from one of the group's shards. The call fails with
// GROUP_FAILED only if no majority of the group's copies is left. Until then, the call tries the other shards.
func (f *failures) judge(r *route, at *shard, st *status.Status, sent bool) routing.Verdict {
	v := routing.Judge(st, sent)
	if v.Reason == reason.ViewExpired {
		return f.judgeView(r, at, v)
	}
	if v.Reason != reason.GroupFailed || v.Fate != routing.Final || r == nil {
		return v
	}
	if !slices.Contains(f.broken, at) {
		f.broken = append(f.broken, at)
	}
	if 2*len(f.broken) < r.votes {
		v.Fate = routing.Refused
	}
	return v
}

// router follows the store. It holds the newest table and the connections to shards.
type router struct {
	cfg     Config      // only Logger, Dial, ShardCredentials and ShardDialOptions are used
	several atomic.Bool // whether each group has several copies
	table   atomic.Pointer[table]

	mu    sync.Mutex
	first chan struct{} // closed when the first table exists
	// addresses holds the last known address of each shard by name, because a shard whose lease has expired during an
	// outage of etcd may still serve.
	addresses map[string]string
	dialled   map[string]*shard      // shards with connections, by name
	leaving   map[*shard]*time.Timer // shards without routes, each with the timer that closes its connections
	closed    bool
}

// supersededPatience bounds how long calls to a shard wait after another shard has become their group's leader. It is
// long enough for the last responses from a leader that steps down, and short compared with the deadlines of calls.
const supersededPatience = 2 * time.Second

func newRouter(cfg Config) *router {
	return &router{
		cfg: cfg, first: make(chan struct{}), addresses: map[string]string{}, dialled: map[string]*shard{},
		leaving: map[*shard]*time.Timer{},
	}
}

// wait returns the table as soon as one exists.
func (r *router) wait(ctx context.Context) (*table, error) {
	if t := r.table.Load(); t != nil {
		return t, nil
	}
	select {
	case <-r.first:
		return r.table.Load(), nil
	case <-ctx.Done():
		return nil, fail(codes.Unavailable, reason.NoLeader,
			"the gateway has no routing yet: etcd does not answer, or holds no store")
	}
}

// set builds a table from a view, and makes it the newest one.
func (r *router) set(view placement.View) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	before := r.table.Load()
	r.resetHung(before, view)
	r.several.Store(view.Meta.Copies > 1)
	t := &table{view: view, changed: make(chan struct{}), named: make(map[string]*route, len(view.Groups)),
		shards: map[string]*shard{}}
	for name, s := range view.Shards {
		r.addresses[name] = s.Address
		if dialled := r.dial(t, name); dialled != nil {
			dialled.started(s.Generation)
		}
	}
	if view.Meta.Routing.Mode == placement.Hash {
		t.hash = make([]*route, view.Meta.Routing.Groups)
		for n := range t.hash {
			if g, ok := view.Groups[placement.GroupName(n)]; ok {
				t.hash[n] = r.route(t, before, g)
				t.named[g.Name] = t.hash[n]
			}
		}
	} else {
		for name, g := range view.Groups {
			t.named[name] = r.route(t, before, g)
		}
	}
	t.addUnknown()
	t.addUnlisted()
	t.message, t.places, t.unplaced = sync.OnceValue(t.build), sync.OnceValue(t.fill), sync.OnceValue(t.planned)
	t.inOrder = sync.OnceValue(t.sortRoutes)
	old := r.table.Swap(t)
	if old == nil {
		close(r.first)
	} else {
		close(old.changed)
	}
	r.forget(t)
}

// resetHung aborts the calls at each shard that no longer responds, because such calls would otherwise wait for their
// deadline. A shard is treated as hung if its registration has expired and another shard has become leader in its
// place.
func (r *router) resetHung(before *table, view placement.View) {
	if before == nil {
		return
	}
	for name, old := range before.view.Groups {
		s := r.dialled[old.Leader]
		if now := view.Groups[name]; s != nil && old.Leader != now.Leader && now.Term > old.Term {
			s.superseded = true
		}
	}
	for name, s := range r.dialled {
		switch _, registered := view.Shards[name]; {
		case s.superseded && !registered:
			r.cfg.Logger.Warn("a shard does not answer any more: calls at it are ended", "shard", name)
			s.superseded = false
			s.pulse.HangUp()
		case s.superseded && view.Shards[name].Generation != s.generation:
			s.superseded = false // the shard has opened its volume again
		}
	}
}

// route builds the route to a group. The destination is the leader or, if none is known, the first member, which may
// know the leader. If the method learn has set another destination, that destination remains valid while etcd names
// the same leader.
func (r *router) route(t, before *table, g placement.Group) *route {
	out := &route{group: g.Name, holds: len(g.Members) > 0 || g.Restoring}
	if g.Restoring {
		out.waits = t.restores(g.Name)
	}
	for _, m := range g.Members {
		s := r.dial(t, m.Shard)
		if m.Role == placement.Learner {
			continue
		}
		out.votes++
		if s == nil {
			continue
		}
		if registered, ok := t.view.Shards[m.Shard]; ok && registered.VolumeUUID != m.VolumeUUID {
			continue // the member's shard now has another volume, which does not hold the group
		}
		out.voters, out.members = append(out.voters, s.address), append(out.members, s)
		if out.told == nil || m.Shard == g.Leader {
			out.told = s
		}
	}
	out.lead.Store(out.told)
	var old *route
	if before != nil {
		old = before.named[g.Name]
	}
	if old != nil && old.told == out.told {
		out.tenure = old.tenure
		if slices.Contains(out.members, old.leader()) {
			out.lead.Store(old.leader())
		}
		return out
	}
	if out.told != nil {
		out.tenure = out.told.pulse.Tenure()
	}
	if old != nil && old.told != nil && g.Leader != "" {
		was := old.told.name
		old.tenure.Over(supersededPatience, func() {
			r.cfg.Logger.Warn("a shard has not answered calls to a group that another leads by now: calls at it are ended",
				"shard", was, "group", g.Name, "leader", g.Leader)
		})
	}
	return out
}

// dial returns the shard with this name and its connections, and adds it to the table. It returns nil if no address
// is known.
func (r *router) dial(t *table, name string) *shard {
	if s, ok := t.shards[name]; ok {
		return s
	}
	address, ok := r.addresses[name]
	if !ok {
		return nil
	}
	s := r.dialled[name]
	if s == nil || s.address != address {
		if s != nil {
			r.closeLater(s)
		}
		var err error
		if s, err = r.connect(name, address); err != nil {
			r.cfg.Logger.Error("cannot route to a shard", "shard", name, "address", address, "error", err)
			delete(r.dialled, name)
			return nil
		}
		r.dialled[name] = s
	}
	t.shards[name] = s
	return s
}

func (r *router) connect(name, address string) (*shard, error) {
	s := &shard{name: name, address: address}
	s.pulse = liveness.New(liveness.Options{
		Dial: r.cfg.Dial,
		May:  r.several.Load, // with a single copy of each group, no other shard can handle the call
		Hung: func() {
			r.cfg.Logger.Warn("a shard does not answer any more: calls at it are ended", "shard", name, "address", address)
		},
	})
	for range connsPerShard {
		// The passthrough resolver resolves the name at each attempt to connect. gRPC's own resolver does so at most
		// every 30 s, but a restarted shard has a new address for its name.
		options := append(s.pulse.DialOptions(),
			grpc.WithNoProxy(), grpc.WithTransportCredentials(r.cfg.ShardCredentials(name)),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(message.BytesMax),
				grpc.MaxCallSendMsgSize(message.BytesMax)),
			grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connWindow),
			grpc.WithIdleTimeout(0), grpc.WithUserAgent("sheaf-gateway"),
		)
		conn, err := grpc.NewClient("passthrough:///"+address, append(options, r.cfg.ShardDialOptions...)...)
		if err != nil {
			s.closeNow()
			return nil, fmt.Errorf("address %q: %w", address, err)
		}
		conn.Connect()
		s.conns = append(s.conns, conn)
	}
	s.pulse.Ask(s.conns[0])
	return s, nil
}

// started records the generation of a shard's volume. The gateway connects immediately to a shard that has restarted
// at its address, without the backoff that grew while the shard was unreachable.
func (s *shard) started(generation uint64) {
	if s.generation != 0 && s.generation != generation {
		for _, c := range s.conns {
			c.ResetConnectBackoff()
		}
	}
	s.generation = generation
}

func (s *shard) closeNow() {
	s.pulse.Close()
	for _, c := range s.conns {
		_ = c.Close() // fails only if the connection is already closed
	}
}

// closeLater closes the connections of a shard without routes, after a time in which calls in flight can end. The
// caller holds r.mu.
func (r *router) closeLater(s *shard) {
	r.leaving[s] = time.AfterFunc(closeConnsAfter, func() {
		s.closeNow()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.leaving, s)
	})
}

// forget drops connections to shards that the table no longer uses.
func (r *router) forget(t *table) {
	for name, s := range r.dialled {
		if t.shards[name] == nil {
			delete(r.dialled, name)
			delete(r.addresses, name)
			r.closeLater(s)
		}
	}
}

// close closes all connections.
func (r *router) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, s := range r.dialled {
		s.closeNow()
	}
	for s, timer := range r.leaving {
		if timer.Stop() {
			s.closeNow()
		}
	}
}
