package shard

import (
	"context"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/volume"
)

var oneGroup = placement.Routing{Mode: placement.Hash, Groups: 1}

// A group that was never written to refuses writes as long as it has fewer voters than it should have copies. Otherwise
// a write might exist in only a single copy.
func TestAGroupTakesNoWriteBeforeItHasItsCopies(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(oneGroup, "s1")
		registry.change(func(v *placement.View) {
			v.Meta.Copies = 3
			v.Targets["0"] = placement.Target{Group: "0", Shards: []string{"s1", "b", "c"}}
		})
		f := start(t, registry, nil).ready()
		sv := f.served(0)
		f.eventually("it leads", sv.Replica().Readable)
		_, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(1), Data: []byte("x")})
		want(t, err, codes.Unavailable, reason.NoLeader)
	})
}

// lines collects log messages.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// Before Stop refuses calls, it transfers the leadership of its groups to other shards.
func TestStopHandsTheLeadOver(t *testing.T) {
	log := &lines{}
	c := &cluster{t: t, registry: newRegistry(oneGroup, ""), shards: map[string]*fixture{}, stopped: map[string]*fixture{}}
	c.registry.view.Meta.Copies = 2
	c.aim("a", "b")
	a := c.add("a", func(cfg *Config) { cfg.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	c.add("b", nil)
	c.settled("a", "b")
	sv := a.served(0)
	c.eventually("a leads", func() bool { return sv.Replica().Status().Leader })
	a.stop()
	// If the machine is busy, the shard named a may have lost the leadership before it was stopped. In that case, shard
	// b is the leader.
	if st := sv.Replica().Status(); !log.has("handed the lead over") && (st.LeaderID == 0 || st.LeaderID == sv.RaftID) {
		t.Errorf("a has kept the lead, and offered it to nobody: %+v", st)
	}
}

// The trash is deleted when its delay has passed or when the volume is full. While etcd is known to be rolled back,
// it is never deleted, because a replica in it may still be needed.
func TestWhatIsDeletedFromTheTrash(t *testing.T) {
	for _, c := range []struct {
		name string
		held string
		full bool
		age  time.Duration
		want bool // whether the folder must be deleted
	}{
		{name: "young", age: 59 * time.Minute},
		{name: "old", age: 61 * time.Minute, want: true},
		{name: "young, and the volume is full", full: true, want: true},
		{name: "old, while etcd was set back", held: "etcd was set back", age: 61 * time.Minute},
		{name: "young, full, while etcd was set back", held: "etcd was set back", full: true},
	} {
		s := lone(t)
		g := madeGroup(t, s, 1)
		must(t, s.compactor.Trash.Put(s.volume.GroupDir(g.UUID), g.UUID, 1))
		trash := s.volume.TrashDir()
		names, err := s.cfg.FS.List(trash)
		if err != nil || len(names) != 1 {
			t.Fatalf("in the trash: %v, %v", names, err)
		}
		s.watcher.See(placement.View{SetBack: c.held})
		if c.full {
			memoryDisk(s).SetCapacity(1)
			if _, _, err := s.volume.Space(); err != nil { // makes the volume notice its new capacity
				t.Fatal(err)
			}
		}
		others := []string{"kept-by-a-person", uuid.NewString() + "-1", uuid.NewString() + "-0000000000000001-today"}
		for _, name := range others {
			must(t, s.cfg.FS.MkdirAll(path.Join(trash, name)))
		}
		if err := s.compactor.Trash.Empty(time.Now().Add(c.age)); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.full {
			ctx, cancel := context.WithCancel(t.Context())
			var wait sync.WaitGroup
			wait.Go(func() { s.compactor.Run(ctx) })
			// This call serves only to request space. It fails, because no space becomes free.
			_ = s.compactor.AdmitWithSpace(ctx, 1)
			cancel()
			wait.Wait()
		}
		left, err := s.cfg.FS.List(trash)
		if err != nil || slices.Contains(left, names[0]) == c.want ||
			len(left) != len(others)+map[bool]int{false: 1}[c.want] {
			t.Errorf("%s: left are %v, %v", c.name, left, err)
		}
	}
}

// A shard reports a replica as missing only if the replica belongs on its current volume.
func TestConfessedIsOnlyWhatWasHere(t *testing.T) {
	s := lone(t)
	registry := newRegistry(oneGroup, "a")
	s.watcher.Etcd = registry
	state := registry.now().Groups["0"]
	here := s.volume.Superblock().Volume
	state.Members = []placement.Member{memberOn("a", 2, 1), {Shard: "a", VolumeUUID: here, RaftID: 5}, memberOn("b", 1, 2),
		{Shard: "b", VolumeUUID: here, RaftID: 3}}
	s.watcher.See(placement.View{Groups: map[string]placement.Group{"0": state}})
	if s.watcher.Reconcile(t.Context()) {
		t.Error("something is left to do")
	}
	want := slices.Clone(state.Members)
	want[1].VolumeUUID = uuid.Nil
	if got := registry.now().Groups["0"].Members; !slices.Equal(got, want) {
		t.Errorf("etcd holds %v, want %v", got, want)
	}
}

// If the volume that the configuration expects was rolled back, it does not get a new UUID, because an operator has
// to provide the right volume.
func TestAnExpectedVolumeThatWasRolledBackIsRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(oneGroup, "s1"), nil).ready()
		f.stop()
		earlier := t.TempDir()
		copyFolder(t, f.cfg.FS, earlier, f.cfg.Dir)
		f.again(nil).stop()
		id := f.registry.now().Groups["0"].Members[0].VolumeUUID
		f.cfg.Dir, f.cfg.Wanted.Volume = earlier, id
		f.rolledBack("start")
		if sb, err := volume.FreshSuperblock(f.cfg.FS, earlier); err != nil || sb.Volume != id {
			t.Errorf("it is volume %s now, was %s: %v", sb.Volume, id, err)
		}
	})
}
