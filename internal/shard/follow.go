package shard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/placement"
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
	g := &groupReplica{uuid: id, dir: s.volume.GroupDir(id), state: recordv1.GroupState_GROUP_STATE_PENDING}
	file, found, err := group.ReadReplicaFile(s.cfg.FS, g.dir)
	if err == nil && found {
		g.raftID, g.joining = file.RaftID, file.Joining
		if err := s.checkReplicaFile(g, file); err != nil {
			g.foreign, g.stray = err.Error(), err.Error()
		}
		if g.joining {
			return g
		}
	}
	var m *group.Manifest
	if err == nil {
		m, err = group.ReadManifest(s.cfg.FS, g.dir)
	}
	switch {
	case err != nil:
		// The folder's name still says which group it is; etcd may know its name.
		g.state, g.err, g.unreadable = recordv1.GroupState_GROUP_STATE_FAILED, fmt.Errorf("reading its manifest: %w", err), true
		if found && (errors.Is(err, group.ErrCorrupt) || errors.Is(err, fs.ErrNotExist)) {
			g.torn = true
			s.metrics.tails.WithLabelValues(tailFound).Inc()
		}
		s.logger.Error("group cannot be read", "uuid", id, "error", err)
		return g
	case m.Identity.Store != s.store || m.Identity.Group != id:
		g.stray = fmt.Sprintf("it is group %s of store %s", m.Identity.Group, m.Identity.Store)
		if g.exchanged = group.Exchanged(s.cfg.FS, g.dir); g.exchanged != "" {
			g.stray = g.exchanged
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
			// While very many groups are made, views must not keep a processor busy: the newest one waits a little, those
			// between are left out.
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
			s.problem("closing group "+g.name, err)
		}
	}
	for _, g := range todo.load {
		s.wait.Go(func() { s.loadOne(ctx, g) })
	}
	for _, g := range todo.join {
		s.wait.Go(func() { s.joinGroup(g) })
	}
	for _, g := range todo.mend {
		s.wait.Go(func() { s.mendTail(g) })
	}
	for _, g := range todo.trash {
		err := s.leaveGroup(ctx, g)
		s.problem("leaving group "+g.name, err)
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
	return isMember(view.Groups[name], s.cfg.Name) || s.isTarget(view, name)
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
	for what := range s.problems {
		if strings.HasPrefix(what, groupProblem("")) && !wanted[what] {
			delete(s.problems, what)
		}
	}
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
		if s.held != "" {
			s.decideHeld(&todo, state, g)
			continue
		}
		s.decideOne(&todo, view, state, g)
	}
	for _, g := range s.groups {
		switch {
		case known[g] || g.lost:
		case s.held != "":
			s.decideHeld(&todo, placement.Group{}, g)
		default:
			s.stray(&todo, g, "etcd does not know it")
		}
	}
	s.connectPeers()
	return todo
}

// decideOne is decide for one group; g is nil where it has no folder here.
func (s *Shard) decideOne(todo *work, view placement.View, state placement.Group, g *groupReplica) {
	name := state.Name
	member, isMember := memberOf(state, s.cfg.Name)
	here := s.membersHere(state)
	absent := g == nil || g.lost || g.isRemnant(here) && !s.unsafe(unsafeRemnant)
	switch {
	case g != nil && g.name != name && g.exchanged != "":
		s.stray(todo, g, g.exchanged)
	case g != nil && g.name != name:
		s.stray(todo, g, "etcd knows it by the name "+name)
	case !absent && g.foreign == "" && g.isOneOf(here):
		g.stray = ""
		s.decideMember(todo, state, g)
		if seen := [3]int64{state.Revision, view.Targets[name].Revision, replacedMembers(view, state)}; g.seen != seen {
			g.seen = seen
			s.steer(g)
		}
	case g != nil && !g.lost && g.foreign == "" && (g.isLookedFor(state) || len(here) == 0 && g.isForgotten(state)):
		todo.claim = append(todo.claim, state)
	case g != nil && !g.lost && !g.isOneOf(here) && g.hasLeft(state) && (g.foreign == "" && !g.unreadable || len(here) > 0):
		if g.fetching {
			g.stopFetch()
			todo.later = true
			return
		}
		if g.stray == "" {
			g.stray = "it has left its group"
		}
		todo.trash = append(todo.trash, g)
	case absent && len(here) == 1 && here[0].Role == placement.Learner && s.load.begun() && !s.isSpent(here[0].RaftID):
		todo.begin = append(todo.begin, state)
	case absent && len(here) > 0 && isShared(state):
		todo.confess = append(todo.confess, state)
	case isMember && len(here) == 0 && isShared(state):
		// The volume that had it is gone: its leader replaces it.
		if g != nil && !g.lost {
			s.stray(todo, g, g.awayReason(state))
		}
	case isMember:
		s.lose(state, member)
	case g != nil && len(state.Members) == 0 && view.Epoch < g.confirmed:
		// The view is older than what this shard wrote: the group goes on serving.
	case len(state.Members) == 0 && s.creates(view, name):
		// A crash while it was being made leaves a folder without a manifest: group.Create clears just that.
		if g == nil || g.unreadable {
			todo.create = append(todo.create, state)
		} else {
			g.stray = unconfirmed
			todo.adopt = append(todo.adopt, state)
		}
	case g != nil:
		s.stray(todo, g, "etcd says it is elsewhere")
	}
}

