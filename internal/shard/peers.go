package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// peers handles the traffic between this shard and the others: Raft messages and files. It informs the served groups
// which shards are alive, and lets other shards fetch from these groups. It neither loads nor closes groups. It is
// safe for concurrent use.
type peers struct {
	name   string // name of the shard
	routes func() *replicas.Routes
	admit  func(ctx context.Context, bytes int64) error // waits until the volume has space, and reserves it
	logger *slog.Logger

	hub *peer.Hub // nil until the shard's store is known; set before the shard serves calls
}

var _ peer.Source = (*peers)(nil)

func newPeers(s *Shard) *peers {
	return &peers{
		name: s.cfg.Name, routes: s.replicas.Routes, admit: s.compactor.AdmitWithSpace, logger: s.logger,
	}
}

// newHub creates this shard's end of the connections between shards.
func (s *Shard) newHub() *peer.Hub {
	return peer.New(peer.Options{
		Shard: s.cfg.Name, Store: s.volume.Store, Address: s.replicas.Address, Deliver: s.peers.deliver,
		Alive:       s.peers.received,
		MustNotLead: s.mustNotLead,
		Source:      s.peers,
		Credentials: s.cfg.PeerCredentials, SourceCredentials: s.cfg.SourceCredentials, SpeaksFor: s.cfg.SpeaksFor,
		FetchBytesPerSecond: s.cfg.Limits.FetchBytesPerSecond,
		Logger:              s.logger,
		Dial:                s.cfg.Dial,
	})
}

// deliver passes a message to its group.
func (p *peers) deliver(id uuid.UUID, m *raftpb.Message) bool {
	sv := p.routes().Served(id)
	if sv == nil || sv.RaftID != m.GetTo() {
		return false
	}
	if err := sv.Replica().Step(m); err != nil {
		p.logger.Debug("a message was not taken", "group", sv.Group.Name, "error", err)
	}
	return true
}

// received tells each group that has a member on the given shard whether that shard is alive.
func (p *peers) received(shard string, alive bool) {
	p.logger.Debug("peer", "peer", shard, "alive", alive)
	for _, g := range p.routes().ByUUID {
		sv := g.Served()
		if sv == nil {
			continue
		}
		for id, m := range g.Members() {
			switch {
			case m.Shard != shard || id == sv.RaftID:
			case alive:
				sv.Replica().PeerUp(id)
			default:
				sv.Replica().PeerDown(id)
			}
		}
		g.AskLook()
	}
}

// isSilent reports whether a peer is known to be silent. When the peer responds again, received() informs the groups
// that have a member on the peer.
func (p *peers) isSilent(shard string) bool {
	alive, since := p.hub.Alive(shard)
	return !alive && !since.IsZero()
}

// mustNotLead reports whether a peer has asked not to lead groups.
func (p *peers) mustNotLead(shard string) bool { return p.hub.MustNotLead(shard) }

// Tell implements load.Peers. It tells a group that has just begun to serve which of its members are silent.
func (p *peers) Tell(g *replicas.Replica, sv *replicas.Served) {
	for id, m := range g.Members() {
		if id == sv.RaftID || m.Shard == p.name {
			continue
		}
		if !p.isSilent(m.Shard) {
			continue // the peer is alive, or was never connected
		}
		sv.Replica().PeerDown(id)
		if alive, _ := p.hub.Alive(m.Shard); alive { // the peer responded just now, and its PeerUp came before this PeerDown
			sv.Replica().PeerUp(id)
		}
	}
}

// served returns the group with the given UUID if this shard serves it, and peer.ErrNotHere otherwise.
func (p *peers) served(id uuid.UUID) (*replicas.Served, error) {
	if sv := p.routes().Served(id); sv != nil {
		return sv, nil
	}
	return nil, fmt.Errorf("%w: group %s does not serve on shard %s", peer.ErrNotHere, id, p.name)
}

func (p *peers) Export(ctx context.Context, id uuid.UUID) (peer.Export, error) {
	sv, err := p.served(id)
	if err != nil {
		return nil, err
	}
	e, err := sv.Log().Export(ctx)
	if err != nil {
		return nil, notHereAnyMore(err)
	}
	return exported{e}, nil
}

// exported adapts a group.Export to the interface peer.Export.
type exported struct{ *group.Export }

func (e exported) Describe() peer.Description {
	return peer.Description{Manifest: e.Manifest(), Index: e.Index, Term: e.Term, Bytes: e.Bytes}
}

// notHereAnyMore turns an error into peer.ErrNotHere if the error occurred because the group is being closed. It
// returns other errors unchanged.
func notHereAnyMore(err error) error {
	if errors.Is(err, format.ErrClosed) || errors.Is(err, group.ErrVersionNotFound) {
		return fmt.Errorf("%w: %w", peer.ErrNotHere, err)
	}
	return err
}

func (p *peers) Entries(_ context.Context, id uuid.UUID, first, last uint64, bytesMax int) (out peer.Entries,
	err error) {
	sv, err := p.served(id)
	if err != nil {
		return out, err
	}
	have, err := sv.Log().ReadRange(group.IndexRange{First: first, Last: last}, uint64(bytesMax))
	if err != nil {
		return out, notHereAnyMore(err)
	}
	return peer.Entries{Entries: have.Entries, Through: have.Through, Applied: have.Applied}, nil
}

func (p *peers) Blob(_ context.Context, id uuid.UUID, encoded []byte) (peer.File, int64, error) {
	sv, err := p.served(id)
	if err != nil {
		return nil, 0, err
	}
	ref, err := format.DecodeBlobRef(encoded)
	if err != nil {
		return nil, 0, err
	}
	blob, err := sv.Log().OpenBlob(ref)
	if err != nil {
		return nil, 0, notHereAnyMore(err)
	}
	return blob, ref.Size, nil
}

func (p *peers) Transport(g *replicas.Replica) replica.Transport {
	return p.hub.Transport(g.UUID, g.Route)
}

func (p *peers) FetchBlobs(ctx context.Context, g *replicas.Replica, log *group.Log, from uint64,
	refs []format.BlobRef) error {
	shard, ok := g.Route(from)
	if !ok {
		return fmt.Errorf("group %s: nobody says on which shard member %x is", g.Name, from)
	}
	for _, ref := range refs {
		if err := p.fetchBlob(ctx, g, log, shard, ref); err != nil {
			return err
		}
	}
	return nil
}

func (p *peers) fetchBlob(ctx context.Context, g *replicas.Replica, log *group.Log, shard string,
	ref format.BlobRef) (err error) {
	if err := p.admit(ctx, ref.Size); err != nil {
		return err
	}
	w, err := log.BlobWriter(ref)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := p.hub.Fetcher(shard).Blob(ctx, g.UUID, ref.Encode(), 0, ref.Size, w); err != nil {
		return err
	}
	_, err = w.Commit()
	return err
}
