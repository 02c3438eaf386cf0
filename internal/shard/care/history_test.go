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
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// copyOfGroup is a copy of a group that leads it.
type copyOfGroup struct {
	id   uuid.UUID
	log  *group.Log
	term uint64
}

func (c copyOfGroup) UUID() uuid.UUID       { return c.id }
func (c copyOfGroup) Log() *group.Log       { return c.log }
func (c copyOfGroup) Leads() (uint64, bool) { return c.term, true }

// newCopy returns the only copy of a new group, whose disk is in memory.
func newCopy(t *testing.T) copyOfGroup {
	one := copyOfGroup{id: uuid.New(), term: 5}
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

// silentEtcd does not respond.
type silentEtcd struct{}

func (silentEtcd) Weights(context.Context, string) (map[string]registry.Weight, error) {
	return nil, errors.New("no response")
}

// A leader that cannot read what earlier leaders have reported does not know the hold. If it reported its own history
// floor, the members would drop what the archive has not read.
func TestALeaderThatDoesNotKnowTheHoldReportsNone(t *testing.T) {
	one := newCopy(t)
	one.log.SetHold(group.Hold{On: true})
	if err := one.log.BeginHistory(); err != nil {
		t.Fatal(err)
	}
	state := placement.Group{Name: "g", UUID: one.id, Leader: "a", Members: []placement.Member{{Shard: "a"}, {Shard: "b"}}}
	last := registry.Weight{UUID: one.id, Hold: 34, Holds: true, Term: 3}
	told := weightsOfLeaders{"b": {"g": {UUID: one.id, Hold: 43, Holds: true, Term: 4}}}
	for _, c := range []struct {
		what string
		etcd Etcd
		last registry.Weight
		hold uint64
		on   bool
		term uint64
	}{
		{"etcd silent, nothing reported before", silentEtcd{}, registry.Weight{}, 0, false, 0},
		{"etcd silent, an earlier group reported", silentEtcd{}, registry.Weight{UUID: uuid.New(), Holds: true, Term: 3}, 0,
			false, 0},
		{"etcd silent, a report of an earlier term", silentEtcd{}, last, 34, true, 3},
		{"etcd has the report of the leader before", told, last, 43, true, 5},
		{"etcd has no report", weightsOfLeaders{}, registry.Weight{}, 0, true, 5}, // it keeps what is above its floor
	} {
		holds := newHolds(newReportedWeights(c.etcd, time.Minute), noViews{})
		hold, on, term := holds.Report(t.Context(), one, state, c.last)
		if hold != c.hold || on != c.on || term != c.term {
			t.Errorf("%s: hold %d (%t) of term %d", c.what, hold, on, term)
		}
	}
}

// A leader reads the reports of the leaders before it when it leads. An earlier answer of etcd may lack the last of
// them. Several groups that have a new leader need only one answer for each shard.
func TestANewLeaderReadsTheLastReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other, asked := newCopy(t), newCopy(t), 0
		told := weightsOfLeaders{}
		holds := newHolds(newReportedWeights(counted{told, &asked}, time.Minute), noViews{})
		stateOf := func(c copyOfGroup, name string) placement.Group {
			return placement.Group{Name: name, UUID: c.id, Members: []placement.Member{{Shard: "b"}}}
		}
		if _, on := holds.Of(t.Context(), one, stateOf(one, "g")); on {
			t.Fatal("a hold that nobody reported")
		}
		told["b"] = map[string]registry.Weight{
			"g": {UUID: one.id, Hold: 43, Holds: true, Term: 5}, "h": {UUID: other.id, Hold: 44, Holds: true, Term: 5},
		}
		time.Sleep(time.Millisecond)
		one.term, other.term, asked = 6, 6, 0
		for _, c := range []copyOfGroup{one, other} {
			holds.Led(c)
			time.Sleep(time.Millisecond)
		}
		if at, on := holds.Of(t.Context(), one, stateOf(one, "g")); at != 43 || !on {
			t.Errorf("the hold is %d (%t), and the leader before has reported 43", at, on)
		}
		time.Sleep(time.Millisecond)
		if at, on := holds.Of(t.Context(), other, stateOf(other, "h")); at != 44 || !on || asked != 1 {
			t.Errorf("the other group's hold is %d (%t), etcd was asked %d times", at, on, asked)
		}
	})
}

// counted counts how often etcd is asked.
type counted struct {
	Etcd
	asked *int
}

func (c counted) Weights(ctx context.Context, shard string) (map[string]registry.Weight, error) {
	*c.asked++
	return c.Etcd.Weights(ctx, shard)
}

// A shard that no longer leads a group repeats the hold that it has reported, also if the history floor of its own copy
// could not be written. It stops when a later leader has reported.
func TestAReportedHoldRemainsUntilALaterLeaderReports(t *testing.T) {
	one := newCopy(t)
	state := placement.Group{Name: "g", UUID: one.id, Leader: "b"}
	last := registry.Weight{UUID: one.id, Hold: 34, Holds: true, Term: 3}
	byLeader := func(term uint64) Etcd { return weightsOfLeaders{"b": {"g": {UUID: one.id, Term: term}}} }
	for _, c := range []struct {
		what string
		etcd Etcd
		last registry.Weight
		want bool
	}{
		{"etcd silent", silentEtcd{}, last, true},
		{"the next leader has not reported", weightsOfLeaders{}, last, true},
		{"the next leader does not know the hold", byLeader(0), last, true},
		{"the next leader has reported", byLeader(4), last, false},
		{"no hold was reported", weightsOfLeaders{}, registry.Weight{UUID: one.id, Term: 3}, false},
		{"an earlier group of the name", weightsOfLeaders{}, registry.Weight{UUID: uuid.New(), Holds: true, Term: 3}, false},
	} {
		holds := newHolds(newReportedWeights(c.etcd, time.Minute), noViews{})
		if got := holds.Remains(t.Context(), one, state, c.last); got != c.want {
			t.Errorf("%s: %t", c.what, got)
		}
	}
}
