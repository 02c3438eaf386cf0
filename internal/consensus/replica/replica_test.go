package replica

import (
	"errors"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/consensus/replica/writes"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func isNotFound(err error) bool { return errors.Is(err, group.ErrNotFound) }

func TestSoleVoterWritesAfterStart(t *testing.T) {
	m := newMachine(t, vfstest.NewMem(), "/v")
	one := m.open("7", nil)
	if s := one.Status(); !s.Leader || s.Err != nil || s.LeaderID != raftID {
		t.Fatalf("status %+v", s)
	}
	result := one.must(t, put(1, "a"))
	one.wantData(t, 1, "a")
	if result.Index == 0 || result.CommitTime == 0 || result.Repeated {
		t.Fatalf("result %+v", result)
	}
	deleted := one.must(t, del(1))
	if !deleted.Existed || deleted.Index != result.Index+1 {
		t.Fatalf("delete: %+v", deleted)
	}
	if again := one.must(t, del(1)); again != (Result{}) {
		t.Fatalf("delete of nothing: %+v", again)
	}
	one.stop(t)
	if _, err := one.do(t, put(1, "b")); !errors.Is(err, ErrStopping) {
		t.Fatalf("after Stop: %v", err)
	}
}

// The newest version is looked up in the log before the replica is locked. Entries applied between the look-up and the
// lock must also be taken into account.
func TestConditionSeesWhatWasAppliedSinceTheLogWasAsked(t *testing.T) {
	m := newMachine(t, vfstest.NewMem(), "/v")
	one := m.open("7", nil)
	w := put(1, "mine").ifAbsent()
	draft := writes.Prepare(&w.Write, one.heads)
	other := one.must(t, put(1, "other"))
	wantCondition(t, one.accept(&w.Write, draft, true), ErrExists, other.Index)
}

// The commit time never decreases, even if the machine's clock is moved back or the replica restarts.
func TestCommitTimeNeverDecreases(t *testing.T) {
	mem := vfstest.NewMem()
	times := []int64{1000, 5000, 2000, 5001, 10}
	last := int64(0)
	for range 2 {
		m := newMachine(t, mem, "/v")
		at := 0
		one := m.open("7", func(_ *group.Options, o *Options) {
			o.Now = func() time.Time { return time.Unix(0, times[at]) }
		})
		for at = range times {
			result := one.must(t, put(1, "a"))
			if result.CommitTime != max(last, times[at]) {
				t.Fatalf("commit time %d, clock %d, last %d", result.CommitTime, times[at], last)
			}
			last = result.CommitTime
			record, err := one.log.Get(1, group.GetOptions{})
			ok(t, err)
			if record.Timestamp != last || record.CommitTime != last {
				t.Fatalf("stored timestamp %d and commit time %d, want %d", record.Timestamp, record.CommitTime, last)
			}
		}
		at = 0
		one.stop(t)
		m.halt()
	}
	given := newMachine(t, mem, "/v").open("7", nil)
	given.must(t, write{Write{ID: 2, Timestamp: -5, HasTime: true}})
	if record, err := given.log.Get(2, group.GetOptions{}); err != nil || record.Timestamp != -5 {
		t.Fatalf("the caller's timestamp: %+v %v", record, err)
	}
}

// After Stop the log holds the commit index, so the next start applies everything that was committed.
func TestStopLeavesNothingUnapplied(t *testing.T) {
	mem := vfstest.NewMem()
	m := newMachine(t, mem, "/v")
	one := m.open("7", nil)
	last := one.must(t, put(1, "a"))
	one.stop(t)
	m.halt()
	log, _, err := group.Load(timeout(t), m.logOptions("7"), nil)
	ok(t, err)
	defer log.Close(false)
	if log.AppliedIndex() != last.Index {
		t.Fatalf("applied %d, want %d", log.AppliedIndex(), last.Index)
	}
}
