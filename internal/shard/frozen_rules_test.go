package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
)

// While the shards know that etcd was rolled back, the leader of a group does not change the group's members.
func TestRule9_NothingMovesWhileEtcdWasSetBack(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(oneGroup, "s1")
		f := start(t, registry, nil).ready()
		s, sv := f.shard, f.served(0)
		f.eventually("it leads a group that etcd knows", func() bool {
			state, _ := s.replicas.GroupOf(sv.Group)
			return len(state.Members) == 1 && sv.Replica().Status().Leader
		})
		targets := map[string]placement.Target{"0": {Group: "0", Shards: []string{"b", "s1"}, Revision: 1000}}
		shards := map[string]placement.Shard{"b": {Name: "b", VolumeUUID: uuid.New()}}
		registry.change(func(v *placement.View) { v.SetBack = "its revision is 3, and was 5" })
		f.eventually("it is noticed", s.replicas.IsHeld)
		// The shard first receives a view of an intact etcd, from which it learns the targets. In the view that follows,
		// etcd is rolled back again.
		before := s.replicas.View()
		before.Targets, before.Shards, before.SetBack = targets, shards, ""
		s.replicas.See(before)
		before.SetBack = "its revision is 3, and was 5"
		s.replicas.See(before)
		sv.Group.AskLook()
		time.Sleep(time.Second)
		if members := registry.now().Groups["0"].Members; len(members) != 1 || s.steerer.Idle() {
			t.Errorf("while it was set back: looked at again: %t, members %+v", !s.steerer.Idle(), members)
		}
		registry.change(func(v *placement.View) { v.SetBack, v.Targets, v.Shards = "", targets, shards })
		f.eventually("the move begins", func() bool { return len(registry.now().Groups["0"].Members) == 2 })
	})
}

// While a shard knows that etcd was rolled back, it also does not take over groups from another shard.
func TestRule9_NothingIsAdoptedWhileEtcdWasSetBack(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		for setBack, want := range map[string]string{"": "a", "its revision is 3, and was 5": "gone"} {
			s := lone(t)
			registry := newRegistry(oneGroup, "a")
			s.watcher.Etcd, s.watcher.Adopt = registry, true
			registry.change(func(v *placement.View) {
				g := v.Groups["0"]
				g.Members = []placement.Member{{Shard: "gone", VolumeUUID: s.volume.Superblock().Volume, RaftID: 1}}
				v.Groups["0"], v.SetBack = g, setBack
			})
			must(t, s.watcher.Start(t.Context()))
			if members := registry.now().Groups["0"].Members; members[0].Shard != want {
				t.Errorf("set back %q: members %+v", setBack, members)
			}
			s.cancel()
		}
	})
}

// unfrozen is a registry in which Freeze fails. Therefore a shard cannot record that etcd was rolled back.
type unfrozen struct{ *memRegistry }

func (unfrozen) Freeze(context.Context, string, string) error { return errDown }

// The first shard to notice that etcd was rolled back must record that in etcd. If it cannot, it does not register,
// because the other shards would trust this etcd and continue with it.
//
// This test uses real time and a disk of the machine, because it starts shards without the harness.
func TestRule9_AShardThatCannotFreezeDoesNotStart(t *testing.T) {
	t.Parallel()
	registry := newRegistry(oneGroup, "s1")
	registry.view.SetBack = "its revision is 3, and was 5"
	s, err := Start(t.Context(), Config{
		Name: "s1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Placement: unfrozen{registry}, ReserveBytes: 16 << 20,
		Compaction: Compaction{Off: true},
	})
	if err == nil {
		s.Kill()
	}
	if !errors.Is(err, errDown) || len(registry.seen) > 0 {
		t.Errorf("start: %v; volumes that were registered: %v", err, registry.seen)
	}
}

// slowToFreeze is a registry whose first call of Freeze times out.
type slowToFreeze struct {
	*memRegistry
	tries atomic.Int32
}

func (s *slowToFreeze) Freeze(context.Context, string, string) error {
	if s.tries.Add(1) == 1 {
		return fmt.Errorf("write the freeze to etcd: %w", context.DeadlineExceeded)
	}
	return nil
}

// If etcd is slow for a short time, for example because its disk was just restored, a shard must nevertheless be able
// to start.
//
// This test uses real time and a disk of the machine, because it starts shards without the harness.
func TestRule9_AShardStartsWhereEtcdIsSlowToFreeze(t *testing.T) {
	t.Parallel()
	registry := &slowToFreeze{memRegistry: newRegistry(oneGroup, "s1")}
	registry.view.SetBack = "its revision is 3, and was 5"
	s, err := Start(t.Context(), Config{
		Name: "s1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Placement: registry, ReserveBytes: 16 << 20,
		Compaction: Compaction{Off: true},
	})
	if err != nil {
		t.Fatalf("after %d tries: %v", registry.tries.Load(), err)
	}
	s.Kill()
	if tries := registry.tries.Load(); tries < 2 || len(registry.seen) == 0 {
		t.Errorf("%d tries; volumes that were registered: %v", tries, registry.seen)
	}
}

