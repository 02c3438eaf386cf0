// Package rounds runs the rounds of all replicas on one volume. It decides which replica is next and how many replicas
// write and sync at a time, and runs the replicas' clock. It depends neither on Raft nor on what a round does.
package rounds

import (
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sheaf.dev/sheaf/internal/base/parallel"
)

// ErrClosed means that the committer no longer runs rounds.
var ErrClosed = errors.New("the committer is closed")

const (
	// roundsMax is the number of groups that may write at the same time. Groups that share a sync wait for it together.
	roundsMax = 64
	// syncsMax is the number of segments that may be synced at the same time.
	syncsMax = 16
	// When at least sharedFrom rounds are in progress, they share syncs. For a single group, a separate sync is cheaper.
	sharedFrom = 3
	// Interval is the period of the committer's clock. A group that was not synced between two ticks is idle. The
	// committer then writes the group's local synced mark, which says up to where the log is synced. This happens at
	// most 100 ms after the last sync.
	Interval = 50 * time.Millisecond
	// Tick is the period of the replicas' clock (Runner.Tick).
	Tick      = tickEvery * Interval
	tickEvery = 2
	// trimInterval is how often replicas forget request ids that are too old.
	trimInterval = time.Minute
	// marksMax is the number of marks that may be written at the same time. It is small because marks must not delay the
	// syncs.
	marksMax = 4
)

// Log is a log that a Committer syncs.
type Log interface {
	Sync() error
	SyncShared() bool // if it returns false, it did nothing, and Sync must be called
}

// Committer makes the entries of all groups on one volume durable. At most 64 groups are written at a time; the others
// queue in order. Small writes of several groups share a sync (group.Log.SyncShared). At most 16 segments are synced at
// a time. A group's round serves all of its writes that wait when the round begins, and the next round serves those
// that arrive meanwhile. No group waits for another group's round to end, so a slow group does not delay others. The
// Committer also makes each group that has become idle write its local synced mark, and runs the clock of the replicas.
// It is safe for concurrent use.
type Committer struct {
	stop  chan struct{}  // closed by Close
	woken chan struct{}  // wakes the clock
	group sync.WaitGroup // waits for all goroutines of the committer
	syncs chan struct{}  // holds a token for each segment that is being synced
	// waiting is the number of syncs that wait for a token from the channel syncs.
	waiting atomic.Int32
	busy    atomic.Int32  // number of rounds in progress
	synced  atomic.Uint64 // see Synced

	mu      sync.Mutex // guards the fields below
	work    sync.Cond  // signals that list is not empty, or that the committer is closed
	list    []*Seat    // seats that wait for a round, in order
	head    int        // index of the first seat in list
	seats   map[*Seat]struct{}
	clocked map[*Seat]struct{} // seats of replicas whose clock runs; all other replicas rest
	closed  bool
	marking bool // whether marks of an earlier tick are still being written
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

// Close waits for the rounds in progress and stops the committer. Replicas that are not stopped yet refuse writes
// from then on. Writes in progress are answered with ErrOutcomeUnknown.
func (c *Committer) Close() {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.stop)
		c.work.Broadcast()
	}
	left := slices.Collect(maps.Keys(c.seats))
	c.mu.Unlock()
	c.group.Wait()
	for _, s := range left {
		if s.Leave() {
			<-s.detached
			s.runner.Refuse()
		}
	}
}

// SpaceFreed signals that space was freed on the volume, so that writes to logs without space are retried immediately.
func (c *Committer) SpaceFreed() {
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

// watch makes the clock include a replica until the replica rests. It is called with mu held.
func (c *Committer) watch(s *Seat) {
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

// Waiting returns the number of syncs that wait for their turn.
func (c *Committer) Waiting() int { return int(c.waiting.Load()) }

// Clocked returns the number of replicas whose clock runs. All other replicas rest.
func (c *Committer) Clocked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.clocked)
}

// Synced returns the number of rounds whose entries were made durable. A round is counted after its entries are
// durable, and before any of them is acknowledged. If the count has not changed since some moment, everything
// acknowledged since then was already durable at that moment.
func (c *Committer) Synced() uint64 { return c.synced.Load() }

// Sync makes the appended data of a log durable. It shares the sync with other groups if several rounds are in
// progress or if share is set.
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

// push appends a replica to the list. The replica must not be in the list yet.
func (c *Committer) push(s *Seat) {
	c.mu.Lock()
	c.list = append(c.list, s)
	c.watch(s)
	c.mu.Unlock()
	c.work.Signal()
}

// next takes the first replica from the list. It returns nil if the committer is closing.
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
	c.busy.Add(1)
	return s
}

// roundOver ends a round that the method next began for a replica. If again is true, the replica wants another round.
func (c *Committer) roundOver(s *Seat, again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy.Add(-1)
	if again {
		c.list = append(c.list, s)
	}
}

// run is the loop of the goroutines that write and sync.
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
				runtime.Gosched() // the callers that were just answered can now send new writes, which join the next round
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
				clock.Stop() // a shard whose groups all rest must not wake up 20 times a second
			}
		case <-c.woken:
			if stands {
				stands = false
				clock.Reset(Interval)
			}
		}
	}
}

// trim makes all replicas forget old request ids.
func (c *Committer) trim() {
	c.mu.Lock()
	all := slices.Collect(maps.Keys(c.seats))
	c.mu.Unlock()
	for _, s := range all {
		s.runner.Trim()
	}
}

// tick runs Raft's clocks, lets logs that had no space try again, and lets idle groups write their marks. It returns
// false if all replicas rest.
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
			if s.rests() { // a replica that has woken up meanwhile needs the clock again
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

// mark writes the marks of replicas that are still idle.
func (c *Committer) mark(idle []*Seat) {
	parallel.Each(slices.Values(idle), marksMax, (*Seat).mark)
	c.mu.Lock()
	c.marking = false
	c.mu.Unlock()
}
