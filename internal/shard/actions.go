package shard

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/placement/survey"
	"sheaf.dev/sheaf/internal/shard/follow"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/shard/trash"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// newReplicas creates the set of the shard's replicas.
func (s *Shard) newReplicas() *replicas.Set {
	return replicas.New(replicas.Options{
		Shard: s.cfg.Name, Volume: func() uuid.UUID { return s.volume.Superblock().Volume },
		Meta: func() placement.Meta { return s.meta }, Background: s.ctx, Logger: s.logger,
		Off: s.cfg.off,
	})
}

// newWatcher creates the shard's Watcher.
func (s *Shard) newWatcher() *follow.Watcher {
	return follow.New(follow.Options{
		Store:   func() uuid.UUID { return s.volume.Store },
		Volume:  func() *volume.Volume { return s.volume.Volume },
		Facts:   func() (volume.Facts, error) { return volume.ReadFacts(s.cfg.FS, s.cfg.Dir) },
		Etcd:    s.cfg.Placement,
		Actions: actions{s},
		Ask: func(ctx context.Context, shard placement.Shard) (rescue.FoundVolume, error) {
			return survey.Volume(ctx, shard.Address, s.cfg.speaksTo(shard.Name), s.cfg.dials()...)
		},
		Replicas: s.replicas, Problems: s.problems, Logger: s.logger,
		RememberQuiet: s.cfg.rememberQuiet, Adopt: s.cfg.Wanted.Adopt,
	})
}

// actions implements follow.Actions for a shard.
type actions struct{ s *Shard }

var _ follow.Actions = actions{}

func (h actions) Connect(shards []string) { h.s.peers.hub.SetPeers(shards) }

func (h actions) Load(g *replicas.Replica) {
	h.s.wait.Go(func() { h.s.loading.Load(h.s.ctx, g) })
}

func (h actions) Join(g *replicas.Replica) { h.s.wait.Go(func() { h.s.installer.join(g) }) }

func (h actions) Reinstall(g *replicas.Replica) { h.s.wait.Go(func() { h.s.installer.reinstall(g) }) }

func (h actions) LoadNow(ctx context.Context, g *replicas.Replica) { h.s.loading.Load(ctx, g) }

func (h actions) Close(ctx context.Context, g *replicas.Replica) error {
	h.s.setHealth(g, false)
	return g.Close(ctx, true)
}

func (h actions) Trash(ctx context.Context, g *replicas.Replica) error {
	s := h.s
	s.setHealth(g, false)
	if err := g.Close(ctx, false); err != nil {
		s.logger.Warn("closing a replica that has left its group", "group", g.Name, "error", err)
	}
	state, dir := g.State(), s.volume.GroupDir(g.UUID)
	joining := state.Phase == member.Joining
	if joining {
		// A replica that is still joining does not have a complete copy, so its files are no longer needed.
		if err := trash.RemoveAll(s.cfg.FS, dir); err != nil {
			return fmt.Errorf("removing what it gathered: %w", err)
		}
	} else if err := s.compactor.Trash.Put(dir, g.UUID, state.RaftID); err != nil {
		return err
	}
	s.replicas.Remove(g)
	g.AskLook() // this makes the Steerer forget the group
	s.logger.Info("a replica has left its group", "group", g.Name, "raft_id", state.RaftID, "joining", joining)
	return nil
}

func (h actions) Create(ctx context.Context, state placement.Group) error {
	s := h.s
	if err := s.compactor.AdmitSoon(0); err != nil {
		return err
	}
	conf := &raftpb.ConfState{Voters: []uint64{format.NewRaftID()}}
	if err := group.Create(s.volume.LogOptions(state.UUID, state.Name), conf); err != nil {
		return err
	}
	g := s.replicas.Add(state.UUID, replicas.State{Replica: member.Replica{Name: state.Name, Phase: member.Loading,
		Standing: member.Standing{Reason: member.Unconfirmed}, NeverReported: true}})
	s.loading.Load(ctx, g)
	return nil
}

// MakeFolder implements follow.Actions. If the folder already exists, its replica has left the group, or was never a
// member on this shard. MakeFolder then moves the folder to the trash.
func (h actions) MakeFolder(state placement.Group) error {
	s := h.s
	if !state.Restoring {
		raftID := s.replicas.Here(state)[0].RaftID
		if err := h.makeFolder(state, s.volume.ReplicaFile(state.UUID, raftID)); err != nil {
			return err
		}
		s.replicas.Begin(state, raftID)
		return nil
	}
	if _, err := s.installer.source(); err != nil {
		return err
	}
	id := format.NewRaftID()
	for s.replicas.IsRetired(id) { // rule 7: an id is never used again on this volume
		id = format.NewRaftID()
	}
	file := s.volume.ReplicaFile(state.UUID, id)
	file.Founder = true
	if err := h.makeFolder(state, file); err != nil {
		return err
	}
	s.replicas.Found(state, file.RaftID)
	return nil
}

func (h actions) makeFolder(state placement.Group, file format.ReplicaFile) error {
	s, dir := h.s, h.s.volume.GroupDir(state.UUID)
	if before := s.replicas.Find(state.UUID); before != nil {
		if err := s.compactor.Trash.Put(dir, state.UUID, before.State().RaftID); err != nil {
			return err
		}
	}
	if err := s.compactor.AdmitSoon(0); err != nil {
		return err
	}
	file.Joining = true
	return format.WriteReplicaFile(s.cfg.FS, dir, file)
}

func (h actions) Settle(g *replicas.Replica) error {
	return h.s.volume.WriteReplicaFile(g.UUID, g.State().RaftID)
}
