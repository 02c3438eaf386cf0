package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/replica"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/member"
)

// groupReplica is a group's replica on this volume, from the moment that its folder is found or made.
type groupReplica struct {
	name string
	uuid uuid.UUID
	dir  string

	progress group.Progress
	// copying is how far its files are that come from another shard; nil: none come.
	copying atomic.Pointer[copying]
	// served is nil while the group does not serve.
	served atomic.Pointer[served]
	// changing is held while what is served is stopped or replaced.
	changing sync.Mutex

	// known is every member that etcd ever named, by Raft id: see members.
	known atomic.Pointer[map[uint64]placement.Member]

	// Of lead alone.
	changedAt time.Time // of the last membership change asked for here
	leadTerm  uint64    // in which this shard led it last
	leadSince time.Time // when that was seen
	come      []string  // wanted shards that are registered and hold no member, and their volumes, as the leader saw them last
	comeSince time.Time // when that was seen first

	// Guarded by Shard.mu.

	phase    member.Phase    // how far it is: after it is found or made, Shard.happens alone changes it
	err      error           // why phase is one that is broken
	standing member.Standing // what etcd says of it: a stray is not served
	// What the folder is. Each may be so in any phase.
	foreign    bool   // it was made on another volume, so that it must not run
	exchanged  string // why it is another group's than its manifest's, as fsck.Exchanged says; empty: it is not
	unreadable bool   // it has no manifest that can be read
	// What was said to etcd, whatever etcd says since.
	untold    bool       // this process made it for a new group, and etcd never said that it is here: it has never served
	confirmed uint64     // the epoch at which etcd was told that the group made here is here: what an older view says of it is late
	need      group.Need // zero: it was not planned, or could not be
	report    group.Report
	raftID    uint64            // of this incarnation; 0: not known before it is loaded
	confIndex uint64            // of the membership in the manifest that was found
	conf      *raftpb.ConfState // that membership
	fetch     context.Context   // of an install that is under way, in whatever phase; nil: none is
	stopFetch context.CancelFunc
	// seen is what was there when it was looked at last: the revisions of the group and its target, and how many of its
	// members' shards have another volume now.
	seen [3]int64
	// stored is the group as this shard wrote it to etcd last: views may be older.
	stored placement.Group
}

// served is what a call needs of a group that serves.
type served struct {
	shard   *Shard
	group   *groupReplica
	log     *group.Log
	replica *replica.Replica
	raftID  uint64
}

// open loads the group's log and starts its node. It returns with g.served set, or an error. durable as in
// group.Options.
func (s *Shard) open(ctx context.Context, g *groupReplica, durable func() error) (report group.Report, err error) {
	// A group that cannot be loaded must not take its neighbours along.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	options := s.logOptions(g)
	options.Durable = durable
	log, report, err := group.Load(ctx, options, &g.progress)
	if err != nil {
		return report, err
	}
	if err := s.serve(g, log); err != nil {
		return report, errors.Join(err, log.Close(false))
	}
	return report, nil
}

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
		Logger:           s.logger.With("group", g.name),
		Admit:            s.admit,
		NoRoom:           func() { s.compactor.noRoom(0) },
		Transport:        s.hub.Transport(g.uuid, g.route),
		OnSnapshot:       func(_, _, from uint64) { s.catchUp(g, from) },
		FetchBlobs: func(ctx context.Context, from uint64, refs []format.BlobRef) error {
			return s.fetchBlobs(ctx, g, log, from, refs)
		},
		OnChange: func() { s.steering.ask(g) },
		Quiet:    true,
		Lease:    !s.cfg.NoReadLease,
		Probe:    s.cfg.probe,
	}
	if copies := s.meta.Copies; copies > 1 {
		options.Forming = func(conf *raftpb.ConfState) bool { return len(conf.GetVoters()) < copies }
	}
	node, err := replica.Start(options)
	if err != nil {
		return err
	}
	s.mu.Lock()
	g.raftID = raftID
	s.mu.Unlock()
	sv := &served{shard: s, group: g, log: log, replica: node, raftID: raftID}
	g.served.Store(sv)
	s.tellPeers(g, sv)
	s.steering.ask(g)
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
		s.logger.Warn("stopping to accept a loss", "group", g.name, "error", err)
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
		g.err = err
		s.happens(g, member.Failing)
		s.mu.Unlock()
		s.setHealth(g, false)
	}
	return damages, err
}

// raftIDOf is the Raft id of the incarnation in a folder: that of its replica file, and where there is none that of the
// sole voter.
func (s *Shard) raftIDOf(g *groupReplica, log *group.Log) (uint64, error) {
	f, found, err := format.ReadReplicaFile(s.cfg.FS, g.dir)
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
	case f.Store != s.store || f.Group != g.uuid:
		return fmt.Errorf("the replica file is of group %s of store %s", f.Group, f.Store)
	case f.Volume != here:
		return fmt.Errorf("the replica was made on volume %s, this is volume %s: a copy never runs", f.Volume, here)
	}
	return nil
}

func (s *Shard) replicaFile(g *groupReplica, raftID uint64) format.ReplicaFile {
	return format.ReplicaFile{RaftID: raftID, Volume: s.volume.Superblock().Volume, Store: s.store, Group: g.uuid}
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
		Dir:          g.dir,
		Identity:     format.Identity{Store: s.store, Group: g.uuid, Name: g.name},
		Residency:    s.cfg.Residency,
		SegmentBytes: s.cfg.SegmentBytes,
		Retention:    s.cfg.Retention,
		Budget:       &s.budget,
		Spare:        s.volume.Spare,
		Loader:       s.loader,
		Journal:      s.journal,
		Sealed:       func() { s.compactor.noteSealed(g.name) },
		Logger:       s.logger.With("group", g.name),
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
	case g.phase == member.Lost:
		return answer.Lost(g.name, g.err)
	case g.phase.Broken():
		return answer.Failed(g.name, shard, g.err)
	default:
		return answer.Loading(g.name, eta)
	}
}

// isMember tells whether a group has a member on the shard of this name.
func isMember(g placement.Group, shard string) bool {
	_, ok := memberOf(g, shard)
	return ok
}

// memberOf is the member of a group on the shard of this name.
func memberOf(g placement.Group, shard string) (placement.Member, bool) {
	for _, m := range g.Members {
		if m.Shard == shard {
			return m, true
		}
	}
	return placement.Member{}, false
}
