package shard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	recordv1 "sheaf.dev/sheaf/api/record/v1"
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
		g := &groupReplica{uuid: id, dir: s.volume.GroupDir(id), state: recordv1.GroupState_GROUP_STATE_PENDING}
		identity, err := group.ReadIdentity(s.cfg.FS, g.dir)
		switch {
		case err != nil:
			// The folder's name still says which group it is; etcd may know its name.
			g.state, g.err, g.unreadable = recordv1.GroupState_GROUP_STATE_FAILED, fmt.Errorf("reading its manifest: %w", err), true
			s.logger.Error("group cannot be read", "uuid", id, "error", err)
		case identity.Store != s.store || identity.Group != id:
			g.name, g.stray = identity.Name, fmt.Sprintf("it is group %s of store %s", identity.Group, identity.Store)
		default:
			g.name = identity.Name
		}
		s.groups[id] = g
	}
	return nil
}

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
			s.see(view)
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

	for _, g := range todo.leave {
		// The files stay: another issue's move deletes them when membership and etcd agree.
		s.setHealth(g, false)
		if err := g.close(ctx, true); err != nil {
			s.problem("closing group "+g.name, err)
		}
	}
	for _, g := range todo.load {
		s.wait.Go(func() { s.loadOne(ctx, g) })
	}
	notCreated := s.inParallel(todo.create, func(state placement.Group) error { return s.create(ctx, state) })
	notAdopted := s.inParallel(todo.adopt, func(state placement.Group) error { return s.adopt(ctx, state) })
	return notCreated || notAdopted
}

// groupProblem is what the problem with making a group, or with telling etcd of it, is known by.
func groupProblem(group string) string { return "group " + group }

// forgetDone takes back what was said of groups for which nothing is left to do: others did it, or it is not wanted any
// more. Called with mu held.
func (s *Shard) forgetDone(todo work) {
	wanted := map[string]bool{}
	for _, state := range slices.Concat(todo.create, todo.adopt) {
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
	create []placement.Group // targets without members: make the group here
	adopt  []placement.Group // groups made here whose state was not written to etcd
	load   []*groupReplica   // became this shard's after the first load
	leave  []*groupReplica   // is served and no longer this shard's
}

// decide says what to do, and sets which groups are strays or lost. Called with mu held.
func (s *Shard) decide(view placement.View) work {
	var todo work
	known := make(map[*groupReplica]bool, len(s.groups))
	for name, state := range view.Groups {
		g := s.groups[state.UUID]
		if g != nil {
			known[g] = true
			if g.name == "" {
				g.name = name // its manifest cannot be read
			}
		}
		member, isMember := memberOf(state, s.cfg.Name)
		switch {
		case g != nil && g.name != name:
			s.stray(&todo, g, "etcd knows it by the name "+name)
		case isMember && member.VolumeUUID == s.volume.Superblock().Volume && g != nil && !g.lost:
			g.stray = ""
			if g.state == recordv1.GroupState_GROUP_STATE_PENDING && s.load.begun() {
				g.state = recordv1.GroupState_GROUP_STATE_LOADING
				todo.load = append(todo.load, g)
			}
		case isMember:
			s.lose(state, member)
		case g != nil && len(state.Members) == 0 && view.Epoch < g.confirmed:
			// The view is older than what this shard wrote: the group goes on serving.
		case len(state.Members) == 0 && s.isTarget(view, name):
			// A crash while it was being made leaves a folder without a manifest: group.Create clears just that.
			if g == nil || g.unreadable {
				todo.create = append(todo.create, state)
			} else {
				g.stray = unconfirmed
				todo.adopt = append(todo.adopt, state)
			}
		case g != nil:
			s.stray(&todo, g, "etcd says it is elsewhere")
		}
	}
	for _, g := range s.groups {
		if !known[g] && !g.lost {
			s.stray(&todo, g, "etcd does not know it")
		}
	}
	return todo
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
			if errors.Is(err, placement.ErrChanged) || s.ctx.Err() != nil {
				err = nil // the next view says what to do
			}
			if errors.Is(err, errLater) {
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
	if err := s.volume.Admit(0, false); err != nil {
		return fmt.Errorf("creating it: %w", err)
	}
	g := &groupReplica{
		name: state.Name, uuid: state.UUID, dir: s.volume.GroupDir(state.UUID),
		state: recordv1.GroupState_GROUP_STATE_LOADING, stray: unconfirmed,
	}
	raftID := rand.Uint64() | 1 // 0 is no id
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
