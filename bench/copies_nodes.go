package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// benchNode has only those parts of a shard that keep copies: the groups' logs, their committer, and the streams to
// the other nodes. A benchNode does not use etcd.
type benchNode struct {
	name      string
	dir       string
	hub       *peer.Hub
	server    *grpc.Server
	committer *replica.Committer
	journal   *journal.Journal
	logs      map[uuid.UUID]*group.Log
	replicas  map[uuid.UUID]*replica.Replica
	made      atomic.Bool // whether all logs and replicas exist
}

// benchNodes are shards in one process. Each has its own folder and a copy of every group.
type benchNodes struct {
	store     uuid.UUID
	dir       string
	groups    []uuid.UUID
	nodes     []*benchNode
	addresses map[string]string
	leaders   []*replica.Replica // leader of each group, by group number
}

// newNodes creates one node for each copy. Every node has a copy of every group, and the leaders are spread evenly. The
// nodes use mutual TLS with each other, or plaintext if secure is nil.
func newNodes(ctx context.Context, dir string, copies, groups int, secure *authorities) (n *benchNodes, err error) {
	n = &benchNodes{store: uuid.New(), dir: dir, addresses: map[string]string{}}
	defer func() {
		if err != nil {
			n, err = nil, errors.Join(err, n.close())
		}
	}()
	for range groups {
		n.groups = append(n.groups, uuid.New())
	}
	listeners := make([]net.Listener, copies)
	for i := range copies {
		if listeners[i], err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
			return n, err
		}
		node := &benchNode{
			name: strconv.Itoa(i + 1), dir: filepath.Join(dir, strconv.Itoa(i+1)), committer: replica.NewCommitter(),
			journal: journal.New(journal.Options{FS: vfs.OS{}, Dir: filepath.Join(dir, strconv.Itoa(i+1))}),
			logs:    map[uuid.UUID]*group.Log{}, replicas: map[uuid.UUID]*replica.Replica{},
		}
		n.nodes = append(n.nodes, node)
		n.addresses[node.name] = listeners[i].Addr().String()
	}
	for _, node := range n.nodes {
		opts := peer.Options{
			Shard: node.name, Store: n.store, Deliver: node.deliver, Source: node,
			Address: func(shard string) (string, bool) { a, ok := n.addresses[shard]; return a, ok },
		}
		creds, err := secure.shard(&opts)
		if err != nil {
			return n, err
		}
		node.hub, node.server = peer.New(opts), newServer(creds)
		peerv1.RegisterPeerServiceServer(node.server, node.hub)
		if err := n.startNode(ctx, node); err != nil {
			return n, err
		}
	}
	for i, node := range n.nodes {
		// The error is ignored, because Serve returns when close stops the server.
		go func() { _ = node.server.Serve(listeners[i]) }()
	}
	return n, n.spreadLeaders(ctx)
}

// newServer creates the gRPC server of a node. It has only those options of a shard's server that messages between
// shards need.
func newServer(creds credentials.TransportCredentials) *grpc.Server {
	return grpc.NewServer(grpc.Creds(creds), grpc.ForceServerCodecV2(message.Codec{}), grpc.MaxRecvMsgSize(16<<20),
		grpc.WaitForHandlers(true))
}

// startNode creates and starts a node's replicas. In every group, a member's Raft ID is the number of its node.
func (n *benchNodes) startNode(ctx context.Context, node *benchNode) error {
	conf := &raftpb.ConfState{}
	for i := range n.nodes {
		conf.Voters = append(conf.Voters, uint64(i+1))
	}
	id, err := strconv.ParseUint(node.name, 10, 64)
	if err != nil {
		return err
	}
	for i, g := range n.groups {
		opts := n.options(node, i)
		if err := group.Create(opts, conf); err != nil {
			return err
		}
		log, _, err := group.Load(ctx, opts, nil)
		if err != nil {
			return err
		}
		node.logs[g] = log
		r, err := replica.Start(replica.Options{
			Log: log, Committer: node.committer, RaftID: id,
			Transport: node.hub.Transport(g, func(raftID uint64) (string, bool) { return strconv.FormatUint(raftID, 10), true }),
		})
		if err != nil {
			return err
		}
		node.replicas[g] = r
	}
	node.made.Store(true)
	return nil
}

func (n *benchNodes) options(node *benchNode, i int) group.Options {
	return group.Options{
		FS: vfs.OS{}, Dir: filepath.Join(node.dir, n.groups[i].String()), Retention: group.Retention{Versions: 1},
		Identity: format.Identity{Store: n.store, Group: n.groups[i], Name: strconv.Itoa(i)}, Journal: node.journal,
	}
}

