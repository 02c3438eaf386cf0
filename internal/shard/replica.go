package shard

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// serve starts the node of a loaded group.
func (s *Shard) serve(g *replicas.Replica, log *group.Log) error {
	raftID, err := s.volume.RaftIDOf(g.UUID, log)
	if err != nil {
		return err
	}
	options := replica.Options{
		Log:              log,
		Committer:        s.committer,
		RaftID:           raftID,
		InFlightBytesMax: s.cfg.Limits.ReplicaBytesInFlightMax,
		Logger:           s.logger.With("group", g.Name),
		Admit:            s.volume.AdmitWrite,
		NoSpace:          func() { s.compactor.AskForSpace(0) },
		Transport:        s.peers.hub.Transport(g.UUID, g.Route),
		OnSnapshot:       func(_, _, from uint64) { g.AskFiles(from) },
		FetchBlobs: func(ctx context.Context, from uint64, refs []format.BlobRef) error {
			return s.peers.fetchBlobs(ctx, g, log, from, refs)
		},
		OnChange: func() {
			g.AskLook()
			s.quotas.Wake()
		},
		Quiet: true,
		Lease: !s.cfg.NoReadLease,
		Probe: s.cfg.probe,
		Off:   s.cfg.off,
	}
	if copies := s.meta.Copies; copies > 1 {
		options.Forming = func(conf *raftpb.ConfState) bool { return len(conf.GetVoters()) < copies }
	}
	node, err := replica.Start(options)
	if err != nil {
		return err
	}
	sv := g.Serve(log, node, raftID, s.quotas.Group(g.Name))
	s.peers.tell(g, sv)
	g.AskLook()
	return nil
}

// acceptLoss declares the damage of a group lost. The group's indexes jump ahead, so its node restarts on them. Calls
// meanwhile get GROUP_LOADING.
func (s *Shard) acceptLoss(ctx context.Context, g *replicas.Replica) ([]format.Damage, error) {
	if s.stopping.Load() {
		return nil, answer.Stopping()
	}
	sv := g.TakeOut(nil)
	if sv == nil {
		return nil, answer.Stopping()
	}
	defer g.EndChange()
	if err := sv.Replica().Stop(ctx); err != nil {
		s.logger.Warn("stopping to accept a loss", "group", g.Name, "error", err)
	}
	log, damages, err := sv.Log().AcceptLoss(ctx)
	again := errors.New("its log could not be loaded again")
	if log != nil {
		if again = s.serve(g, log); again != nil {
			again = errors.Join(again, log.Close(false))
		}
	}
	if again != nil {
		err = errors.Join(err, again)
		g.Fail(err)
		s.setHealth(g, false)
	}
	return damages, err
}

// unavailable returns why a group does not serve on the named shard.
func unavailable(g *replicas.Replica, shard string, eta time.Duration) error {
	switch known := g.State(); {
	case known.Phase == member.Lost:
		return answer.Lost(g.Name, known.Err)
	case known.Phase.Broken():
		return answer.Failed(g.Name, shard, known.Err)
	default:
		return answer.Loading(g.Name, eta)
	}
}
