package rounds

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/test/leaktest"
	"sheaf.dev/sheaf/internal/test/must"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// fake is a replica whose rounds a test can delay.
type fake struct {
	round   func() // called in each round; may be nil
	rounds  atomic.Int32
	inside  atomic.Int32
	marks   atomic.Int32
	ticks   atomic.Int32
	trims   atomic.Int32
	refused atomic.Bool
	rests   atomic.Bool
	stuck   atomic.Bool
	badMark atomic.Bool
	twice   atomic.Bool // whether two goroutines were in a round at the same time
}

func (f *fake) Round() {
	if f.inside.Add(1) > 1 {
		f.twice.Store(true)
	}
	defer f.inside.Add(-1)
	f.rounds.Add(1)
	if f.round != nil {
		f.round()
	}
}

func (f *fake) Mark() bool      { f.marks.Add(1); return !f.badMark.Load() }
func (f *fake) Tick()           { f.ticks.Add(1) }
func (f *fake) NeedsTick() bool { return !f.rests.Load() }
func (f *fake) Trim()           { f.trims.Add(1) }
func (f *fake) IsStuck() bool   { return f.stuck.Load() }
func (f *fake) Refuse()         { f.refused.Store(true) }

func enter(t *testing.T, c *Committer, f *fake) *Seat {
	t.Helper()
	s := &Seat{}
	s.Init(c, f)
	must.OK(t, s.Enter(func() {}))
	return s
}

// committing runs a test in a bubble, with a committer that is closed when the test ends.
func committing(t *testing.T, test func(t *testing.T, c *Committer)) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCommitter()
		defer c.Close()
		test(t, c)
	})
}

func TestARoundThatIsAskedForMeanwhileComesBehind(t *testing.T) {
	committing(t, func(t *testing.T, c *Committer) {
		held := make(chan struct{})
		f := &fake{round: func() { <-held }}
		s := enter(t, c, f)
		var asking sync.WaitGroup
		for range 100 {
			asking.Go(s.Schedule)
		}
		asking.Wait()
		synctest.Wait()
		s.Schedule()
		if n := f.rounds.Load(); n != 1 || !s.IsScheduled() {
			t.Fatalf("%d rounds", n)
		}
		close(held)
		synctest.Wait()
		if n := f.rounds.Load(); n != 2 || s.IsScheduled() || f.twice.Load() {
			t.Fatalf("%d rounds for all that were asked for during the first; two at once: %v", n, f.twice.Load())
		}
	})
}

// TestNoRoundBeginsBesideTheFirst checks that no other round begins before the first round of a starting replica has
// ended, even if the clock requests one before or during the first round.
func TestNoRoundBeginsBesideTheFirst(t *testing.T) {
	committing(t, func(t *testing.T, c *Committer) {
		f := &fake{}
		f.round = func() { time.Sleep(time.Second) }
		s := &Seat{}
		s.Init(c, f)
		s.Schedule()
		synctest.Wait()
		must.OK(t, s.Enter(func() {
			s.Schedule()
			synctest.Wait()
			if f.inside.Load() > 0 {
				t.Error("a round is in progress beside the first")
			}
		}))
		s.Schedule()
		time.Sleep(time.Minute)
		if n := f.rounds.Load(); n == 0 || f.twice.Load() || s.IsScheduled() {
			t.Errorf("%d rounds after the first; two at a time: %t", n, f.twice.Load())
		}
	})
}

func TestAtMost64RoundsAtATimeAndASlowOneHoldsUpNobody(t *testing.T) {
	committing(t, func(t *testing.T, c *Committer) {
		held := make(chan struct{})
		var inside atomic.Int32
		var all []*fake
		for range roundsMax + 10 {
			f := &fake{round: func() { inside.Add(1); <-held }}
			enter(t, c, f).Schedule()
			all = append(all, f)
		}
		synctest.Wait()
		if n := inside.Load(); n != roundsMax {
			t.Fatalf("%d rounds at a time", n)
		}
		held <- struct{}{}
		synctest.Wait()
		if n := inside.Load(); n != roundsMax+1 {
			t.Fatalf("%d rounds begun when one has ended", n)
		}
		close(held)
		synctest.Wait()
		if slices.ContainsFunc(all, func(f *fake) bool { return f.rounds.Load() != 1 }) {
			t.Fatal("a replica has had no round, or two")
		}
	})
}

