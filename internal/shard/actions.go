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
	"sheaf.dev/sheaf/internal/shard/trash"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// watcher follows etcd with this package's type of replica.
type watcher = follow.Watcher[*groupReplica]

// newWatcher makes the watcher of the shard.
func (s *Shard) newWatcher() *watcher {
	return follow.New(follow.Options[*groupReplica]{
		Shard: s.cfg.Name, Store: func() uuid.UUID { return s.volume.store }, Meta: func() placement.Meta { return s.meta },
		Volume:  func() *volume.Volume { return s.volume.Volume },
		Facts:   func() (volume.Facts, error) { return volume.ReadFacts(s.cfg.FS, s.cfg.Dir) },
		Etcd:    s.cfg.Placement,
		Actions: actions{s},
		Ask: func(ctx context.Context, shard placement.Shard) (rescue.FoundVolume, error) {
			return survey.Volume(ctx, shard.Address, s.cfg.speaksTo(shard.Name), s.cfg.dials()...)
		},
		Background: s.ctx, Lock: &s.mu, Replicas: s.groups, Problems: &s.problems, Logger: s.logger,
		RememberQuiet: s.cfg.rememberQuiet, Adopt: s.cfg.Wanted.Adopt, Off: s.cfg.off,
	})
}

// actions implements follow.Actions for a shard.
type actions struct{ s *Shard }

var _ follow.Actions[*groupReplica] = actions{}

// LoadBegun implements follow.Actions.
func (h actions) LoadBegun() bool { return h.s.loading.begun() }

// Missing implements follow.Actions.
func (h actions) Missing(state placement.Group) *groupReplica { return h.s.volume.newReplica(state) }

// Look implements follow.Actions.
func (h actions) Look(g *groupReplica) { h.s.steerer.ask(g) }

// Publish implements follow.Actions.
func (h actions) Publish() { h.s.publish() }

// Connect implements follow.Actions.
func (h actions) Connect(shards []string) { h.s.peers.hub.SetPeers(shards) }

// Load implements follow.Actions.
func (h actions) Load(g *groupReplica) { h.s.wait.Go(func() { h.s.loading.loadOne(h.s.ctx, g, nil) }) }

// Join implements follow.Actions.
func (h actions) Join(g *groupReplica) { h.s.wait.Go(func() { h.s.installer.join(g) }) }

// Reinstall implements follow.Actions.
func (h actions) Reinstall(g *groupReplica) { h.s.wait.Go(func() { h.s.installer.reinstall(g) }) }

// LoadNow implements follow.Actions.
func (h actions) LoadNow(ctx context.Context, g *groupReplica) { h.s.loading.loadOne(ctx, g, nil) }

// Close implements follow.Actions.
func (h actions) Close(ctx context.Context, g *groupReplica) error {
	h.s.setHealth(g, false)
	return g.close(ctx, true)
}

// Trash implements follow.Actions.
func (h actions) Trash(ctx context.Context, g *groupReplica) error {
	s := h.s
	s.setHealth(g, false)
	if err := g.close(ctx, false); err != nil {
		s.logger.Warn("closing a replica that has left its group", "group", g.Name, "error", err)
	}
	s.mu.Lock()
	raftID, joining := g.RaftID, g.joining()
	s.mu.Unlock()
	if joining {
		// The content of a replica that is still joining does not count.
		if err := trash.RemoveAll(s.cfg.FS, g.Dir); err != nil {
			return fmt.Errorf("removing what it gathered: %w", err)
		}
	} else if err := s.trash.Put(g.Dir, g.UUID, raftID); err != nil {
		return err
	}
	s.mu.Lock()
	if s.groups[g.UUID] == g {
		delete(s.groups, g.UUID)
	}
	s.publish()
	s.mu.Unlock()
	s.steerer.moved(g)
	s.logger.Info("a replica has left its group", "group", g.Name, "raft_id", raftID, "joining", joining)
	return nil
}

// Create implements follow.Actions.
func (h actions) Create(ctx context.Context, state placement.Group) error {
	s := h.s
	if err := s.compactor.admitSoon(0); err != nil {
		return err
	}
	g := s.volume.newReplica(state)
	g.Phase, g.Standing, g.NeverReported = member.Loading, member.Standing{Reason: member.Unconfirmed}, true
	if err := group.Create(s.volume.logOptions(g), &raftpb.ConfState{Voters: []uint64{format.NewRaftID()}}); err != nil {
		return err
	}
	s.mu.Lock()
	s.groups[g.UUID] = g
	s.publish()
	s.mu.Unlock()
	s.loading.loadOne(ctx, g, nil)
	return nil
}

// MakeFolder implements follow.Actions. A folder in the way of the new one belongs to a replica that is no longer a
// member, or never was one here.
func (h actions) MakeFolder(state placement.Group) error {
	s := h.s
	s.mu.Lock()
	before := s.groups[state.UUID]
	s.mu.Unlock()
	if before != nil {
		if err := s.trash.Put(before.Dir, before.UUID, before.RaftID); err != nil {
			return err
		}
	}
	if err := s.compactor.admitSoon(0); err != nil {
		return err
	}
	g := s.volume.newReplica(state)
	g.Phase, g.RaftID = member.Joining, s.watcher.Here(state)[0].RaftID
	g.Learn(state.Members)
	file := s.volume.replicaFile(g, g.RaftID)
	file.Joining = true
	if err := format.WriteReplicaFile(s.cfg.FS, g.Dir, file); err != nil {
		return err
	}
	s.mu.Lock()
	s.groups[g.UUID], s.watcher.Retired[g.RaftID] = g, true // the following reconcile publishes it
	s.mu.Unlock()
	return nil
}

// newTrash makes the trash of the volume.
func (s *Shard) newTrash() *trash.Bin {
	return &trash.Bin{Options: trash.Options{
		FS: s.cfg.FS, Dir: func() string {
			return s.volume.TrashDir()
		}, Delay: s.cfg.TrashDelay, Held: s.watcher.IsHeld, Coming: s.isComing,
		Fuller: s.compactor.moreToFree, Freed: s.compactor.freed, Problem: s.problems.Note, Logger: s.logger,
	}}
}

// isComing reports whether this shard is to get another copy of a group, besides the one in the trash, and that copy is
// not complete.
func (s *Shard) isComing(id uuid.UUID) bool {
	s.mu.Lock()
	wanted := false
	for _, state := range s.watcher.View.Groups {
		wanted = wanted || state.UUID == id && len(s.watcher.Here(state)) > 0
	}
	var sv *served
	if g := s.groups[id]; g != nil {
		sv = g.served.Load()
	}
	s.mu.Unlock()
	return wanted && (sv == nil || sv.replica.Status().Learner)
}
