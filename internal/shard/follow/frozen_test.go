package follow

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// folder is a replica that nothing serves.
type folder struct{ Replica }

func (*folder) Node() (Node, bool) { return nil, false }

// idle carries out no action, because the tests here check what is known, not what is done.
type idle struct{ Actions[*folder] }

func (idle) LoadBegun() bool  { return true }
func (idle) Publish()         {}
func (idle) Connect([]string) {}

// noted holds problems by their subjects.
type noted map[string]error

func (n noted) Note(what string, err error)   { n[what] = err }
func (n noted) Forget(func(what string) bool) {}

// lone makes a Watcher of shard a, with a volume in memory and without etcd.
func lone(t *testing.T) *Watcher[*folder] {
	t.Helper()
	store, disk := uuid.New(), vfstest.NewMem()
	v, err := volume.Open(volume.Options{FS: disk, Dir: "v", Store: store, Shard: "a", Create: true,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return New(Options[*folder]{
		Shard: "a", Store: func() uuid.UUID { return store }, Meta: func() placement.Meta { return placement.Meta{} },
		Volume: func() *volume.Volume {
			return v
		}, Facts: func() (volume.Facts, error) { return volume.ReadFacts(disk, "v") },
		Actions: idle{}, Background: context.Background(), Lock: new(sync.Mutex), Replicas: map[uuid.UUID]*folder{},
		Problems: noted{}, Logger: slog.New(slog.DiscardHandler),
	})
}

// The volume's memory of etcd never becomes older, and a view of an etcd that was set back is not accepted.
func TestTheVolumeRemembersTheNewestEtcd(t *testing.T) {
	f := lone(t)
	at := func(revision int64, setBack string) placement.View {
		return placement.View{
			Epoch: uint64(revision), SetBack: setBack, Mark: placement.Mark{Revision: revision, Content: revision, Cluster: 1},
			Groups: map[string]placement.Group{fmt.Sprint(revision): {}},
		}
	}
	for _, step := range []struct {
		view       placement.View
		seen, told int64
		held       bool
	}{
		{at(5, ""), 5, 5, false},
		{at(3, "its revision is 3, and was 5"), 5, 3, true},
		{at(7, "its keys are older"), 5, 7, true},
		{at(9, ""), 9, 9, false},
	} {
		f.See(step.view)
		if err := f.remember(step.view); err != nil {
			t.Fatal(err)
		}
		if f.View.Mark.Revision != step.seen || f.NewestView.Mark.Revision != step.told || f.IsHeld() != step.held {
			t.Errorf("revision %d: followed is %d, told %d, held %t", step.view.Mark.Revision, f.View.Mark.Revision,
				f.NewestView.Mark.Revision, f.IsHeld())
		}
		facts, err := f.Facts()
		if err != nil || facts.EtcdRevision != step.seen {
			t.Errorf("revision %d: the volume remembers %+v, %v", step.view.Mark.Revision, facts, err)
		}
	}
	again := New(f.Options)
	if got := again.recall(); got.Store != f.Store() || got.Revision != 9 {
		t.Errorf("the next start knows %+v", got)
	}
	again.Store = uuid.New
	if got := again.recall(); got != (placement.Progress{}) {
		t.Errorf("of another store it knows %+v", got)
	}
}

// A shard keeps connections only to the shards with a member of a group that is here.
func TestWhoIsConnected(t *testing.T) {
	f := lone(t)
	here, elsewhere := uuid.New(), uuid.New()
	f.Replicas[here] = &folder{Replica{Name: "0", UUID: here}}
	f.Replicas[elsewhere] = &folder{Replica{Name: "1", UUID: elsewhere}}
	on := func(shards ...string) (members []placement.Member) {
		for _, name := range shards {
			members = append(members, placement.Member{Shard: name})
		}
		return members
	}
	f.View.Groups = map[string]placement.Group{
		"0": {Name: "0", UUID: here, Members: on("a", "b", "")}, "1": {Name: "1", UUID: elsewhere, Members: on("c", "d")},
		"2": {Name: "2", UUID: uuid.New(), Members: on("a", "e")},
	}
	if got := f.peers(); len(got) != 1 || got[0] != "b" {
		t.Errorf("connected to %v", got)
	}
}
