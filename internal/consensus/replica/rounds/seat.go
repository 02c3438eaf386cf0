package rounds

import "sync/atomic"

// Runner is a replica as the Committer sees it.
type Runner interface {
	// Round writes, syncs and applies pending work, and wakes its waiters. It is called by one goroutine at a time.
	Round()
	// Mark writes the local synced mark. It is called instead of a round, and returns false on failure.
	Mark() bool
	// Tick is called once in each period of the replicas' clock (the constant Tick) while NeedsTick returns true.
	Tick()
	NeedsTick() bool
	// Trim forgets request ids that are too old. It is called every minute.
	Trim()
	// IsStuck reports whether the log has no space. A stuck replica needs another round as soon as there is space again.
	IsStuck() bool
	// Refuse answers all waiting calls. It is called when the committer is closed, so that no more rounds begin.
	Refuse()
}

// A seat is idle (0), waits in the committer's list (dirty), is in a round (busy), or is in a round and needs another
// one (both). A seat whose replica has left is never put into the list again.
const (
	dirty uint32 = 1 << iota
	busy
	gone
)

// A group's local synced mark says up to where its log is synced. These are the states of the mark.
const (
	markWritten uint32 = iota
	markBehind         // there was a sync since the last tick
	markDue            // there was no sync since the last tick, so the mark must be written
)

// Seat is one replica's place in its Committer. It records whether the replica waits for a round or is in one. It is
// safe for concurrent use.
type Seat struct {
	committer *Committer
	runner    Runner
	state     atomic.Uint32
	detached  chan struct{} // closed when the committer has released the seat
	clocked   atomic.Bool   // whether Committer.clocked contains the seat; written with Committer.mu held
	marks     atomic.Uint32 // markWritten, markBehind or markDue
}

// Init initializes a replica's seat. The seat should be a field of the replica, so that the clock finds both in
// adjacent memory. The committer runs the replica's rounds after Enter.
func (s *Seat) Init(c *Committer, runner Runner) {
	s.committer, s.runner, s.detached = c, runner, make(chan struct{})
	s.state.Store(busy) // busy until Enter has run the first round
	s.Synced()          // loading the log may have synced bytes after the mark
}

// Enter calls the function `first` in the caller's goroutine, in place of the first round. From then on, the committer
// runs the replica's rounds. If a round is requested before the function returns, for example by the clock, that round
// begins after the function has returned. If the committer is closed, Enter returns ErrClosed and does not call the
// function.
func (s *Seat) Enter(first func()) error {
	if !s.admit() {
		return ErrClosed
	}
	defer s.endAndPush()
	first()
	return nil
}

// admit adds the seat to the committer's seats. It returns false if the committer is closed.
func (s *Seat) admit() bool {
	c := s.committer
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.seats[s] = struct{}{}
	c.watch(s)
	return true
}

// Detached returns a channel that is closed when no round of the replica is in progress, and none will begin.
func (s *Seat) Detached() <-chan struct{} { return s.detached }

// Schedule requests a round. It may also be called during a round. The call is cheap if a round is already requested.
func (s *Seat) Schedule() {
	if s.state.Load()&dirty != 0 {
		return
	}
	if s.state.Or(dirty) == 0 {
		s.committer.push(s)
	}
}

// IsScheduled reports whether a round is requested or in progress.
func (s *Seat) IsScheduled() bool { return s.state.Load() != 0 }

// Synced records that the log was synced, so that its local synced mark is outdated.
func (s *Seat) Synced() { s.marks.Store(markBehind) }

// IsMarked reports whether the local synced mark is up to date on disk.
func (s *Seat) IsMarked() bool { return s.marks.Load() == markWritten }

// Watch makes the clock include the replica until the replica rests.
func (s *Seat) Watch() {
	if s.clocked.Load() {
		return
	}
	s.committer.mu.Lock()
	defer s.committer.mu.Unlock()
	s.committer.watch(s)
}

// Leave releases the replica, so that no further round begins. The channel of Detached is closed when no round is in
// progress. Leave returns false if it was called before.
func (s *Seat) Leave() bool {
	s.committer.remove(s)
	old := s.state.Or(gone)
	if old&gone != 0 {
		return false
	}
	if old&busy == 0 {
		close(s.detached)
	}
	return true
}

// begin starts a round. A request that arrives after this call causes another round. begin returns false if the
// replica has left.
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

// end finishes a round. If it returns true, another round was requested meanwhile, and the caller must schedule it.
func (s *Seat) end() (again bool) {
	old := s.state.And(^busy)
	if old&gone != 0 {
		close(s.detached)
		return false
	}
	return old&dirty != 0
}

// endAndPush finishes a round that the committer did not run, and schedules another round if one was requested
// meanwhile.
func (s *Seat) endAndPush() {
	if s.end() {
		s.committer.push(s)
	}
}

// rests reports whether the clock has nothing to do for the replica until the replica is scheduled or wakes up.
func (s *Seat) rests() bool { return !s.runner.NeedsTick() && s.IsMarked() && !s.IsScheduled() }

// isIdle reports whether the mark must be written now. It must be called once per tick.
func (s *Seat) isIdle() bool {
	if s.marks.CompareAndSwap(markBehind, markDue) {
		return false
	}
	return s.marks.Load() == markDue && !s.IsScheduled()
}

// mark updates the local synced mark, unless a round is requested or in progress.
func (s *Seat) mark() {
	if !s.state.CompareAndSwap(0, busy) {
		return
	}
	if s.runner.Mark() {
		s.marks.CompareAndSwap(markDue, markWritten)
	}
	s.endAndPush()
}
