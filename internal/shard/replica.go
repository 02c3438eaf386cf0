package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/quota"
	"sheaf.dev/sheaf/internal/replica"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/follow"
	"sheaf.dev/sheaf/internal/shard/member"
)

// groupReplica is a group's replica on this volume, from the moment that its folder is found or made.
type groupReplica struct {
	follow.Replica

	progress group.Progress
	// copying is how far its files are that come from another shard; nil: none come.
	copying atomic.Pointer[copying]
	// served is nil while the group does not serve.
	served atomic.Pointer[served]
	// changing is held while what is served is stopped or replaced.
	changing sync.Mutex

	// Of lead alone.
	changedAt time.Time // of the last membership change asked for here
	leadTerm  uint64    // in which this shard led it last
	leadSince time.Time // when that was seen
	come      []string  // wanted shards that are registered and hold no member, and their volumes, as the leader saw them last
	comeSince time.Time // when that was seen first

	// Guarded by Shard.mu.

	need   group.Need // zero: it was not planned, or could not be
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

// served is what a call needs of a group that serves.
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
	raftID, err := s.raftIDOf(g, log)
	if err != nil {
		return err
	}
	options := replica.Options{
		Log:              log,
		Committer:        s.committer,
		RaftID:           raftID,
		InFlightBytesMax: s.cfg.Limits.ReplicaBytesInFlightMax,
		Logger:           s.logger.With("group", g.Name),
		Admit:            s.admit,
		NoRoom:           func() { s.compactor.noRoom(0) },
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

// acceptLoss declares the damage of a group lost. Its indexes jump ahead, so its node starts anew on them; calls that
// come meanwhile answer GROUP_LOADING.
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

// raftIDOf is the Raft id of the incarnation in a folder: that of its replica file, and where there is none that of the
// sole voter.
func (s *Shard) raftIDOf(g *groupReplica, log *group.Log) (uint64, error) {
	f, found, err := format.ReadReplicaFile(s.cfg.FS, g.Dir)
	switch {
	case err != nil:
		return 0, err
	case found:
		return f.RaftID, s.checkReplicaFile(g, f)
	}
	_, conf, err := log.InitialState()
	if err != nil {
		return 0, err
	}
	if len(conf.GetVoters()) != 1 || len(conf.GetVotersOutgoing()) > 0 {
		return 0, fmt.Errorf("the group's voters are %x, and no replica file says which of them this is: the folder is not whole", conf.GetVoters())
	}
	return conf.GetVoters()[0], nil
}

// checkReplicaFile says why a replica must not run here.
func (s *Shard) checkReplicaFile(g *groupReplica, f format.ReplicaFile) error {
	here := s.volume.Superblock().Volume
	switch {
	case f.Store != s.store || f.Group != g.UUID:
		return fmt.Errorf("the replica file is of group %s of store %s", f.Group, f.Store)
	case f.Volume != here:
		return fmt.Errorf("the replica was made on volume %s, this is volume %s: a copy never runs", f.Volume, here)
	}
	return nil
}

func (s *Shard) replicaFile(g *groupReplica, raftID uint64) format.ReplicaFile {
	return format.ReplicaFile{RaftID: raftID, Volume: s.volume.Superblock().Volume, Store: s.store, Group: g.UUID}
}

// admit is asked before each write.
func (s *Shard) admit(bytes int64, deletes bool) error {
	if err := s.volume.Admit(bytes, deletes); err != nil {
		return err
	}
	if deletes {
		return nil
	}
	return s.budget.admit(writeMemory(s.cfg.Residency, bytes))
}

func (s *Shard) logOptions(g *groupReplica) group.Options {
	return group.Options{
		FS:           s.cfg.FS,
		Dir:          g.Dir,
		Identity:     format.Identity{Store: s.store, Group: g.UUID, Name: g.Name},
		Residency:    s.cfg.Residency,
		SegmentBytes: s.cfg.SegmentBytes,
		Retention:    s.cfg.Retention,
		Budget:       &s.budget,
		Spare:        s.volume.Spare,
		Loader:       s.loader,
		Journal:      s.journal,
		Sealed:       func() { s.compactor.noteSealed(g.Name) },
		Logger:       s.logger.With("group", g.Name),
		UnsafeScan:   s.unsafe(unsafeScan),
	}
}

// close stops serving the group. Calls under way get STOPPING.
func (g *groupReplica) close(ctx context.Context, hints bool) error {
	g.changing.Lock()
	defer g.changing.Unlock()
	sv := g.served.Swap(nil)
	if sv == nil {
		return nil
	}
	if err := sv.replica.Stop(ctx); err != nil {
		// What was in flight is cut: an orderly close would wait for it.
		return errors.Join(err, sv.log.Close(false))
	}
	return sv.log.Close(hints)
}

// unavailable says why the group does not serve on the shard of this name. Called with Shard.mu held.
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
