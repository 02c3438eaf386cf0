package peer

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/test/must"
)

// network is a set of hubs over loopback.
type network struct {
	t     *testing.T
	store uuid.UUID
	mu    sync.Mutex
	at    map[string]string // address of each shard, by name
}

func newNetwork(t *testing.T) *network {
	return &network{t: t, store: uuid.New(), at: map[string]string{}}
}

func (n *network) address(shard string) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	a, ok := n.at[shard]
	return a, ok
}

func (n *network) move(shard, address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[shard] = address
}

// node is a serving hub, and the messages that it received.
type node struct {
	*Hub
	server *grpc.Server
	name   string

	mu      sync.Mutex
	came    []*raftpb.Message
	local   []*raftpb.Message // messages by which this process itself reported lost messages
	alive   map[string]bool
	downs   int
	changed chan struct{} // closed at each change
	hold    chan struct{} // if not nil, Deliver waits for this channel
}

// start starts a hub with the given name; change may be nil.
func (n *network) start(name string, change func(*Options)) *node {
	n.t.Helper()
	d := &node{name: name, alive: map[string]bool{}, changed: make(chan struct{})}
	opts := Options{Shard: name, Store: n.store, Address: n.address, Deliver: d.deliver, Alive: d.setAlive,
		pingEvery: 20 * time.Millisecond,
		stallMax:  time.Hour} // longer than any pause on a slow machine
	if change != nil {
		change(&opts)
	}
	d.Hub = New(opts)
	listener, err := new(net.ListenConfig).Listen(n.t.Context(), "tcp", "127.0.0.1:0")
	must.OK(n.t, err)
	d.server = grpc.NewServer(grpc.ForceServerCodecV2(message.Codec{}), grpc.MaxRecvMsgSize(messageMax),
		grpc.WaitForHandlers(true))
	peerv1.RegisterPeerServiceServer(d.server, d)
	n.move(name, listener.Addr().String())
	go d.server.Serve(listener)
	n.t.Cleanup(d.stop)
	return d
}

func (d *node) stop() {
	d.release()
	d.Close()
	d.server.Stop()
}

func (d *node) note(do func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	do()
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *node) deliver(_ uuid.UUID, m *raftpb.Message) bool {
	d.mu.Lock()
	hold := d.hold
	d.mu.Unlock()
	if hold != nil {
		<-hold
	}
	d.note(func() {
		if m.GetType() == raftpb.MsgUnreachable {
			d.local = append(d.local, m)
		} else {
			d.came = append(d.came, m)
		}
	})
	return m.GetTo() != strayID
}

// strayID is a Raft id that no replica has.
const strayID = 666

func (d *node) setAlive(shard string, alive bool) {
	d.note(func() {
		d.alive[shard] = alive
		if !alive {
			d.downs++
		}
	})
}

// block makes Deliver wait until release.
func (d *node) block() { d.note(func() { d.hold = make(chan struct{}) }) }

func (d *node) release() {
	d.note(func() {
		if d.hold != nil {
			close(d.hold)
			d.hold = nil
		}
	})
}

// until waits until holds() returns true for the received messages. It calls holds() with mu held.
func (d *node) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		d.mu.Lock()
		ok, changed := holds(), d.changed
		d.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%s: %s: not within 2 minutes", d.name, what)
		}
	}
}

var testGroup = uuid.MustParse("11111111-2222-3333-4444-555555555555")

// to returns a transport for the test's group. Every member of the group is on the given shard.
func (d *node) to(shard string) *Transport {
	return d.Transport(testGroup, func(uint64) (string, bool) { return shard, true })
}

func msg(kind raftpb.MessageType, index uint64, bytes int) *raftpb.Message {
	m := &raftpb.Message{Type: kind.Enum(), From: proto.Uint64(1), To: proto.Uint64(2), Index: new(index)}
	if bytes > 0 {
		m.Entries = []*raftpb.Entry{{Data: make([]byte, bytes)}}
	}
	return m
}

// eventually waits until holds() returns true. It is for conditions of the hub that must be polled.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 2 minutes", what)
		}
	}
}

// connect starts two nodes and waits until the link from a to b is up.
func connect(t *testing.T, n *network, change func(*Options)) (a, b *node) {
	t.Helper()
	a, b = n.start("a", change), n.start("b", nil)
	a.SetPeers([]string{"b"})
	a.until(t, "b is alive", func() bool { return a.alive["b"] })
	return a, b
}