// decideMember goes on with a replica that etcd says is here.
func (s *Shard) decideMember(todo *work, state placement.Group, g *groupReplica) {
	switch {
	case g.joining:
		if !g.fetching && s.load.begun() {
			g.state = recordv1.GroupState_GROUP_STATE_LOADING
			g.beginFetch(s.ctx)
			todo.join = append(todo.join, g)
		}
	case g.givenUp:
		todo.confess = append(todo.confess, state)
	case g.torn:
		if !g.fetching && s.load.begun() {
			g.beginFetch(s.ctx)
			todo.mend = append(todo.mend, g)
		}
	case g.state == recordv1.GroupState_GROUP_STATE_PENDING && s.load.begun():
		g.state = recordv1.GroupState_GROUP_STATE_LOADING
		todo.load = append(todo.load, g)
	}
}

// isOneOf tells whether the folder is of one of these members. Called with Shard.mu held.
func (g *groupReplica) isOneOf(members []placement.Member) bool {
	return slices.ContainsFunc(members, func(m placement.Member) bool { return g.raftID == 0 || m.RaftID == g.raftID })
}

// isRemnant tells whether the folder is what a kill leaves of a replica that was just begun, or being removed, where etcd wants a learner
// here: it holds no manifest, and not which replica it is. Nothing in it counts. Called with Shard.mu held.
func (g *groupReplica) isRemnant(here []placement.Member) bool {
	return g.unreadable && g.raftID == 0 && len(here) == 1 && here[0].Role == placement.Learner
}

// isNamed tells whether etcd names the replica in the folder, wherever it says it is. Called with Shard.mu held.
func (g *groupReplica) isNamed(state placement.Group) bool {
	return slices.ContainsFunc(state.Members, func(m placement.Member) bool { return m.RaftID == g.raftID })
}

// hasLeft tells whether the replica in the folder was a member of its group and is none any more: etcd does not name it, on no
// shard and no volume, and the leader wrote a membership that is not older than the one that the replica knows. Where only one
// copy was ever wanted nobody writes that, and nothing is deleted. Called with Shard.mu held.
func (g *groupReplica) hasLeft(state placement.Group) bool {
	if g.foreign == "" && g.isNamed(state) {
		return false
	}
	if g.joining {
		return true
	}
	return g.raftID != 0 && g.stray != unconfirmed && state.ConfIndex > 0 && state.ConfIndex >= g.knownIndex()
}

// isShared tells whether a group has several copies.
func isShared(state placement.Group) bool {
	voters := 0
	for _, m := range state.Members {
		if m.Role == placement.Voter {
			voters++
		}
	}
	return voters > 1 || voters == 1 && len(state.Members) > 1
}

// creates tells whether this shard is to make a group: of several copies, the one that is to lead.
func (s *Shard) creates(view placement.View, name string) bool {
	wanted := view.Targets[name].Shards
	return len(wanted) > 0 && wanted[0] == s.cfg.Name
}

func (s *Shard) isTarget(view placement.View, name string) bool {
	for _, shard := range view.Targets[name].Shards {
		if shard == s.cfg.Name {
			return true
		}
	}
	return false
}

