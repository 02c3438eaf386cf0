package shard

import (
	"context"
	"errors"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// slowRegistry delays each request about a group, both before and after the request is applied. It loses some of the
// requests.
type slowRegistry struct {
	*memRegistry
	world *deletion
}

// Look implements Registry.
func (r slowRegistry) Look(ctx context.Context, group string) (placement.View, error) {
	r.world.sleep(40)
	defer r.world.sleep(40)
	return r.memRegistry.Look(ctx, group)
}

// PutGroupAsLeader implements Registry.
func (r slowRegistry) PutGroupAsLeader(ctx context.Context, g placement.Group) (placement.Group, error) {
	r.world.sleep(40)
	defer r.world.sleep(40)
	return r.memRegistry.PutGroupAsLeader(ctx, g)
}

// DeleteGroup implements Registry.
func (r slowRegistry) DeleteGroup(ctx context.Context, g placement.Group) error {
	if r.world.sleep(40); r.world.random(2) > 0 {
		return errDown
	}
	r.world.sleep(40)
	return r.memRegistry.DeleteGroup(ctx, g)
}

// deletion is a run in which a group is deleted while others write to it and its leader changes.
type deletion struct {
	*cluster
	mu       sync.Mutex
	source   *rand.Rand
	end      time.Time
	attempts int // number of attempts to delete the group
}

// random returns a random number between 0 and n-1.
func (d *deletion) random(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.source.IntN(n)
}

func (d *deletion) sleep(mostMs int) {
	time.Sleep(time.Duration(d.random(mostMs+1)) * time.Millisecond)
}

// leader returns a shard that considers itself the leader of the group, together with its replica. If there is none,
// it returns nil.
func (d *deletion) leader() (*Shard, *replicas.Served) {
	first := d.random(len(abc))
	for i := range abc {
		s := d.shards[abc[(first+i)%len(abc)]].shard
		for _, g := range s.replicas.Routes().ByUUID {
			if sv := g.Served(); sv != nil && sv.Replica().Status().Leader {
				return s, sv
			}
		}
	}
	return nil, nil
}

// repeatedly calls do() with the current leader of the group, with pauses in between, until the run ends.
func (d *deletion) repeatedly(pauseMs int, do func(*Shard, *replicas.Served)) {
	for time.Now().Before(d.end) {
		d.sleep(pauseMs)
		if s, sv := d.leader(); sv != nil {
			do(s, sv)
		}
	}
}

// run reports whether a put was acknowledged, and whether the group was deleted.
func (d *deletion) run(t *bubble) (acknowledged, deleted bool) {
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			d.repeatedly(20, func(s *Shard, sv *replicas.Served) {
				d.mu.Lock()
				d.attempts++
				d.mu.Unlock()
				// The error does not matter, because the registry shows whether the group was deleted.
				_ = s.deleteGroup(t.Context(), sv, uuid.Nil)
			})
		})
	}
	all.Go(func() {
		d.repeatedly(30, func(_ *Shard, sv *replicas.Served) {
			voters := sv.Replica().Members().Conf.GetVoters()
			_ = sv.Replica().TransferLeader(t.Context(), voters[d.random(len(voters))])
		})
	})
	all.Go(func() {
		d.sleep(1000)
		for id := int64(1); time.Now().Before(d.end) && !acknowledged; id++ {
			d.sleep(20)
			f := d.shards[abc[d.random(len(abc))]]
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := f.records.Put(ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Group: "g", Id: id}, Data: []byte("x")})
			acknowledged = err == nil
			cancel()
		}
	})
	all.Wait()
	_, there := d.registry.now().Groups["g"]
	return acknowledged, !there
}

