// Package rounds runs the rounds of the replicas of one volume: which replica is next, how many write and sync at a
// time, and their clock. It knows nothing of Raft or of what a round does.
package rounds

import (
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrClosed says that the committer runs no rounds any more.
var ErrClosed = errors.New("the committer is closed")

const (
	// roundsMax is how many groups are written at a time; those that share a sync wait for it together.
	roundsMax = 64
	// syncsMax is how many segments are synced in parallel.
	syncsMax = 16
	// sharedFrom is the number of rounds under way from which on they share syncs: alone, a group's own sync is
	// cheaper.
	sharedFrom = 3
	// Interval is the committer's clock. A group is idle when it was not synced between two of its ticks, and its local
	// synced mark is written then: at most 100 ms after its last sync.
	Interval = 50 * time.Millisecond
	// Tick is the clock of the replicas (Runner.Tick).
	Tick      = tickEvery * Interval
	tickEvery = 2
	// trimInterval is how often replicas forget request ids that are too old.
	trimInterval = time.Minute
	// marksMax is how many marks are written in parallel: they must not hold up the syncs.
	marksMax = 4
)

// Log is what a Committer syncs.
type Log interface {
	Sync() error
	SyncShared() bool // false: nothing was done, Sync is to be called
}

// Committer makes the entries of all groups of one volume durable. At most 64 groups are written at a time, the others
// wait in order. Small writes of several groups share a sync (group.Log.SyncShared), at most 16 segments are synced at
// a time. A round of a group serves all its writes that wait, and what comes meanwhile its next one. Groups do not wait
// for one another's rounds to end: a slow one holds up nobody. It also has the local synced mark of each group written
// that has become idle, and runs the clock of the replicas. Safe for concurrent use.
type Committer struct {
	stop  chan struct{}  // closed by Close
	woken chan struct{}  // the clock has something to look at
	group sync.WaitGroup // of all goroutines
	syncs chan struct{}  // a token for each segment that is being synced
	// waiting is how many wait for such a token.
	waiting atomic.Int32
	busy    atomic.Int32  // rounds, for those that do not hold mu
	synced  atomic.Uint64 // see Synced

	mu      sync.Mutex // guards all below
	work    sync.Cond  // list is not empty, or closed
	list    []*Seat    // those that wait for a round, in order
	head    int        // of list
	seats   map[*Seat]struct{}
	clocked map[*Seat]struct{} // those that the clock looks at; the others rest
	rounds  int                // under way
	closed  bool
	marking bool // marks of an earlier tick are still being written
}

// NewCommitter starts a committer.
func NewCommitter() *Committer {
	c := &Committer{
		stop:    make(chan struct{}),
		woken:   make(chan struct{}, 1),
		syncs:   make(chan struct{}, syncsMax),
		seats:   make(map[*Seat]struct{}),
		clocked: make(map[*Seat]struct{}),
	}
	c.work.L = &c.mu
	c.group.Go(c.clock)
	for range roundsMax {
		c.group.Go(c.run)
	}
	return c
}

// Close stops it after the rounds under way. Replicas that were not stopped before refuse writes from now on; what was
// on its way is answered ErrOutcomeUnknown.
func (c *Committer) Close() {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.stop)
		c.work.Broadcast()
	}
	left := make([]*Seat, 0, len(c.seats))
	for s := range c.seats {
		left = append(left, s)
	}
	c.mu.Unlock()
	c.group.Wait()
	for _, s := range left {
		if s.Leave() {
			<-s.detached
			s.runner.Refuse()
		}
	}
}

// RoomMade tells that room was made on the volume: logs without room are tried again at once.
func (c *Committer) RoomMade() {
	var stuck []*Seat
	c.mu.Lock()
	for s := range c.seats {
		if s.runner.IsStuck() {
			stuck = append(stuck, s)
		}
	}
	c.mu.Unlock()
	for _, s := range stuck {
		s.Schedule()
	}
}

// enter begins to run rounds of a replica.
func (c *Committer) enter(s *Seat) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.seats[s] = struct{}{}
	c.watchLocked(s)
	return nil
}

// watch has the clock look at a replica, until that rests.
func (c *Committer) watch(s *Seat) {
	if s.clocked.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchLocked(s)
}

func (c *Committer) watchLocked(s *Seat) {
	if _, there := c.seats[s]; !there || !s.clocked.CompareAndSwap(false, true) {
		return
	}
	c.clocked[s] = struct{}{}
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

func (c *Committer) remove(s *Seat) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.seats, s)
	delete(c.clocked, s)
}

// Waiting counts the syncs that wait for their turn.
func (c *Committer) Waiting() int { return int(c.waiting.Load()) }

