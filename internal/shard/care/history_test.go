package care

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// copyOfGroup is a copy of a group that leads it.
type copyOfGroup struct {
	id  uuid.UUID
	log *group.Log
}

func (c copyOfGroup) UUID() uuid.UUID       { return c.id }
func (c copyOfGroup) Log() *group.Log       { return c.log }
func (c copyOfGroup) Leads() (uint64, bool) { return 1, true }

// newCopy returns the only copy of a new group, whose disk is in memory.
func newCopy(t *testing.T) copyOfGroup {
	one := copyOfGroup{id: uuid.New()}
	opts := group.Options{
		FS: vfstest.NewMem(), Dir: "/g", Identity: format.Identity{Store: uuid.New(), Group: one.id, Name: "g"},
	}
	if err := group.Create(opts, &raftpb.ConfState{Voters: []uint64{1}}); err != nil {
		t.Fatal(err)
	}
	var err error
	if one.log, _, err = group.Load(t.Context(), opts, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = one.log.Close(true) })
	return one
}

func TestNoHoldEndsBesideAnArchiver(t *testing.T) {
	one, holds, call := newCopy(t), newHolds(newReportedWeights(weightsOfLeaders{}, time.Minute), noViews{}), new(int)
	holds.Take(call, one, 0)
	if _, err := holds.End(t.Context(), one, placement.Group{}); !errors.Is(err, ErrFollowed) {
		t.Errorf("while an archiver follows: %v", err)
	}
	if _, known := one.log.HistoryFloor(); !known {
		t.Error("the refused end has ended the hold")
	}
	holds.Leave(call)
	if ended, err := holds.End(t.Context(), one, placement.Group{}); err != nil || !ended {
		t.Errorf("ended %v, error %v", ended, err)
	}
	if _, known := one.log.HistoryFloor(); known {
		t.Error("the hold has not ended")
	}
}

// A view that is opened while the hold of an archive ends must keep its history. The other goroutine opens the view
// between the moment when End has learned that there is no view, and the moment when End removes the history floor.
func TestAViewThatOpensWhileAnArchiveEndsKeepsItsHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, holds := newCopy(t), newHolds(newReportedWeights(weightsOfLeaders{}, time.Minute), noViews{})
		var viewed atomic.Bool
		afterTheLook := func() {}
		holds.views = func(uuid.UUID) (at uint64, on, known bool) {
			on = viewed.Load()
			afterTheLook()
			return 0, on, true
		}
		holds.Begin(one, 0)
		if _, known := one.log.HistoryFloor(); !known {
			t.Fatal("the archive has not begun")
		}
		opened := make(chan error, 1)
		afterTheLook = func() {
			afterTheLook = func() {}
			viewed.Store(true)
			go func() {
				_, err := holds.View(context.Background(), one, placement.Group{})
				opened <- err
			}()
			synctest.Wait()
		}
		if ended, err := holds.End(t.Context(), one, placement.Group{}); err != nil || !ended {
			t.Fatalf("ended %v, error %v", ended, err)
		}
		if err := <-opened; err != nil {
			t.Errorf("the view was not opened: %v", err)
		}
		if _, known := one.log.HistoryFloor(); !known {
			t.Error("the end of the archive has ended the hold of the view, too")
		}
	})
}
