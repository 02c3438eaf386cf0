package shard

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// afterCut starts a shard on the disk that is left after a power cut or a kill. It returns the shard, and the replica
// of the group as the shard finds it on that disk.
func afterCut(s *Shard, disk *vfstest.Mem, id uuid.UUID) (*Shard, *replicas.Replica) {
	cfg := s.cfg
	cfg.FS = disk
	started := newShard(cfg)
	started.volume.Store, started.volume.Volume, started.peers.hub = s.volume.Store, s.volume.Volume, s.peers.hub
	started.replicas.BeginLoad()
	if _, err := disk.Stat(s.volume.GroupDir(id)); err != nil {
		return started, nil
	}
	return started, started.replicas.Add(id, started.volume.Find(id))
}

// cuts runs the function do, and calls check with each disk that may be left if do is interrupted. There is a power
// cut of each kind before, between and after the disk operations of do.
func cuts(disk *vfstest.Mem, do func(), check func(when string, disk *vfstest.Mem)) {
	at := func(when string) {
		for _, kind := range vfstest.SurvivalKinds {
			for seed := range uint64(3) {
				check(fmt.Sprintf("cut after %s, survival %v/%d", when, kind, seed),
					disk.CrashClone(vfstest.Survival{Kind: kind, Seed: seed}))
			}
		}
	}
	at("nothing")
	disk.AfterOp(func(op vfstest.Op) { at(op.String()) })
	do()
	disk.AfterOp(nil)
}

// memoryDisk returns the in-memory file system of a shard that a test has started.
func memoryDisk(s *Shard) *vfstest.Mem {
	timed, _ := s.cfg.FS.(*vfs.Timed)
	return timed.Unwrap().(*vfstest.Mem)
}

// A shard that dies while it creates the folder for a learner must handle this learner after a restart. Either it
// continues with the learner, or it reports to etcd that the learner is lost and then creates the next one.
func TestACutWhileALearnerIsBegunLeavesSomethingToDo(t *testing.T) {
	s := lone(t)
	disk := memoryDisk(s)
	here := s.volume.Superblock().Volume
	learner := func(raftID uint64) placement.Member {
		return placement.Member{Shard: "a", VolumeUUID: here, RaftID: raftID, Role: placement.Learner}
	}
	state := placement.Group{Name: "0", UUID: uuid.New(), ConfIndex: 7, Members: with(learner(5))}
	seen := map[string]int{}
	view := func() placement.View {
		return placement.View{
			Epoch: 100, Shards: map[string]placement.Shard{}, Groups: map[string]placement.Group{"0": state},
			Targets: map[string]placement.Target{},
		}
	}
	check := func(when string, disk *vfstest.Mem) {
		started, g := afterCut(s, disk, state.UUID)
		before := state
		defer func() { state = before }()
		started.replicas.Retire(view())
		words := does(started, started.replicas.Decide(view()), state.UUID)
		seen[words]++
		switch words {
		case "join":
		case "confess":
			// The leader removes the learner that was lost, and adds a new one instead.
			state.Members = with(placement.Member{Shard: "a", RaftID: 5, Role: placement.Learner})
			started.replicas.Decide(view())
			state.Members = with(learner(9))
			if g != nil {
				g.Learn(state.Members)
			}
			if words := does(started, started.replicas.Decide(view()),
				state.UUID); !strings.HasPrefix(words, "make-folder") {
				t.Fatalf("%s: the next learner: %q", when, words)
			}
			if err := (actions{started}).MakeFolder(state); err != nil {
				t.Fatalf("%s: the next learner: %v", when, err)
			}
			if again, g := afterCut(s, disk, state.UUID); g.State().Phase != member.Joining || g.State().RaftID != 9 {
				t.Fatalf("%s: the next learner is found as %+v of %v", when, g.State(), again.replicas.All())
			}
		default:
			t.Fatalf("%s: %q", when, words)
		}
	}
	cuts(disk, func() {
		must(t, (actions{s}).MakeFolder(state))
	}, check)
	if seen["join"] == 0 || seen["confess"] == 0 {
		t.Fatalf("not both were seen: %v", seen)
	}
}

