// Package peer carries the communication between the shards of one store. It sends the Raft messages of all groups in
// one stream for each ordered pair of shards. It also transfers the files, entries and blobs that a replica fetches
// from another replica.
package peer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
)

// Options configures a Hub. Shard, Store, Address and Deliver are required.
type Options struct {
	Shard string // name of this shard
	Store uuid.UUID
	// Address returns a shard's address. It returns false if no address is known now. It is called before each
	// connection.
	Address func(shard string) (address string, ok bool)
	// Deliver receives a message. It must not block for long, because it delays all messages from the same shard. It
	// returns false if this shard does not have the group, or if the message is for a different Raft id.
	Deliver func(group uuid.UUID, m *raftpb.Message) bool
	// Alive is called when a peer starts to respond, and when it has been silent for silenceMax. If a peer has restarted
	// without falling silent, Alive is first called with false and then with true. Calls are sequential. Alive may be
	// nil.
	Alive func(shard string, alive bool)
	// MustNotLead reports whether this shard must not become the leader of a group. Responses to pings carry the result
	// to the peers (see Hub.MustNotLead). The function must not block. If it is nil, this shard may always lead.
	MustNotLead func() bool
	// Source provides the files, entries and blobs that peers fetch. If it is nil, peers can fetch nothing.
	Source Source
	// Credentials returns the credentials for connections to a peer, by the peer's name. If it is nil, TLS is not
	// used.
	Credentials func(shard string) credentials.TransportCredentials
	// SourceCredentials returns the credentials for connections to the source of a restore. If it is nil, TLS is not
	// used.
	SourceCredentials func() credentials.TransportCredentials
	// SpeaksFor reports whether a connection may speak for a shard. If it is nil (without TLS), every peer is
	// trusted.
	SpeaksFor func(ctx context.Context, shard string) bool
	// Dial opens the connection to an address, below TLS. If it is nil, connections use TCP.
	Dial   func(ctx context.Context, address string) (net.Conn, error)
	Logger *slog.Logger // if nil, log messages are discarded

	// FetchBytesPerSecond limits the rate at which all FetchGroup calls together send. 0 means no limit.
	FetchBytesPerSecond int64

	// The fields below have the values of the constants with the same names, unless a test changes them.
	queueBytesMax                   int64
	exportsMax                      int
	pingEvery, silenceMax, stallMax time.Duration
}

const (
	// queueBytesMax is the maximum size of the messages waiting to be sent to one peer. It is as large as the limit on
	// the bytes that one group may have in flight, so that a single busy group does not lose messages.
	queueBytesMax = 64 << 20
	// exportsMax is the number of groups that are sent at the same time, not counting small ones. More groups at a time
	// would slow down RPCs, which need the same disk and network.
	exportsMax = 2
	// pingEvery is a third of silenceMax, so that one lost ping does not make a peer count as silent.
	pingEvery = 300 * time.Millisecond
	// silenceMax is the silence after which a peer counts as down.
	silenceMax = time.Second
	// stallMax is how long a connection may receive no response before it is closed.
	stallMax = 10 * time.Second
)

func (o *Options) setDefaults() {
	o.queueBytesMax = cmp.Or(o.queueBytesMax, queueBytesMax)
	o.exportsMax = cmp.Or(o.exportsMax, exportsMax)
	o.pingEvery = cmp.Or(o.pingEvery, pingEvery)
	o.silenceMax = cmp.Or(o.silenceMax, silenceMax)
	o.stallMax = cmp.Or(o.stallMax, stallMax)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Credentials == nil {
		o.Credentials = func(string) credentials.TransportCredentials { return insecure.NewCredentials() }
	}
	if o.SourceCredentials == nil {
		o.SourceCredentials = insecure.NewCredentials
	}
	if o.Alive == nil {
		o.Alive = func(string, bool) {}
	}
	if o.MustNotLead == nil {
		o.MustNotLead = func() bool { return false }
	}
}

// Counters count the messages of a Hub since its start.
type Counters struct {
	Sent, Received atomic.Uint64 // messages
	SentBytes      atomic.Uint64
	DroppedFull    atomic.Uint64 // messages dropped because the queue to a peer was full
	DroppedDown    atomic.Uint64 // messages dropped because a peer was not connected
	DroppedStray   atomic.Uint64 // messages dropped because this shard lacks the group or the Raft id
	DroppedBad     atomic.Uint64 // messages dropped because they could not be decoded
	Connects       atomic.Uint64
}

// LinkStats describes the link to one peer.
type LinkStats struct {
	Shard    string
	Alive    bool          // a message from the peer was received within silenceMax
	Silence  time.Duration // time since the peer's last message, or since the link was created
	Messages int64         // number of messages that wait to be sent
	Bytes    int64         // size of these messages
}