func TestLeaveWaitsForTheRoundAndLetsNoneBegin(t *testing.T) {
	committing(t, func(t *testing.T, c *Committer) {
		held := make(chan struct{})
		f := &fake{round: func() { <-held }}
		s := enter(t, c, f)
		s.Schedule()
		synctest.Wait()
		if !s.Leave() || s.Leave() {
			t.Fatal("the first Leave counts, and no other")
		}
		select {
		case <-s.Detached():
			t.Fatal("detached while a round is under way")
		default:
		}
		close(held)
		<-s.Detached()
		s.Schedule()
		time.Sleep(time.Second)
		if f.rounds.Load() != 1 {
			t.Fatalf("%d rounds", f.rounds.Load())
		}
	})
}

func TestTheClockWritesAMarkOnceAndRests(t *testing.T) {
	committing(t, func(t *testing.T, c *Committer) {
		f := &fake{}
		f.rests.Store(true)
		f.badMark.Store(true)
		s := enter(t, c, f)
		time.Sleep(5 * Interval)
		if f.marks.Load() < 2 || s.IsMarked() || c.Clocked() != 1 {
			t.Fatalf("a mark that cannot be written is tried again: %d tries", f.marks.Load())
		}
		f.badMark.Store(false)
		time.Sleep(5 * Interval)
		marks := f.marks.Load()
		if !s.IsMarked() || c.Clocked() != 0 || f.ticks.Load() != 0 {
			t.Fatalf("%d replicas have a clock", c.Clocked())
		}
		time.Sleep(time.Hour)
		if f.marks.Load() != marks || f.trims.Load() < 59 {
			t.Fatalf("marked again at rest; trimmed %d times in an hour", f.trims.Load())
		}
		f.rests.Store(false)
		s.Watch()
		time.Sleep(time.Second)
		if n := f.ticks.Load(); n < 9 || n > 11 {
			t.Fatalf("%d ticks in a second", n)
		}
		s.Synced()
		time.Sleep(5 * Interval)
		if f.marks.Load() != marks+1 {
			t.Fatal("no mark after a sync")
		}
	})
}

func TestFreedSpaceWakesThoseThatAreStuck(t *testing.T) {
	committing(t, func(t *testing.T, c *Committer) {
		stuck, other := &fake{}, &fake{}
		stuck.stuck.Store(true)
		enter(t, c, stuck)
		enter(t, c, other)
		c.SpaceFreed()
		synctest.Wait()
		if stuck.rounds.Load() != 1 || other.rounds.Load() != 0 {
			t.Fatalf("%d and %d rounds", stuck.rounds.Load(), other.rounds.Load())
		}
	})
}

func TestCloseRefusesWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCommitter()
		left, gone := &fake{}, &fake{}
		enter(t, c, left)
		enter(t, c, gone).Leave()
		c.Close()
		c.Close()
		if !left.refused.Load() || gone.refused.Load() {
			t.Fatal("who is left is refused, and nobody else")
		}
		s := &Seat{}
		s.Init(c, left)
		if err := s.Enter(func() { t.Error("a round after Close") }); !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	})
}

// fakeLog counts its syncs.
type fakeLog struct {
	syncs  atomic.Int32
	shared atomic.Int32
	shares bool
	hold   chan struct{}
}

func (l *fakeLog) Sync() error { l.syncs.Add(1); <-l.hold; return nil }

func (l *fakeLog) SyncShared() bool { l.shared.Add(1); return l.shares }

func TestSyncsAreSharedWhereSeveralRoundsAreUnderWay(t *testing.T) {
	committing(t, func(t *testing.T, c *Committer) {
		one := &fakeLog{shares: true, hold: make(chan struct{})}
		close(one.hold)
		if err := c.Sync(one, false); err != nil || one.syncs.Load() != 1 || one.shared.Load() != 0 || c.Synced() != 1 {
			t.Fatal("alone, a group's own sync is cheaper")
		}
		if err := c.Sync(one, true); err != nil || one.syncs.Load() != 1 || one.shared.Load() != 1 {
			t.Fatal("it was told to share")
		}
		log := &fakeLog{hold: make(chan struct{})} // SyncShared returns false, as if there were too much data
		for range syncsMax + 5 {
			enter(t, c, &fake{round: func() { _ = c.Sync(log, false) }}).Schedule()
		}
		synctest.Wait()
		if n := log.syncs.Load(); n != syncsMax || c.Waiting() != 5 || log.shared.Load() < syncsMax {
			t.Fatalf("%d syncs in parallel, %d wait, %d asked to share", n, c.Waiting(), log.shared.Load())
		}
		close(log.hold)
		synctest.Wait()
		if n := log.syncs.Load(); n != syncsMax+5 || c.Synced() != syncsMax+5+2 {
			t.Fatalf("%d syncs", n)
		}
	})
}
