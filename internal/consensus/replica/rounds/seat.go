package rounds

import "sync/atomic"

// Runner is a replica as a Committer sees it.
type Runner interface {
	// Round writes, syncs and applies what there is, and wakes who waits; false where there was nothing to do. One
	// goroutine at a time calls it.
	Round() bool
	// Mark writes the local synced mark, in the place of a round; false where it could not.
	Mark() bool
	// Tick is the clock, each Tick; it is called where NeedsTick says so.
	Tick()
	NeedsTick() bool
	// Trim forgets what is too old, each minute.
	Trim()
	// IsStuck tells that the log had no room: a round is to be tried when there is some.
	IsStuck() bool
	// Refuse answers everything: the committer is closed, and no round begins any more.
	Refuse()
}

// A seat is idle (0), waits in the committer's list (dirty), is in a round (busy), or is in a round and must go into
// another one (both). Gone ones are never put in the list again.
const (
	dirty uint32 = 1 << iota
	busy
	gone
)

// What the clock knows about the local synced mark of a group.
const (
	markWritten uint32 = iota
	markBehind         // there was a sync since the last tick
	markDue            // no sync since the last tick: to be written
)

// Seat is the place of one replica with its Committer: whether it waits for a round or is in one. Safe for concurrent
// use.
type Seat struct {
	committer *Committer
	runner    Runner
	state     atomic.Uint32
	detached  chan struct{} // closed when the committer has let go of it
	clocked   atomic.Bool   // in Committer.clocked; written with the committer's mu held
	marks     atomic.Uint32 // markWritten, markBehind or markDue
}

// Init makes the seat of a replica, which is to be part of it: the clock looks at both. Rounds of the replica are run
// from Enter on.
func (s *Seat) Init(c *Committer, runner Runner) {
	s.committer, s.runner, s.detached = c, runner, make(chan struct{})
	s.Synced() // a load has synced what was above the mark
}

// Enter begins to run rounds of the replica. ErrClosed where the committer runs none any more.
func (s *Seat) Enter() error { return s.committer.enter(s) }

// Detached is closed when no round of the replica is under way, and none begins any more.
func (s *Seat) Detached() <-chan struct{} { return s.detached }

// Schedule asks for a round. Cheap where one is asked for already.
func (s *Seat) Schedule() {
	if s.state.Load()&dirty != 0 {
		return
	}
	if s.state.Or(dirty) == 0 {
		s.committer.push(s)
	}
}

// Again asks for another round from within one.
func (s *Seat) Again() { s.state.Or(dirty) }

// IsScheduled tells that a round is asked for or under way.
func (s *Seat) IsScheduled() bool { return s.state.Load() != 0 }

// Synced notes that the log was synced: its local synced mark is behind.
func (s *Seat) Synced() { s.marks.Store(markBehind) }

// IsMarked tells that the local synced mark is written.
func (s *Seat) IsMarked() bool { return s.marks.Load() == markWritten }

// Watch has the clock look at the replica, until that rests.
func (s *Seat) Watch() { s.committer.watch(s) }

// Run calls f in the place of a round, in the caller's goroutine; not at all where the committer has let go of the
// replica.
func (s *Seat) Run(f func()) {
	if !s.begin() {
		return
	}
	defer s.endAndPush()
	f()
}

// Leave lets go of the replica: no round of it begins any more, and Detached is closed when none is under way. False
// where it was called before.
func (s *Seat) Leave() bool {
	s.committer.remove(s)
	return s.detach()
}

// begin enters a round: what is asked for from now on needs another one. False where the replica is gone.
func (s *Seat) begin() bool {
	for {
		old := s.state.Load()
		if old&gone != 0 {
			return false
		}
		if s.state.CompareAndSwap(old, busy) {
			return true
		}
	}
}

// end leaves a round; true where another one was asked for meanwhile: the caller must see to it.
func (s *Seat) end() (again bool) {
	old := s.state.And(^busy)
	if old&gone != 0 {
		close(s.detached)
		return false
	}
	return old&dirty != 0
}

// endAndPush leaves a round that is not run by the committer.
func (s *Seat) endAndPush() {
	if s.end() {
		s.committer.push(s)
	}
}

// detach lets no round begin any more; detached is closed when none is under way. False where it was called before.
func (s *Seat) detach() bool {
	old := s.state.Or(gone)
	if old&gone != 0 {
		return false
	}
	if old&busy == 0 {
		close(s.detached)
	}
	return true
}

// rests tells that the clock has nothing to do here, until the replica is put in the committer's list or wakes.
func (s *Seat) rests() bool { return !s.runner.NeedsTick() && s.IsMarked() && !s.IsScheduled() }

// isIdle tells, once per tick, whether the mark must be written now.
func (s *Seat) isIdle() bool {
	if s.marks.CompareAndSwap(markBehind, markDue) {
		return false
	}
	return s.marks.Load() == markDue && !s.IsScheduled()
}

// mark brings the local synced mark up to date, unless a round is asked for or under way.
func (s *Seat) mark() {
	if !s.state.CompareAndSwap(0, busy) {
		return
	}
	if s.runner.Mark() {
		s.marks.CompareAndSwap(markDue, markWritten)
	}
	s.endAndPush()
}