// A shard that dies while it removes a learner that is no longer wanted must still handle that learner after a
// restart, even if etcd by then wants a different learner on this shard.
func TestACutWhileALearnerIsRemovedLeavesSomethingToDo(t *testing.T) {
	s := lone(t)
	disk := memoryDisk(s)
	state := placement.Group{Name: "0", UUID: uuid.New(), ConfIndex: 7, Members: with()}
	learner := placement.Member{Shard: "a", VolumeUUID: s.volume.Superblock().Volume, RaftID: 5, Role: placement.Learner}
	state.Members = with(learner)
	must(t, (actions{s}).MakeFolder(state))
	dir := s.volume.GroupDir(state.UUID)
	for _, name := range []string{format.SegmentName(1), "zz"} {
		f, err := disk.Create(filepath.Join(dir, name))
		must(t, err)
		must(t, errors.Join(f.Sync(), f.Close(), disk.SyncDir(dir)))
	}
	view := func(members ...placement.Member) placement.View {
		state.Members = members
		return placement.View{
			Epoch: 100, Shards: map[string]placement.Shard{}, Groups: map[string]placement.Group{"0": state},
			Targets: map[string]placement.Target{},
		}
	}
	seen := map[string]int{}
	check := func(when string, disk *vfstest.Mem) {
		started, g := afterCut(s, disk, state.UUID)
		started.replicas.Retire(view(others...))
		words := does(started, started.replicas.Decide(view(others...)),
			state.UUID)
		seen[words]++
		if !slices.Contains([]string{"trash", "", "stray"}, words) || words == "" && g != nil {
			t.Fatalf("%s: %q", when, words)
		}
		next := learner
		next.RaftID = 9
		// If the folder still belongs to the previous learner, it is removed first.
		words = does(started, started.replicas.Decide(view(with(next)...)),
			state.UUID)
		if !strings.HasPrefix(words, "make-folder") && (words != "trash" || g.State().Phase != member.Joining) {
			t.Fatalf("%s, and another is wanted: %q", when, words)
		}
	}
	cuts(disk, func() {
		must(t, (actions{s}).Trash(t.Context(), s.replicas.Find(state.UUID)))
	}, check)
	if seen["trash"] == 0 || seen[""] == 0 {
		t.Fatalf("not all was seen: %v", seen)
	}
}

// A move must complete even if the target shard is killed at any disk operation while it creates its replica.
func TestAMoveToAShardThatIsKilledAsItBeginsEnds(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		inReplica := func(op vfstest.Op) bool { return strings.Contains(op.Name, format.ReplicaName) }
		for name, match := range map[string]func(op vfstest.Op) bool{
			"create": func(op vfstest.Op) bool { return op.Kind == vfstest.OpCreate && inReplica(op) },
			"write":  func(op vfstest.Op) bool { return op.Kind == vfstest.OpWrite && inReplica(op) },
			"rename": func(op vfstest.Op) bool { return op.Kind == vfstest.OpRename && inReplica(op) },
			"syncdir": func(op vfstest.Op) bool {
				return op.Kind == vfstest.OpSyncDir && strings.HasPrefix(filepath.Base(filepath.Dir(op.Name)), "groups")
			},
		} {
			t.Run(name, func(t *bubble) {
				c := settledCluster(t, placement.Routing{Mode: placement.Hash, Groups: 1})
				c.put(1, data(1, 5000))
				faulty := vfstest.NewFaulty(vfstest.NewMem())
				c.add("d", func(cfg *Config) { cfg.FS = faulty })
				hit := make(chan struct{})
				// dead is set at the first matching operation. From then on, the process counts as dead, and every operation that
				// would change the disk fails.
				var dead atomic.Bool
				first := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
					if match(op) && dead.CompareAndSwap(false, true) {
						close(hit)
					}
					return dead.Load() && op.Kind.Mutates()
				}})
				c.aim("b", "c", "d")
				<-hit
				c.kill("d")
				faulty.Clear()
				c.restart("d")
				c.settled("b", "c", "d")
				c.holds(1, data(1, 5000))
				if first.Fired() == 0 {
					t.Error("the fault did not fire")
				}
			})
		}
	})
}

// If the disk of a shard accepts nothing, the shard tries again and again to create a replica. When the shard is
// stopped, it must give up.
func TestAStopEndsTheBeginningOfAReplicaThatFails(t *testing.T) {
	s := lone(t)
	faulty := vfstest.NewFaulty(s.cfg.FS)
	s.cfg.FS = faulty
	const most = 100
	tries := 0
	var full *vfstest.Fault
	full = faulty.Add(&vfstest.Fault{
		Match: func(op vfstest.Op) bool {
			return op.Kind == vfstest.OpCreate && strings.Contains(op.Name, format.ReplicaName)
		},
		Err: syscall.ENOSPC,
		Before: func(vfstest.Op) {
			if tries++; tries == most {
				full.Remove() // without this, an endless loop would use up all memory
			}
		},
	})
	state := placement.Group{Name: "0", UUID: uuid.New(), ConfIndex: 7, Members: with(placement.Member{
		Shard: "a", VolumeUUID: s.volume.Superblock().Volume, RaftID: 5, Role: placement.Learner,
	})}
	s.watcher.See(placement.View{
		Epoch: 100, Shards: map[string]placement.Shard{}, Groups: map[string]placement.Group{"0": state},
		Targets: map[string]placement.Target{},
	})
	s.cancel()
	if !s.watcher.Reconcile(s.ctx) {
		t.Error("nothing is left to do, though nothing was done")
	}
	if tries == 0 || tries > 2 {
		t.Errorf("tried %d times", tries)
	}
}