// spreadLeaders waits until each group has a leader, and spreads the leaders over the nodes.
func (n *benchNodes) spreadLeaders(ctx context.Context) error {
	n.leaders = make([]*replica.Replica, len(n.groups))
	for i, g := range n.groups {
		want := n.nodes[i%len(n.nodes)]
		err := drive.Eventually(ctx, fmt.Sprintf("group %d has its leader", i), func() error {
			for _, node := range n.nodes {
				if r := node.replicas[g]; r.Status().Leader {
					n.leaders[i] = r
					if node == want {
						return nil
					}
					id, _ := strconv.ParseUint(want.name, 10, 64)
					return r.TransferLeader(ctx, id)
				}
			}
			return errors.New("nobody leads")
		})
		if err != nil {
			return err
		}
		n.leaders[i] = want.replicas[g]
		if err := drive.Eventually(ctx, fmt.Sprintf("group %d serves", i), func() error {
			_, err := n.leaders[i].Propose(replica.Write{ID: -1, Data: []byte("first")}).Wait(ctx)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (n *benchNodes) close() error {
	var errs []error
	for _, node := range n.nodes {
		for _, r := range node.replicas {
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			errs = append(errs, r.Stop(ended))
		}
		node.committer.Close()
		if node.hub != nil {
			node.hub.Close()
		}
		if node.server != nil {
			node.server.Stop()
		}
		for _, log := range node.logs {
			errs = append(errs, log.Close(false))
		}
		_, err := node.journal.Close()
		errs = append(errs, err)
	}
	return errors.Join(append(errs, os.RemoveAll(n.dir))...)
}

// put lets concurrent writers write to the groups, which are divided among them. Each writer waits until its write is
// durable before it starts the next one.
func (n *benchNodes) put(ctx context.Context, writers, size int, duration time.Duration) (drive.Load, error) {
	payload := randomBytes(size)
	return drive.Callers(writers, duration, func(worker int, i int64) error {
		_, err := n.leaders[worker%len(n.leaders)].Propose(replica.Write{ID: i, Data: payload}).Wait(ctx)
		return err
	})
}

// door is an additional server for a node, together with a shard without groups (the guest). The guest fetches the
// node's groups through that server.
type door struct {
	node    string
	host    *peer.Hub // the node's side of the door
	server  *grpc.Server
	guest   *peer.Hub
	address string // the address that the guest dials
}

// open opens a door to a node. The door uses mutual TLS, or plaintext if secure is nil. All doors of one node send the
// same files. The caller must close the door before the nodes.
func (n *benchNodes) open(ctx context.Context, node *benchNode, secure *authorities) (*door, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	host := peer.Options{
		Shard: node.name, Store: n.store, Source: node, Deliver: noMessages,
		Address: func(string) (string, bool) { return "", false },
	}
	d := &door{node: node.name, address: listener.Addr().String()}
	guest := peer.Options{
		Shard: "guest", Store: n.store, Deliver: noMessages,
		Address: func(shard string) (string, bool) { return d.address, shard == d.node },
	}
	creds, err := secure.shard(&host)
	if err == nil {
		_, err = secure.shard(&guest)
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	d.host, d.server, d.guest = peer.New(host), newServer(creds), peer.New(guest)
	peerv1.RegisterPeerServiceServer(d.server, d.host)
	go func() { _ = d.server.Serve(listener) }() // the error is ignored, because Serve returns when close stops the server
	return d, nil
}

// fetch fetches a group of the node over the door's own connection.
func (d *door) fetch(ctx context.Context, group uuid.UUID, sink peer.Sink) error {
	return d.guest.Fetcher(d.node).Group(ctx, group, sink)
}

func (d *door) close() {
	d.guest.Close()
	d.host.Close()
	d.server.Stop()
}

// noMessages implements peer.Options.Deliver for a shard without groups.
func noMessages(uuid.UUID, *raftpb.Message) bool { return false }

func (d *benchNode) deliver(g uuid.UUID, m *raftpb.Message) bool {
	if !d.made.Load() {
		return false
	}
	r := d.replicas[g]
	if r == nil {
		return false
	}
	_ = r.Step(m) // a lost message does no harm, because Raft resends the messages that matter
	return true
}

// Export implements peer.Source.
func (d *benchNode) Export(ctx context.Context, g uuid.UUID) (peer.Export, error) {
	log := d.logs[g]
	if log == nil {
		return nil, peer.ErrNotHere
	}
	e, err := log.Export(ctx)
	if err != nil {
		return nil, err
	}
	return benchExport{e}, nil
}

// Entries implements peer.Source.
func (d *benchNode) Entries(context.Context, uuid.UUID, uint64, uint64, int) (peer.Entries, error) {
	return peer.Entries{}, peer.ErrNotHere
}

// Blob implements peer.Source.
func (d *benchNode) Blob(context.Context, uuid.UUID, []byte) (peer.File, int64, error) {
	return nil, 0, peer.ErrNotHere
}

// benchExport implements peer.Export.
type benchExport struct{ *group.Export }

func (e benchExport) Describe() peer.Description {
	return peer.Description{Manifest: e.Manifest(), Index: e.Index, Term: e.Term, Bytes: e.Bytes}
}

// benchSink implements peer.Sink. It installs the files that arrive, as a shard does.
type benchSink struct {
	ctx     context.Context
	opts    group.Options
	replica format.ReplicaFile
	install *transfer.Install
	missing map[string]transfer.File
}

// Describe implements peer.Sink.
func (s *benchSink) Describe(d peer.Description) (err error) {
	s.install, err = transfer.NewInstall(s.ctx, s.opts.ForInstall(), s.replica, d.Manifest)
	return err
}

// Wanted implements peer.Sink.
func (s *benchSink) Wanted() ([]peer.FileRange, error) {
	s.missing = map[string]transfer.File{}
	missing := s.install.Missing()
	wanted := make([]peer.FileRange, 0, len(missing))
	for _, f := range missing {
		s.missing[f.Name] = f
		wanted = append(wanted, peer.FileRange{Name: f.Name, Offset: f.Have, Bytes: f.Bytes})
	}
	return wanted, nil
}

// Create implements peer.Sink.
func (s *benchSink) Create(r peer.FileRange) (peer.SinkFile, error) {
	return s.install.File(s.missing[r.Name])
}
