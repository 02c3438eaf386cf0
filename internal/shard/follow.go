package shard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/group/fsck"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
)

// findGroups learns which groups have a folder on the volume.
func (s *Shard) findGroups() error {
	ids, err := s.volume.Groups()
	if err != nil {
		return err
	}
	for _, id := range ids {
		s.groups[id] = s.foundGroup(id)
	}
	return nil
}

// foundGroup looks into the folder of a group.
func (s *Shard) foundGroup(id uuid.UUID) *groupReplica {
	g := &groupReplica{uuid: id, dir: s.volume.GroupDir(id)}
	file, found, err := format.ReadReplicaFile(s.cfg.FS, g.dir)
	if err == nil && found {
		g.raftID = file.RaftID
		if err := s.checkReplicaFile(g, file); err != nil {
			g.foreign, g.standing = true, member.Standing{Reason: member.Foreign, Detail: err.Error()}
		}
		if file.Joining {
			g.phase = member.Joining
			return g
		}
	}
	var m *format.Manifest
	if err == nil {
		m, err = format.ReadManifest(s.cfg.FS, g.dir)
	}
	switch {
	case err != nil:
		// The folder's name still says which group it is; etcd may know its name.
		g.phase, g.err, g.unreadable = member.Failed, fmt.Errorf("reading its manifest: %w", err), true
		if found && (errors.Is(err, format.ErrCorrupt) || errors.Is(err, fs.ErrNotExist)) {
			g.phase = member.Torn
			s.metrics.tails.WithLabelValues(tailFound).Inc()
		}
		s.logger.Error("group cannot be read", "uuid", id, "error", err)
		return g
	case m.Identity.Store != s.store || m.Identity.Group != id:
		g.standing = member.Standing{Reason: member.OtherGroup, Detail: fmt.Sprintf("it is group %s of store %s", m.Identity.Group, m.Identity.Store)}
		if g.exchanged = fsck.Exchanged(s.cfg.FS, g.dir); g.exchanged != "" {
			g.standing.Detail = g.exchanged
			s.logger.Error("a folder is not that of its group", "uuid", id, "reason", g.exchanged)
		}
	}
	g.name, g.confIndex, g.conf = m.Identity.Name, m.ConfIndex, m.Conf
	if !found && len(m.Conf.GetVoters()) == 1 {
		g.raftID = m.Conf.GetVoters()[0]
	}
	return g
}

// A view that takes longer than viewCostMax is followed by a pause of at most viewPauseMax.
const (
	viewCostMax  = 10 * time.Millisecond
	viewPauseMax = 100 * time.Millisecond
)

// follow does what views say, one after another, and tries again what failed.
func (s *Shard) follow(ctx context.Context, views <-chan placement.View) {
	again := time.NewTicker(time.Second)
	defer again.Stop()
	unfinished := s.reconcile(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case view, ok := <-views:
			if !ok {
				return
			}
			began := time.Now()
			s.see(view)
			unfinished = s.reconcile(ctx)
			// While very many groups are made, views must not keep a processor busy: the newest one waits a little,
			// those between are left out.
			if cost := time.Since(began); cost > viewCostMax {
				select {
				case <-time.After(min(2*cost, viewPauseMax)):
				case <-ctx.Done():
				}
			}
		case <-s.nudged:
			unfinished = s.reconcile(ctx)
		case <-again.C:
			if unfinished {
				unfinished = s.reconcile(ctx)
			}
		}
	}
}

// reconcile compares the volume with the view. True: something is left to do.
func (s *Shard) reconcile(ctx context.Context) (unfinished bool) {
	s.mu.Lock()
	view := s.view
	todo := s.decide(view)
	s.publish()
	s.forgetDone(todo)
	s.mu.Unlock()
	if todo.acts() && s.remember(view) != nil {
		// An older etcd could not be told from this one later: what may wait does.
		todo = work{load: todo.load, join: todo.join, mend: todo.mend, leave: todo.leave, later: true}
	}

	for _, g := range todo.leave {
		// The files stay: nobody said that the group lives elsewhere.
		s.setHealth(g, false)
		if err := g.close(ctx, true); err != nil {
			s.problems.note("closing group "+g.name, err)
		}
	}
	for _, g := range todo.load {
		s.wait.Go(func() { s.loadOne(ctx, g, nil) })
	}
	for _, g := range todo.join {
		s.wait.Go(func() { s.joinGroup(g) })
	}
	for _, g := range todo.mend {
		s.wait.Go(func() { s.mendTail(g) })
	}
	for _, g := range todo.trash {
		left, err := s.hasLeftNow(ctx, g)
		if err == nil && !left {
			s.problems.note("leaving group "+g.name, nil)
			unfinished = true // the next view says what it is
			continue
		}
		if err == nil {
			err = s.leaveGroup(ctx, g)
		}
		s.problems.note("leaving group "+g.name, err)
		unfinished = unfinished || err != nil || s.isWanted(view, g.name)
	}
	notCreated := s.inParallel(todo.create, func(state placement.Group) error { return s.create(ctx, state) })
	notAdopted := s.inParallel(todo.adopt, func(state placement.Group) error { return s.adopt(ctx, state) })
	notConfessed := s.inParallel(todo.confess, func(state placement.Group) error { return s.confess(ctx, state) })
	notClaimed := s.inParallel(todo.claim, func(state placement.Group) error { return s.claimOne(ctx, state) })
	notBegun := s.inParallel(todo.begin, func(state placement.Group) error { return s.beginOne(state) })
	if len(todo.begin) > 0 && !notBegun {
		return s.reconcile(ctx) || unfinished // which installs them
	}
	return unfinished || notCreated || notAdopted || notConfessed || notClaimed || notBegun || todo.later
}