// TestDeletesBesideFailoversLoseNoPut checks that a group is not deleted if a put to it was acknowledged, no matter
// in which order calls, transfers of the leadership and responses of etcd arrive.
func TestDeletesBesideFailoversLoseNoPut(t *testing.T) {
	t.Parallel()
	seeds, first := uint64(24), uint64(1)
	if soaktest.Long() {
		seeds, first = 2000, soaktest.Seed(t, 1)
	}
	kept, gone, attempts := 0, 0, 0
	for seed := first; seed < first+seeds; seed++ {
		inBubble(t, func(t *bubble) {
			d := &deletion{source: rand.New(rand.NewPCG(seed, 0)), cluster: &cluster{t: t,
				registry: newRegistry(named, "a", "g"), shards: map[string]*fixture{}, stopped: map[string]*fixture{}}}
			d.registry.view.Meta.Copies = len(abc)
			d.registry.view.Targets["g"] = placement.Target{Group: "g", Shards: abc}
			for _, name := range abc {
				d.add(name, func(cfg *Config) { cfg.Placement = slowRegistry{d.registry, d} })
			}
			d.settled(abc...)
			d.end = time.Now().Add(4 * time.Second)
			acknowledged, deleted := d.run(t)
			switch {
			case acknowledged && deleted:
				t.Errorf("seed %d: the group was deleted with an acknowledged put", seed)
			case acknowledged:
				kept++
			case deleted:
				gone++
			}
			attempts += d.attempts
		})
	}
	t.Logf("%d groups kept a put, %d were deleted, in %d calls", kept, gone, attempts)
	soaktest.Report(t, "seeds", seeds)
	if kept == 0 || gone == 0 {
		t.Errorf("%d groups kept a put, and %d were deleted", kept, gone)
	}
}

// TestAGroupThatEndedAndIsNotDeletedGoesOn checks that if a group has ended but is not deleted according to etcd, the
// leader resumes it. Until then, the leader refuses reads.
func TestAGroupThatEndedAndIsNotDeletedGoesOn(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := settledCluster(t, hash1)
		for _, name := range abc {
			s := c.shards[name].shard
			for _, g := range s.replicas.Routes().ByUUID {
				sv := g.Served()
				if !sv.Replica().Status().Leader {
					continue
				}
				release, _ := s.steerer.HoldEnded(g) // deleteGroup does this, too, before it ends a group
				must(t, sv.Replica().End(t.Context(), sv.Log().Blank))
				if sv.Barrier(t.Context()) == nil || sv.ReadHere(t.Context()) == nil {
					t.Error("a read in an ended group is allowed")
				}
				synctest.Wait()
				if !sv.Replica().Ended() {
					t.Error("the group was resumed while it was being deleted")
				}
				release()
				g.AskLook()
				c.put(1, []byte("x"))
				c.holds(1, []byte("x"))
				return
			}
		}
		t.Fatal("no shard leads")
	})
}

// TestADeletionByUUIDSparesOtherGroups checks that a request with a UUID deletes only the group with that UUID, and
// that a request can also query the UUID of a group without deleting the group.
func TestADeletionByUUIDSparesOtherGroups(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(named, "s1", "g")
		f := start(t, registry, nil).ready()
		id := registry.now().Groups["g"].UUID.String()
		_, err := f.admin.DeleteGroup(f.ctx(), &recordv1.DeleteGroupRequest{Group: "g", GroupUuid: "g"})
		want(t, err, codes.InvalidArgument, "")
		_, err = f.admin.DeleteGroup(f.ctx(), &recordv1.DeleteGroupRequest{Group: "g", GroupUuid: uuid.NewString()})
		want(t, err, codes.NotFound, reason.GroupNotFound)
		found, err := f.admin.DeleteGroup(f.ctx(), &recordv1.DeleteGroupRequest{Group: "g", ResolveOnly: true})
		if _, there := registry.now().Groups["g"]; err != nil || found.GetGroupUuid() != id || !there {
			t.Fatalf("the UUID %s is answered as %v, %v; the group is there: %t", id, found, err, there)
		}
		deleted, err := f.admin.DeleteGroup(f.ctx(), &recordv1.DeleteGroupRequest{Group: "g", GroupUuid: id})
		if _, there := registry.now().Groups["g"]; err != nil || deleted.GetGroupUuid() != id || there {
			t.Errorf("deletion of %s: %v, %v; the group is there: %t", id, deleted, err, there)
		}
	})
}

