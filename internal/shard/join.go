package shard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/group/transfer"
	"sheaf.dev/sheaf/internal/peer"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
)

// A replica that joins, and one that is too far behind, take the files of another member over: they are gathered beside
// what is there, checked, and swapped in at once.

const (
	installsAtOnce = 16                    // who sends bounds the large ones
	installFirst   = 50 * time.Millisecond // pause between tries
	installBusy    = 250 * time.Millisecond
	installMax     = 5 * time.Second
)

// membersHere are the members of a group on this shard and volume: usually one.
func (s *Shard) membersHere(state placement.Group) []placement.Member {
	return member.Here(state, s.cfg.Name, s.volume.Superblock().Volume)
}

// replacedMembers counts the members of a group whose shard is registered with another volume than theirs: those are
// gone.
func replacedMembers(view placement.View, state placement.Group) (n int64) {
	for _, m := range state.Members {
		if shard, registered := view.Shards[m.Shard]; registered && shard.VolumeUUID != m.VolumeUUID {
			n++
		}
	}
	return n
}

// spend notes the replicas that etcd names here at the start, before anybody can give the shard a new one: an earlier
// process may have begun them. What was begun, the volume remembers the view of: no earlier one is followed.
func (s *Shard) spend(view placement.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, state := range view.Groups {
		for _, m := range s.membersHere(state) {
			s.spent[m.RaftID] = true
		}
	}
}

// beginOne makes the folder of a replica that is to join. What is in its way is no member any more, or never was one
// here.
func (s *Shard) beginOne(state placement.Group) error {
	s.mu.Lock()
	before := s.groups[state.UUID]
	s.mu.Unlock()
	if before != nil {
		if err := s.toTrash(before, before.raftID); err != nil {
			return err
		}
	}
	return s.beginJoin(state, s.membersHere(state)[0].RaftID)
}

// beginJoin makes the folder of a replica that etcd wants here.
func (s *Shard) beginJoin(state placement.Group, raftID uint64) error {
	if err := s.admitSoon(0); err != nil {
		return err
	}
	g := &groupReplica{
		name: state.Name, uuid: state.UUID, dir: s.volume.GroupDir(state.UUID), phase: member.Joining, raftID: raftID,
	}
	g.learn(state.Members)
	file := s.replicaFile(g, raftID)
	file.Joining = true
	if err := format.WriteReplicaFile(s.cfg.FS, g.dir, file); err != nil {
		return err
	}
	s.mu.Lock()
	s.groups[g.uuid], s.spent[raftID] = g, true // the reconcile that follows publishes it
	s.mu.Unlock()
	return nil
}

// beginFetch makes the context of an install: of a replica that joins, of a torn one, or of one that is installed anew.
// Called with Shard.mu held.
func (g *groupReplica) beginFetch(ctx context.Context) {
	g.fetch, g.stopFetch = context.WithCancel(ctx)
	g.copying.Store(&copying{now: time.Now})
}

// isFetching tells whether an install is under way; stopFetch ends it. Called with Shard.mu held.
func (g *groupReplica) isFetching() bool { return g.stopFetch != nil }

// endFetch is the end of what beginFetch began: what waited for it goes on.
func (s *Shard) endFetch(g *groupReplica) {
	s.mu.Lock()
	g.stopFetch()
	g.fetch, g.stopFetch = nil, nil
	torn := g.phase.Torn()
	s.mu.Unlock()
	g.copying.Store(nil)
	if torn {
		s.nudge()
	}
}

// joinGroup installs a replica that has nothing yet, and serves it.
func (s *Shard) joinGroup(g *groupReplica) {
	defer s.endFetch(g)
	s.mu.Lock()
	ctx := g.fetch
	s.mu.Unlock()
	if !s.takeOver(ctx, g, "joining group "+g.name, nil) {
		return
	}
	s.mu.Lock()
	s.happens(g, member.Installed)
	s.mu.Unlock()
	s.logger.Info("a replica was installed", "group", g.name)
	s.loadOne(s.ctx, g, nil)
}

// takeOver installs a replica that does not run from another member, again and again until it is done. False: etcd does
// not name it any more, its context has ended, or giveUp, where that is not nil, said so of an error.
func (s *Shard) takeOver(ctx context.Context, g *groupReplica, what string, giveUp func(state placement.Group, from string, err error) bool) bool {
	defer s.problems.note(what, nil)
	for delay := installFirst; ; delay = min(2*delay, installMax) {
		state, wanted := s.stateOf(g)
		if !wanted || !slices.ContainsFunc(s.membersHere(state.Group), func(m placement.Member) bool { return m.RaftID == g.raftID }) {
			return false // follow sees to it
		}
		from, err := s.fetchFrom(g, state.Group)
		if err == nil {
			err = s.compactor.withRoom(ctx, func() error { return s.install(ctx, g, from, nil) })
		}
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil, giveUp != nil && giveUp(state.Group, from, err):
			return false
		case errors.Is(err, peer.ErrBusy):
			delay = min(delay, installBusy) // its turn comes
		case !errors.Is(err, peer.ErrNotHere):
			s.problems.note(what, err)
		}
		select {
		case <-time.After(delay/2 + rand.N(delay)): //nolint:gosec // jitter
		case <-ctx.Done():
			return false
		}
	}
}