// unconfirmed is the stray reason of a group that was made here, until etcd says that it is here.
const unconfirmed = "etcd does not say yet that it is here"

// errLoading is why a group does not serve yet.
var errLoading = errors.New("it is loading")

// errLater: what is to be done waits for something else here.
var errLater = errors.New("later")

func (s *Shard) stray(todo *work, g *groupReplica, reason string) {
	if g.stray == "" {
		s.logger.Warn("group is on the volume but not served, and not deleted", "group", g.name, "uuid", g.uuid, "reason", reason)
	}
	g.stray = reason
	if g.served.Load() != nil {
		g.state = recordv1.GroupState_GROUP_STATE_PENDING
		todo.leave = append(todo.leave, g)
	}
}

// lose notes that etcd says this shard holds a group which is not on this volume: never served as if it were empty.
func (s *Shard) lose(state placement.Group, member placement.Member) {
	g := s.groups[state.UUID]
	if g != nil && g.lost {
		return
	}
	here := s.volume.Superblock().Volume
	err := fmt.Errorf("etcd says that it is on volume %s of this shard, and it is not there: restore the group's folder", here)
	if member.VolumeUUID != here {
		err = fmt.Errorf("etcd says that it is on volume %s of this shard, but this is volume %s: bring the old volume back",
			member.VolumeUUID, here)
	}
	if g == nil {
		g = &groupReplica{name: state.Name, uuid: state.UUID, dir: s.volume.GroupDir(state.UUID)}
		s.groups[state.UUID] = g
	}
	g.stray = ""
	g.state, g.lost, g.err = recordv1.GroupState_GROUP_STATE_FAILED, true, err
	s.logger.Error("the data of a group are lost", "group", g.name, "error", err)
}

// inParallel does at most 16 at a time; true where one failed.
func (s *Shard) inParallel(groups []placement.Group, do func(placement.Group) error) (failed bool) {
	var (
		wait  sync.WaitGroup
		mu    sync.Mutex
		slots = make(chan struct{}, 16)
	)
	for _, state := range groups {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			err := do(state)
			if errors.Is(err, placement.ErrChanged) || s.ctx.Err() != nil && s.unsafe(unsafeStop) {
				err = nil // the next view says what to do
			}
			// An error in a shard that stops is nobody's problem, and nothing is done all the same.
			if errors.Is(err, errLater) || err != nil && s.ctx.Err() != nil {
				mu.Lock()
				failed = true
				mu.Unlock()
				return
			}
			s.problem(groupProblem(state.Name), err)
			if err != nil {
				mu.Lock()
				failed = true
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	return failed
}

// create makes a group that a target wants here, serves it as soon as etcd says it is here.
func (s *Shard) create(ctx context.Context, state placement.Group) error {
	if err := s.admitSoon(0); err != nil {
		return fmt.Errorf("creating it: %w", err)
	}
	g := &groupReplica{
		name: state.Name, uuid: state.UUID, dir: s.volume.GroupDir(state.UUID),
		state: recordv1.GroupState_GROUP_STATE_LOADING, stray: unconfirmed,
	}
	raftID := group.NewRaftID()
	if err := group.Create(s.logOptions(g), &raftpb.ConfState{Voters: []uint64{raftID}}); err != nil {
		return fmt.Errorf("creating it: %w", err)
	}
	s.mu.Lock()
	s.groups[g.uuid] = g
	s.publish()
	s.mu.Unlock()
	s.loadOne(ctx, g)
	return s.adopt(ctx, state)
}

// adopt tells etcd that the group is here. Its folder was made here for just this group, as its UUID says.
func (s *Shard) adopt(ctx context.Context, state placement.Group) error {
	s.mu.Lock()
	g := s.groups[state.UUID]
	pending := g != nil && g.state == recordv1.GroupState_GROUP_STATE_PENDING && s.load.begun()
	if pending {
		g.state = recordv1.GroupState_GROUP_STATE_LOADING
	}
	s.mu.Unlock()
	if g == nil {
		return nil
	}
	if pending {
		s.loadOne(ctx, g)
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
	g.stray, g.confirmed = "", s.view.Meta.EpochBase+uint64(stored.Revision)
	s.publish()
	s.mu.Unlock()
	return nil
}