// TestADeletionBesideAMembershipChangeIsTriedAgain checks that a deletion fails with UNAVAILABLE while a change of
// the group's members is in progress. Clients retry a call after UNAVAILABLE, but not after INTERNAL.
func TestADeletionBesideAMembershipChangeIsTriedAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		c := &cluster{t: t, registry: newRegistry(named, "a", "g"), shards: map[string]*fixture{},
			stopped: map[string]*fixture{}}
		c.registry.view.Meta.Copies = len(abc)
		c.registry.view.Targets["g"] = placement.Target{Group: "g", Shards: abc}
		for _, name := range abc {
			c.add(name, nil)
		}
		c.settled(abc...)
		leader := c.leaderOf("g")
		for _, name := range abc {
			if name != leader {
				c.kill(name) // without a majority, the change of the members is never committed
			}
		}
		s := c.shards[leader].shard
		sv := s.replicas.Routes().Served(c.registry.now().Groups["g"].UUID)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var change sync.WaitGroup
		change.Go(func() { _ = sv.Replica().End(ctx, sv.Log().Blank) })
		synctest.Wait()
		_, err := c.shards[leader].admin.DeleteGroup(t.Context(), &recordv1.DeleteGroupRequest{Group: "g"})
		want(t, err, codes.Unavailable, reason.NoLeader)
		if !strings.Contains(err.Error(), replica.ErrChanging.Error()) {
			t.Errorf("it is refused for another reason: %v", err)
		}
		change.Wait()
	})
}

// TestADeletedGroupLeavesNoHalfMadeReplica kills a shard while it creates a replica of a group. If the group is
// deleted in the meantime, the shard must delete the folder when it starts again. The folder has no manifest, so
// nothing in it gives the group's name.
func TestADeletedGroupLeavesNoHalfMadeReplica(t *testing.T) {
	t.Parallel()
	for what, left := range map[string]struct {
		make func(t *bubble, f *fixture, dir string, id uuid.UUID)
		kept bool
	}{
		"a replica that was joining": {make: func(t *bubble, f *fixture, dir string, id uuid.UUID) {
			file := f.shard.volume.ReplicaFile(id, 9)
			file.Joining = true
			must(t, format.WriteReplicaFile(f.cfg.FS, dir, file))
		}},
		"a learner that was begun": {make: func(t *bubble, f *fixture, dir string, _ uuid.UUID) {
			zeros(t, f.cfg.FS, dir, format.ReplicaName+format.TmpSuffix, 100)
		}},
		"a group that was being created": {make: func(t *bubble, f *fixture, dir string, _ uuid.UUID) {
			zeros(t, f.cfg.FS, dir, format.SegmentName(1), format.SegmentHeaderBytes)
			zeros(t, f.cfg.FS, dir, format.MarkName+format.TmpSuffix, 0)
		}},
		"a group with entries": {make: func(t *bubble, f *fixture, dir string, _ uuid.UUID) {
			zeros(t, f.cfg.FS, dir, format.SegmentName(1), format.SegmentHeaderBytes+1)
		}, kept: true},
	} {
		inBubble(t, func(t *bubble) {
			registry := newRegistry(named, "a", "g")
			id := registry.now().Groups["g"].UUID
			leader := start(t, registry, func(cfg *Config) { cfg.Name = "a" }).ready()
			f := start(t, registry, func(cfg *Config) { cfg.Name = "b" })
			dir := f.shard.volume.GroupDir(id)
			f.shard.Kill()
			must(t, f.cfg.FS.MkdirAll(dir))
			left.make(t, f, dir, id)
			if _, err := leader.admin.DeleteGroup(leader.ctx(), &recordv1.DeleteGroupRequest{Group: "g"}); err != nil {
				t.Fatal(err)
			}
			f = f.again(nil)
			time.Sleep(10 * time.Second)
			there := len(filesIn(t, f.cfg.FS, path.Dir(dir))) > 0
			if strays := f.shard.Status().Strays; there != left.kept || (len(strays) > 0) != left.kept {
				t.Errorf("%s: the folder is there: %t; strays %v", what, there, strays)
			}
		})
	}
}

// zeros creates a file that consists of zeros.
func zeros(t *bubble, disk vfs.FS, dir, name string, bytes int64) {
	t.Helper()
	f, err := disk.Create(path.Join(dir, name))
	must(t, err)
	must(t, errors.Join(f.Truncate(bytes), f.Sync(), f.Close(), disk.SyncDir(dir)))
}