// fetchFrom chooses the shard to install from: the leader, else another voter.
func (s *Shard) fetchFrom(g *groupReplica, state placement.Group) (string, error) {
	if _, ok := s.neighbours.address(state.Leader); ok && state.Leader != s.cfg.Name {
		return state.Leader, nil
	}
	for _, m := range state.Members {
		if _, ok := s.neighbours.address(m.Shard); ok && m.Role == placement.Voter && m.Shard != s.cfg.Name {
			return m.Shard, nil
		}
	}
	return "", fmt.Errorf("group %s: no member is known that it could be fetched from", g.name)
}

// install fetches the files of a group from a shard and swaps them in. Before that it calls ready, where that is not
// nil.
func (s *Shard) install(ctx context.Context, g *groupReplica, from string, ready func() error) error {
	select {
	case s.installs <- struct{}{}:
		defer func() { <-s.installs }()
	case <-ctx.Done():
		return ctx.Err()
	}
	sink := &installSink{
		ctx: ctx, opts: s.logOptions(g), replica: s.replicaFile(g, g.raftID), missing: map[string]transfer.File{},
		from: from, copying: g.copying.Load(),
	}
	defer sink.copying.waits()
	if err := s.hub.Fetcher(from).Group(ctx, g.uuid, sink); err != nil {
		return err
	}
	if ready != nil {
		if err := ready(); err != nil {
			return err
		}
	}
	defer s.tookOver.Add(1)
	return sink.install.Finish(ctx)
}

// installSink is a peer.Sink.
type installSink struct {
	ctx     context.Context
	opts    group.Options
	replica format.ReplicaFile
	install *transfer.Install
	missing map[string]transfer.File // as last told

	from            string // shard
	copying         *copying
	segments, total int64 // bytes
}

func (i *installSink) Describe(d peer.Description) (err error) {
	if i.install, err = transfer.NewInstall(i.ctx, i.opts.ForInstall(), i.replica, d.Manifest); err != nil {
		return err
	}
	i.total = d.Bytes
	if m, _, err := format.DecodeManifest(d.Manifest); err == nil { // NewInstall has taken it
		for _, segment := range m.Segments {
			i.segments += segment.Bytes
		}
	}
	i.copying.begin(i.from, i.total)
	return nil
}

func (i *installSink) Wanted() ([]peer.FileRange, error) {
	missing := i.install.Missing()
	i.copying.have(haveBytes(missing, i.segments, i.total))
	wanted := make([]peer.FileRange, 0, len(missing))
	clear(i.missing)
	for _, f := range missing {
		i.missing[f.Name] = f
		wanted = append(wanted, peer.FileRange{Name: f.Name, Offset: f.Have, Bytes: f.Bytes})
	}
	return wanted, nil
}

func (i *installSink) Create(r peer.FileRange) (peer.SinkFile, error) {
	file, err := i.install.File(i.missing[r.Name])
	if err != nil {
		return nil, err
	}
	return countedFile{file, i.copying}, nil
}

// installAgain brings a replica up to date whose leader has compacted what it needs.
func (s *Shard) installAgain(ctx context.Context, g *groupReplica, from uint64) {
	s.mu.Lock()
	sv := g.served.Load()
	if g.isFetching() || sv == nil {
		s.mu.Unlock()
		return
	}
	g.beginFetch(ctx)
	fetch := g.fetch
	s.mu.Unlock()
	defer s.endFetch(g)
	shard, ok := g.route(from)
	if !ok {
		return
	}
	s.logger.Warn("the replica is too far behind: it is installed anew", "group", g.name, "from", shard)
	stopped := false
	err := s.install(fetch, g, shard, func() (err error) {
		stopped, err = s.pause(ctx, g, sv)
		return err
	})
	if stopped {
		s.loadOne(ctx, g, nil)
		g.changing.Unlock()
	}
	if fetch.Err() != nil { // it stops, or has left its group meanwhile
		return
	}
	if !errors.Is(err, peer.ErrBusy) && !errors.Is(err, peer.ErrNotHere) {
		s.problems.note("installing group "+g.name, err)
	}
	if err != nil {
		select { // the leader offers it again at once
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	s.installed(g, sv.raftID, from, err == nil)
}

// pause closes a group that serves, and lets nothing else change it: where it was closed, the caller unlocks changing.
func (s *Shard) pause(ctx context.Context, g *groupReplica, sv *served) (closed bool, err error) {
	g.changing.Lock()
	if !g.served.CompareAndSwap(sv, nil) {
		g.changing.Unlock()
		return false, errors.New("the replica was closed meanwhile")
	}
	s.mu.Lock()
	s.happens(g, member.Paused)
	s.mu.Unlock()
	s.setHealth(g, false)
	over, cancel := context.WithCancel(ctx)
	cancel() // it does not lead: nothing of a caller is on its way
	if err := sv.replica.Stop(over); err != nil {
		s.logger.Debug("stopping to install", "group", g.name, "error", err)
	}
	return true, sv.log.Close(false)
}

// isJoining tells whether the replica of a group here has no data yet.
func (s *Shard) isJoining(r *routes, name string) bool {
	if r == nil || r.byName[name] == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.byName[name].joining()
}
