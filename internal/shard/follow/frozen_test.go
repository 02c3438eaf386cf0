package follow

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/problems"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// lone creates a Watcher of shard a, with a volume in memory and without etcd.
func lone(t *testing.T) *Watcher {
	t.Helper()
	store, disk := uuid.New(), vfstest.NewMem()
	v, err := volume.Open(volume.Options{FS: disk, Dir: "v", Store: store, Shard: "a", Create: true,
		Logger: slog.New(slog.DiscardHandler)})
	must.OK(t, err)
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return New(Options{
		Store: func() uuid.UUID { return store },
		Volume: func() *volume.Volume {
			return v
		}, Facts: func() (volume.Facts, error) { return volume.ReadFacts(disk, "v") },
		Problems: problems.New(slog.New(slog.DiscardHandler)),
		Logger:   slog.New(slog.DiscardHandler),
		Replicas: replicas.New(replicas.Options{Shard: "a", Background: context.Background(),
			Volume: func() uuid.UUID { return v.Superblock().Volume },
			Meta:   func() placement.Meta { return placement.Meta{} }}),
	})
}

// The facts about etcd on the volume never become older, and a view of an etcd that was rolled back is not accepted.
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
		must.OK(t, f.remember(step.view))
		followed, newest := f.Replicas.View().Mark.Revision, f.Replicas.Newest().Mark.Revision
		if held := f.Replicas.IsHeld(); followed != step.seen || newest != step.told || held != step.held {
			t.Errorf("revision %d: followed is %d, told %d, held %t", step.view.Mark.Revision, followed, newest, held)
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