// Clocked counts the replicas that the clock looks at; the others rest.
func (c *Committer) Clocked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.clocked)
}

// Synced counts the rounds whose entries were made durable. Each is counted before anything of it is acknowledged, and
// after it is durable: where the count is what it was at some moment, nothing was acknowledged since that was not
// durable then.
func (c *Committer) Synced() uint64 { return c.synced.Load() }

// Sync makes what was appended to a log durable: with the writes of other groups, where several are under way or share
// says so.
func (c *Committer) Sync(log Log, share bool) error {
	defer c.synced.Add(1)
	if (share || int(c.busy.Load()) >= sharedFrom) && log.SyncShared() {
		return nil
	}
	c.waiting.Add(1)
	c.syncs <- struct{}{}
	c.waiting.Add(-1)
	defer func() { <-c.syncs }()
	return log.Sync()
}

// push puts a replica in the list. It is not in it.
func (c *Committer) push(s *Seat) {
	c.mu.Lock()
	c.list = append(c.list, s)
	c.watchLocked(s)
	c.mu.Unlock()
	c.work.Signal()
}

// next takes the first replica of the list. Nil: the committer closes.
func (c *Committer) next() *Seat {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.head == len(c.list) && !c.closed {
		c.work.Wait()
	}
	if c.closed {
		return nil
	}
	s := c.list[c.head]
	c.list[c.head] = nil
	c.head++
	if c.head == len(c.list) {
		c.list, c.head = c.list[:0], 0
	} else if c.head > len(c.list)/2 {
		n := copy(c.list, c.list[c.head:])
		clear(c.list[n:])
		c.list, c.head = c.list[:n], 0
	}
	c.rounds++
	c.busy.Store(int32(c.rounds))
	return s
}

// roundOver ends what next began. With again the replica wants another round.
func (c *Committer) roundOver(s *Seat, again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rounds--
	c.busy.Store(int32(c.rounds))
	if again {
		c.list = append(c.list, s)
	}
}

// run is one of the goroutines that write and sync.
func (c *Committer) run() {
	for {
		s := c.next()
		if s == nil {
			return
		}
		again := false
		if s.begin() {
			s.runner.Round()
			if again = s.end(); again {
				runtime.Gosched() // whoever was answered may write again, and be part of the next round
			}
		}
		c.roundOver(s, again)
	}
}

func (c *Committer) clock() {
	clock, trim := time.NewTicker(Interval), time.NewTicker(trimInterval)
	defer clock.Stop()
	defer trim.Stop()
	for ticks, stands := 1, false; ; {
		select {
		case <-c.stop:
			return
		case <-trim.C:
			c.trim()
		case <-clock.C:
			ticks++
			if stands = !c.tick(ticks); stands {
				clock.Stop() // a shard whose groups all rest is not woken 20 times a second
			}
		case <-c.woken:
			if stands {
				stands = false
				clock.Reset(Interval)
			}
		}
	}
}

// trim has all replicas forget old request ids.
func (c *Committer) trim() {
	c.mu.Lock()
	all := slices.Collect(maps.Keys(c.seats))
	c.mu.Unlock()
	for _, s := range all {
		s.runner.Trim()
	}
}

// tick runs Raft's clocks, tries again what had no room, and has the marks of idle groups written. False: all rest.
func (c *Committer) tick(ticks int) bool {
	var clocked, idle []*Seat
	c.mu.Lock()
	for s := range c.clocked {
		if ticks%tickEvery == 0 && s.runner.NeedsTick() {
			clocked = append(clocked, s)
		}
		if !c.marking && s.isIdle() {
			idle = append(idle, s)
		}
		if s.rests() {
			s.clocked.Store(false)
			if s.rests() { // else it woke up meanwhile, and took the clock for running
				delete(c.clocked, s)
			} else {
				s.clocked.Store(true)
			}
		}
	}
	left := len(c.clocked) > 0
	c.marking = c.marking || len(idle) > 0
	c.mu.Unlock()
	for _, s := range clocked {
		s.runner.Tick()
	}
	if len(idle) > 0 {
		c.group.Go(func() { c.mark(idle) })
	}
	return left
}

// mark writes the marks of replicas that are idle still.
func (c *Committer) mark(idle []*Seat) {
	var marks sync.WaitGroup
	todo := make(chan *Seat)
	for range min(marksMax, len(idle)) {
		marks.Go(func() {
			for s := range todo {
				s.mark()
			}
		})
	}
	for _, s := range idle {
		todo <- s
	}
	close(todo)
	marks.Wait()
	c.mu.Lock()
	c.marking = false
	c.mu.Unlock()
}