// Hub is one shard's end of the streams to and from all its peers. It is safe for concurrent use.
type Hub struct {
	peerv1.UnimplementedPeerServiceServer
	opts   Options
	logger *slog.Logger
	count  Counters
	sender Sender    // serves the fetches of peers
	number uint64    // random number of this process
	zero   time.Time // time at which the hub was created; clock counts from it

	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup
	wakeUp chan struct{} // wakes the monitor

	mu      sync.Mutex
	links   map[string]*link // by shard
	reports []report         // reports that have not been delivered to their groups yet
	fetches map[*fetching]struct{}
}

// fetching is a Fetcher call in progress. It is aborted when its shard falls silent.
type fetching struct {
	shard string
	end   func()
}

// report tells a group that a message to one of its members was lost.
type report struct {
	group   uuid.UUID
	message *raftpb.Message
}

// New creates a hub. The caller must call Close.
func New(opts Options) *Hub {
	opts.setDefaults()
	h := &Hub{
		opts: opts, logger: opts.Logger, links: map[string]*link{}, wakeUp: make(chan struct{}, 1), number: rand.Uint64() | 1,
		fetches: map[*fetching]struct{}{}, zero: time.Now().Add(-1),
	}
	h.sender.Source, h.sender.ExportsMax, h.sender.Logger = opts.Source, opts.exportsMax, h.logger
	h.sender.Limiter = NewLimiter(opts.FetchBytesPerSecond)
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.group.Go(h.monitor)
	return h
}

// Close ends all streams, including those from peers to this shard. Messages in flight are lost.
func (h *Hub) Close() {
	h.cancel()
	h.group.Wait()
}

// SetPeers sets the shards that share groups with this one. The hub keeps a connection to each of them, so that both
// sides notice when the other one fails. It closes connections to all other shards.
func (h *Hub) SetPeers(shards []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	wanted := make(map[string]bool, len(shards))
	for _, shard := range shards {
		wanted[shard] = true
		h.link(shard)
	}
	for shard, l := range h.links {
		if !wanted[shard] {
			l.cancel()
			delete(h.links, shard)
		}
	}
}

// link returns the link to a shard, and creates it if necessary. It returns nil if the hub must not have a link to
// the shard. The caller must hold mu.
func (h *Hub) link(shard string) *link {
	if l := h.links[shard]; l != nil {
		return l
	}
	if h.ctx.Err() != nil || shard == h.opts.Shard || shard == "" {
		return nil
	}
	l := newLink(h, shard)
	h.links[shard] = l
	h.group.Go(l.run)
	return l
}

// Alive reports whether a peer is responding, and since when it has been responding or silent. The time is zero while
// this is not known yet.
func (h *Hub) Alive(shard string) (alive bool, since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.links[shard]
	if l == nil {
		return false, time.Time{}
	}
	return l.alive, l.since
}

// MustNotLead reports whether a peer must not become the leader of a group, according to its last response. It is false
// for a peer that has not responded yet.
func (h *Hub) MustNotLead(shard string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.links[shard]
	return l != nil && l.mustNotLead.Load()
}

// Counters returns the counters of the hub. The caller must not change them.
func (h *Hub) Counters() *Counters { return &h.count }

// Fetched returns the counters of fetches from this shard. The caller must not change them.
func (h *Hub) Fetched() *FetchCounters { return &h.sender.Count }

// Peers returns the stats of each peer, sorted by name.
func (h *Hub) Peers() []LinkStats {
	h.mu.Lock()
	links := slices.SortedFunc(maps.Values(h.links), func(a, b *link) int { return cmp.Compare(a.shard, b.shard) })
	out := make([]LinkStats, 0, len(links))
	now := h.clock()
	for _, l := range links {
		heard := max(l.madeAt, time.Duration(l.receivedAt.Load()))
		out = append(out, LinkStats{Shard: l.shard, Alive: l.alive, Silence: max(0, now-heard)})
	}
	h.mu.Unlock()
	for i, l := range links {
		n, bytes := l.queue.held()
		out[i].Messages, out[i].Bytes = int64(n), bytes
	}
	return out
}

// Transport sends the messages of one group.
type Transport struct {
	hub   *Hub
	group uuid.UUID
	route func(raftID uint64) (shard string, ok bool)
}

// Transport returns the transport for a group. The function route returns a member's shard. Messages to members without
// a shard are lost.
func (h *Hub) Transport(group uuid.UUID, route func(raftID uint64) (shard string, ok bool)) *Transport {
	return &Transport{hub: h, group: group, route: route}
}

// Send implements replica.Transport. It never blocks.
func (t *Transport) Send(messages []*raftpb.Message) {
	for _, m := range messages {
		shard, ok := t.route(m.GetTo())
		if !ok {
			continue
		}
		t.hub.mu.Lock()
		l := t.hub.link(shard)
		t.hub.mu.Unlock()
		if l != nil {
			l.send(t.group, m)
		}
	}
}