// If the volume cannot record the revision of a view of etcd, nothing may be deleted because of that view. Otherwise
// the shard could not recognize an older view later.
func TestRule9_WhatCannotBeRememberedIsNotActedOn(t *testing.T) {
	s := lone(t)
	g := madeGroup(t, s, 1)
	s.replicas.Add(g.UUID, replicas.State{Replica: member.Replica{Name: "0", RaftID: 1, KnownIndex: 7}})
	s.watcher.See(placement.View{
		Epoch: 100, Mark: placement.Mark{Revision: 100}, Shards: map[string]placement.Shard{},
		Targets: map[string]placement.Target{},
		Groups:  map[string]placement.Group{"0": {Name: "0", UUID: g.UUID, ConfIndex: 7, Members: others}},
	})
	registry := newRegistry(oneGroup, "a")
	registry.view.Meta.StoreUUID, registry.view.Groups = s.volume.Store, s.replicas.View().Groups
	s.watcher.Etcd = registry
	disk := memoryDisk(s)
	disk.SetCapacity(1)
	if unfinished := s.watcher.Reconcile(t.Context()); !unfinished || s.replicas.Find(g.UUID) == nil {
		t.Errorf("while nothing can be written: unfinished: %t, the group is left alone: %t", unfinished,
			s.replicas.Find(g.UUID) != nil)
	}
	if names, err := disk.List(s.volume.GroupDir(g.UUID)); err != nil || len(names) == 0 {
		t.Errorf("its folder holds %v, %v", names, err)
	}
	disk.SetCapacity(0)
	if s.watcher.Reconcile(t.Context()); s.replicas.Find(g.UUID) != nil {
		t.Error("it is not thrown away when that is remembered")
	}
}

// The view that a shard follows may be outdated. Therefore, before the shard moves a replica to the trash, it reads
// the key of the group, which must confirm that the replica has left the group.
func TestRule9_AReplicaLeavesByTheGroupsOwnKey(t *testing.T) {
	gone := placement.Group{Name: "0", ConfIndex: 7, Members: others, Revision: 50}
	for name, c := range map[string]struct {
		now    func(g *placement.Group, own placement.Member)
		etcd   func(r *memRegistry)
		leaves bool
	}{
		"it says the same": {leaves: true},
		"it names it": {now: func(g *placement.Group, own placement.Member) {
			g.Members, g.Revision = append(slices.Clone(others), own), 60
		}},
		"it names it, without a shard": {now: func(g *placement.Group, own placement.Member) {
			own.Shard = ""
			g.Members, g.Revision = append(slices.Clone(others), own), 60
		}},
		"it is of an older membership": {now: func(g *placement.Group, _ placement.Member) {
			g.ConfIndex, g.Revision = 6, 60
		}},
		"it was written before": {now: func(g *placement.Group, _ placement.Member) { g.Revision = 40 }},
		"it is another group of this name": {now: func(g *placement.Group, _ placement.Member) {
			g.UUID, g.Revision = uuid.New(), 60
		}},
		"etcd does not answer": {etcd: func(r *memRegistry) { r.down = true }},
		"etcd was set back":    {etcd: func(r *memRegistry) { r.view.Freeze = &placement.Freeze{By: "another"} }},
		"etcd was emptied":     {etcd: func(r *memRegistry) { r.view = placement.View{} }},
		"etcd was made anew":   {etcd: func(r *memRegistry) { r.view.Meta.EpochBase = 1 << 32 }},
	} {
		t.Run(name, func(t *testing.T) {
			s := lone(t)
			g := madeGroup(t, s, 1)
			s.replicas.Add(g.UUID, replicas.State{Replica: member.Replica{Name: "0", RaftID: 1, KnownIndex: 7}})
			state := gone
			state.UUID = g.UUID
			s.watcher.See(placement.View{
				Epoch: 100, Mark: placement.Mark{Revision: 100}, Shards: map[string]placement.Shard{},
				Targets: map[string]placement.Target{},
				Groups:  map[string]placement.Group{"0": state}, Own: true,
			})
			registry := newRegistry(oneGroup, "a")
			if c.now != nil {
				c.now(&state, placement.Member{Shard: "a", VolumeUUID: s.volume.Superblock().Volume, RaftID: 1})
			}
			registry.view.Meta.StoreUUID, registry.view.Groups = s.volume.Store, map[string]placement.Group{"0": state}
			if c.etcd != nil {
				c.etcd(registry)
			}
			s.watcher.Etcd = registry
			unfinished := s.watcher.Reconcile(t.Context())
			if left := s.replicas.Find(g.UUID) == nil; left != c.leaves || unfinished == left {
				t.Errorf("it has left: %t, something is left to do: %t", left, unfinished)
			}
		})
	}
}
