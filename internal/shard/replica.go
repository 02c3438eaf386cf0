package shard

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/follow"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// groupReplica is a group's replica on this volume, from the moment that its folder is found or made.
type groupReplica struct {
	follow.Replica

	progress group.Progress
	// copying is the progress of copying the replica's files from another shard. It is nil if no copy is in progress.
	copying atomic.Pointer[copying]
	// served is nil while the group does not serve.
	served atomic.Pointer[served]
	// changing is held while the node of the group is stopped or replaced.
	changing longlock.Mutex
	deleting atomic.Bool // deleteGroup or resume is in progress

	// Used only by lead.
	changedAt time.Time // time of the last membership change asked for here
	leadTerm  uint64    // term in which this shard last led the group
	leadSince time.Time // when leadTerm was first seen
	// come lists the wanted shards that are registered and hold no member, with their volumes, as the leader last saw
	// them.
	come      []string
	comeSince time.Time // when come was first seen

	// Guarded by Shard.mu.

	need   group.Need // zero: the load was not planned, or could not be
	report group.Report
}

// Node implements follow.Owned.
func (g *groupReplica) Node() (follow.Node, bool) {
	sv := g.served.Load()
	return sv, sv != nil
}

// BeginFetch implements follow.Owned.
func (g *groupReplica) BeginFetch(ctx context.Context) {
	g.Replica.BeginFetch(ctx)
	g.copying.Store(&copying{now: time.Now})
}

// served is what a call needs of a served group.
type served struct {
	shard   *Shard
	group   *groupReplica
	log     *group.Log
	replica *replica.Replica
	raftID  uint64
	tenant  *quota.Of
}

// ConfIndex implements follow.Node.
func (sv *served) ConfIndex() uint64 { return sv.log.ConfIndex() }

// Conf implements follow.Node.
func (sv *served) Conf() *raftpb.ConfState { return sv.replica.Members().Conf }

// serve starts the node of a loaded group.
func (s *Shard) serve(g *groupReplica, log *group.Log) error {
	raftID, err := s.volume.raftIDOf(g, log)
	if err != nil {
		return err
	}
	options := replica.Options{
		Log:              log,
		Committer:        s.committer,
		RaftID:           raftID,
		InFlightBytesMax: s.cfg.Limits.ReplicaBytesInFlightMax,
		Logger:           s.logger.With("group", g.Name),
		Admit:            s.volume.admitWrite,
		NoSpace:          func() { s.compactor.askForSpace(0) },
		Transport:        s.peers.hub.Transport(g.UUID, g.Route),
		OnSnapshot:       func(_, _, from uint64) { s.steerer.catchUp(g, from) },
		FetchBlobs: func(ctx context.Context, from uint64, refs []format.BlobRef) error {
			return s.peers.fetchBlobs(ctx, g, log, from, refs)
		},
		OnChange: func() {
			s.steerer.ask(g)
			s.quotas.Kick()
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
	s.mu.Lock()
	g.RaftID = raftID
	s.mu.Unlock()
	sv := &served{shard: s, group: g, log: log, replica: node, raftID: raftID, tenant: s.quotas.Group(g.Name)}
	g.served.Store(sv)
	s.peers.tell(g, sv)
	s.steerer.ask(g)
	return nil
}

// acceptLoss declares the damage of a group lost. The group's indexes jump ahead, so its node restarts on them. Calls
// meanwhile get GROUP_LOADING.
func (s *Shard) acceptLoss(ctx context.Context, g *groupReplica) ([]format.Damage, error) {
	g.changing.Lock()
	defer g.changing.Unlock()
	sv := g.served.Load()
	if sv == nil || s.stopping.Load() {
		return nil, answer.Stopping()
	}
	g.served.Store(nil)
	if err := sv.replica.Stop(ctx); err != nil {
		s.logger.Warn("stopping to accept a loss", "group", g.Name, "error", err)
	}
	log, damages, err := sv.log.AcceptLoss(ctx)
	again := errors.New("its log could not be loaded again")
	if log != nil {
		if again = s.serve(g, log); again != nil {
			again = errors.Join(again, log.Close(false))
		}
	}
	if again != nil {
		err = errors.Join(err, again)
		s.mu.Lock()
		g.Err = err
		g.Happens(member.Failing, s.logger)
		s.mu.Unlock()
		s.setHealth(g, false)
	}
	return damages, err
}

// close stops serving the group. Calls in progress get STOPPING.
func (g *groupReplica) close(ctx context.Context, hints bool) error {
	g.changing.Lock()
	defer g.changing.Unlock()
	sv := g.served.Swap(nil)
	if sv == nil {
		return nil
	}
	if err := sv.replica.Stop(ctx); err != nil {
		// Writes in flight are abandoned: an orderly close would wait for them.
		return errors.Join(err, sv.log.Close(false))
	}
	return sv.log.Close(hints)
}

// unavailable returns why the group does not serve on the named shard. Called with Shard.mu held.
func (g *groupReplica) unavailable(shard string, eta time.Duration) error {
	switch {
	case g.Phase == member.Lost:
		return answer.Lost(g.Name, g.Err)
	case g.Phase.Broken():
		return answer.Failed(g.Name, shard, g.Err)
	default:
		return answer.Loading(g.Name, eta)
	}
}