// isWanted tells whether this shard is to have a copy of a group.
func (s *Shard) isWanted(view placement.View, name string) bool {
	return isMember(view.Groups[name], s.cfg.Name) || isTarget(view, name, s.cfg.Name)
}

// groupProblem is what the problem with making a group, or with telling etcd of it, is known by.
func groupProblem(group string) string { return "group " + group }

// forgetDone takes back what was said of groups for which nothing is left to do: others did it, or it is not wanted any
// more. Called with mu held.
func (s *Shard) forgetDone(todo work) {
	wanted := map[string]bool{}
	for _, state := range slices.Concat(todo.create, todo.adopt, todo.begin, todo.confess, todo.claim) {
		wanted[groupProblem(state.Name)] = true
	}
	s.problems.forget(func(what string) bool { return strings.HasPrefix(what, groupProblem("")) && !wanted[what] })
}

// work is what reconcile has to do.
type work struct {
	create  []placement.Group // targets without members: make the group here
	adopt   []placement.Group // groups made here whose state was not written to etcd
	begin   []placement.Group // a learner of this shard is recorded, and has no folder yet
	confess []placement.Group // this shard is a member without its data
	claim   []placement.Group // a member is here of which etcd does not know where it is
	load    []*groupReplica   // became this shard's after the first load
	join    []*groupReplica   // have a folder, and are to be installed
	mend    []*groupReplica   // are torn, and are to be installed in place
	leave   []*groupReplica   // is served and no longer this shard's
	trash   []*groupReplica   // has left its group
	later   bool              // something waits for what is under way
}

// acts tells whether anything is made or taken away on the word of etcd.
func (w work) acts() bool {
	return len(w.create)+len(w.adopt)+len(w.begin)+len(w.confess)+len(w.claim)+len(w.trash) > 0
}

// decide says what to do, and sets which groups are strays or lost. Called with mu held.
func (s *Shard) decide(view placement.View) work {
	var todo work
	v := s.memberView(view)
	known := make(map[*groupReplica]bool, len(s.groups))
	for name, state := range view.Groups {
		g := s.groups[state.UUID]
		if g != nil {
			known[g] = true
			g.learn(state.Members)
			if g.name == "" {
				g.name = name // its manifest cannot be read, or it has none yet
			}
		}
		s.decideOne(&todo, v, view, state, true, g)
	}
	for _, g := range s.groups {
		if !known[g] {
			s.decideOne(&todo, v, view, placement.Group{}, false, g)
		}
	}
	s.connectPeers()
	return todo
}

// isTarget tells whether a group is to have a copy on a shard.
func isTarget(view placement.View, name, shard string) bool {
	return slices.Contains(view.Targets[name].Shards, shard)
}

// errLater: what is to be done waits for something else here.
var errLater = errors.New("later")

// inParallel does at most 16 at a time; true where one failed.
func (s *Shard) inParallel(groups []placement.Group, do func(placement.Group) error) bool {
	var failed atomic.Bool
	each(slices.Values(groups), 16, func(state placement.Group) {
		err := do(state)
		if errors.Is(err, placement.ErrChanged) || s.ctx.Err() != nil && s.unsafe(unsafeStop) {
			err = nil // the next view says what to do
		}
		if err != nil {
			failed.Store(true)
		}
		// An error in a shard that stops is nobody's problem, and nothing is done all the same.
		if !errors.Is(err, errLater) && (err == nil || s.ctx.Err() == nil) {
			s.problems.note(groupProblem(state.Name), err)
		}
	})
	return failed.Load()
}

// create makes a group that a target wants here, serves it as soon as etcd says it is here.
func (s *Shard) create(ctx context.Context, state placement.Group) error {
	if err := s.admitSoon(0); err != nil {
		return fmt.Errorf("creating it: %w", err)
	}
	g := &groupReplica{
		name: state.Name, uuid: state.UUID, dir: s.volume.GroupDir(state.UUID),
		phase: member.Loading, standing: member.Standing{Reason: member.Unconfirmed}, untold: true,
	}
	raftID := format.NewRaftID()
	if err := group.Create(s.logOptions(g), &raftpb.ConfState{Voters: []uint64{raftID}}); err != nil {
		return fmt.Errorf("creating it: %w", err)
	}
	s.mu.Lock()
	s.groups[g.uuid] = g
	s.publish()
	s.mu.Unlock()
	s.loadOne(ctx, g, nil)
	return s.adopt(ctx, state)
}

// adopt tells etcd that the group is here. Its folder was made here for just this group, as its UUID says.
func (s *Shard) adopt(ctx context.Context, state placement.Group) error {
	s.mu.Lock()
	g := s.groups[state.UUID]
	pending := g != nil && g.phase == member.Pending && s.load.begun()
	if pending {
		s.happens(g, member.Begin)
	}
	s.mu.Unlock()
	if g == nil {
		return nil
	}
	if pending {
		s.loadOne(ctx, g, nil)
	}
	if g.served.Load() == nil {
		return errLater // still loading, or failed: its state says so
	}
	s.mu.Lock()
	raftID := g.raftID
	s.mu.Unlock()
	state.Members = []placement.Member{{Shard: s.cfg.Name, VolumeUUID: s.volume.Superblock().Volume, RaftID: raftID}}
	state.Leader = s.cfg.Name
	stored, err := s.cfg.Placement.PutGroup(ctx, state)
	if err != nil {
		return fmt.Errorf("telling etcd that it is here: %w", err)
	}
	s.mu.Lock()
	g.standing, g.untold, g.confirmed = member.Standing{}, false, s.view.Meta.EpochBase+uint64(stored.Revision)
	s.publish()
	s.mu.Unlock()
	return nil
}