// lost reports to the group that a message was not sent. It does so in another goroutine, because the sender may hold
// locks that the report needs.
func (h *Hub) lost(group uuid.UUID, m *raftpb.Message) {
	back := &raftpb.Message{Type: raftpb.MsgUnreachable.Enum(), From: new(m.GetTo()), To: new(m.GetFrom())}
	if m.GetType() == raftpb.MsgSnap {
		back.Type, back.Reject = raftpb.MsgSnapStatus.Enum(), new(true)
	}
	h.mu.Lock()
	h.reports = append(h.reports, report{group: group, message: back})
	h.mu.Unlock()
	h.wake()
}

func (h *Hub) wake() {
	select {
	case h.wakeUp <- struct{}{}:
	default:
	}
}

// received records that a message from a peer has just arrived.
func (h *Hub) received(l *link) {
	l.receivedAt.Store(int64(h.clock()))
	if l.silent.Load() {
		h.wake()
	}
}

// clock returns the monotonic time that links use. It is above 0 from the start, so a receivedAt of 0 means that the
// peer has never sent a message.
func (h *Hub) clock() time.Duration { return time.Since(h.zero) }

// monitor tells the owner of the hub which peers are alive, and tells groups which of their messages were lost.
func (h *Hub) monitor() {
	seen := looks{last: h.clock()}
	tick := time.NewTicker(h.opts.silenceMax / 8)
	defer tick.Stop()
	for {
		h.deliverReports()
		h.reportAlive(seen.look(h.clock(), h.opts.silenceMax/2))
		select {
		case <-h.ctx.Done():
			return
		case <-tick.C:
		case <-h.wakeUp:
		}
	}
}

func (h *Hub) deliverReports() {
	h.mu.Lock()
	reports := h.reports
	h.reports = nil
	h.mu.Unlock()
	for _, r := range reports {
		h.opts.Deliver(r.group, r.message)
	}
}

// looks records when the monitor last ran, and when this process last resumed after a suspension. Both are times of
// Hub.clock.
type looks struct{ last, resumed time.Duration }

// look records that the monitor is running now. If more than the given maximum time has passed since the previous
// call, the process was suspended in the meantime, and could not receive messages. look returns the time at which the
// process last resumed after it was suspended, or 0 if it never was suspended.
func (l *looks) look(now, most time.Duration) (resumed time.Duration) {
	if now-l.last > most {
		l.resumed = now
	}
	l.last = now
	return l.resumed
}

// reportAlive reports which peers have fallen silent and which respond again. A peer that was alive when this process
// was suspended gets another silenceMax to respond, counted from the time at which the process resumed. It counts as
// silent, however, if nothing was received from it for stallMax.
func (h *Hub) reportAlive(resumed time.Duration) {
	type change struct {
		shard string
		alive bool
	}
	var changes []change
	h.mu.Lock()
	now := h.clock()
	for shard, l := range h.links {
		heard := time.Duration(l.receivedAt.Load())
		if l.begun.Swap(false) && l.alive {
			changes = append(changes, change{shard, false}, change{shard, true})
			l.since = time.Now()
		}
		again := l.alive && now-resumed < h.opts.silenceMax && now-heard < h.opts.stallMax
		alive := l.receivedAt.Load() > 0 && (now-heard < h.opts.silenceMax || again)
		// A peer that has never responded is reported as silent only after silenceMax.
		if alive == l.alive && (alive || l.announced || now-l.madeAt < h.opts.silenceMax) {
			continue
		}
		l.alive, l.announced, l.since = alive, true, time.Now()
		l.silent.Store(!alive)
		changes = append(changes, change{shard, alive})
	}
	h.mu.Unlock()
	for _, c := range changes {
		if !c.alive {
			h.endFetches(c.shard)
		}
		h.opts.Alive(c.shard, c.alive)
	}
}

// onSilence registers the function end, which the hub calls when a shard falls silent. The returned function leave
// removes the registration.
func (h *Hub) onSilence(shard string, end func()) (leave func()) {
	f := &fetching{shard: shard, end: end}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fetches[f] = struct{}{}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.fetches, f)
	}
}

func (h *Hub) endFetches(shard string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for f := range h.fetches {
		if f.shard == shard {
			f.end()
		}
	}
}

// These are errors of a Fetcher.
var (
	// ErrNotHere means that the peer has no serving replica of the group, or does not have the requested blob.
	ErrNotHere = errors.New("it is not here")
	// ErrBusy means that the peer already sends as many groups as it is allowed to. The caller can try again.
	ErrBusy = errors.New("as many groups are being sent as may be")
	// ErrCorrupt means that the received bytes differ from the bytes sent. The caller can fetch them again.
	ErrCorrupt = errors.New("bytes were changed on their way")
)
