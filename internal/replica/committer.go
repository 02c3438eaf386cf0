package replica

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// roundsMax is how many groups are written at a time; those that share a sync wait for it together.
	roundsMax = 64
	// syncsMax is how many segments are synced in parallel.
	syncsMax = 16
	// sharedFrom is the number of rounds under way from which on they share syncs: alone, a group's own sync is cheaper.
	sharedFrom = 3
	// clockInterval is the committer's clock. A group is idle when it was not synced between two ticks, and its local
	// synced mark is written then: at most 100 ms after its last sync.
	clockInterval = 50 * time.Millisecond
	// raftTicks is Raft's clock: a tick each 100 ms.
	raftTicks = 2
	// trimInterval is how often replicas forget request ids that are too old.
	trimInterval = time.Minute
	// marksMax is how many marks are written in parallel: they must not hold up the syncs.
	marksMax = 4
)

// Committer makes the entries of all groups of one volume durable. At most 64 groups are written at a time, the others wait in order.
// Small writes of several groups share a sync (group.Log.SyncShared), at most 16 segments are synced at a time. A round of a group serves
// all its writes that wait, and what comes meanwhile its next one. Groups do not wait for one another's rounds to end: a slow one holds up
// nobody. It also calls Log.Tick of each group that has become idle, and runs Raft's clocks.
type Committer struct {
	stop  chan struct{}  // closed by Close
	woken chan struct{}  // the clock has something to look at
	group sync.WaitGroup // of all goroutines
	syncs chan struct{}  // a token for each segment that is being synced
	// waiting is how many wait for such a token.
	waiting atomic.Int32
	busy    atomic.Int32  // rounds, for those that do not hold mu
	synced  atomic.Uint64 // see Synced

	mu       sync.Mutex // guards all below
	work     sync.Cond  // list is not empty, or closed
	list     []*Replica // those that wait for a round, in order
	head     int        // of list
	replicas map[*Replica]struct{}
	clocked  map[*Replica]struct{} // those that the clock looks at; the others rest
	rounds   int                   // under way
	closed   bool
	marking  bool // marks of an earlier tick are still being written
}

// NewCommitter starts a committer.
func NewCommitter() *Committer {
	c := &Committer{
		stop:     make(chan struct{}),
		woken:    make(chan struct{}, 1),
		syncs:    make(chan struct{}, syncsMax),
		replicas: make(map[*Replica]struct{}),
		clocked:  make(map[*Replica]struct{}),
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
	left := make([]*Replica, 0, len(c.replicas))
	for r := range c.replicas {
		left = append(left, r)
	}
	c.mu.Unlock()
	c.group.Wait()
	for _, r := range left {
		if c.remove(r) {
			<-r.detached
			r.refuseAll()
		}
	}
}

// RoomMade tells that room was made on the volume: logs without room are tried again at once.
func (c *Committer) RoomMade() {
	var stuck []*Replica
	c.mu.Lock()
	for r := range c.replicas {
		if r.stuck.Load() {
			stuck = append(stuck, r)
		}
	}
	c.mu.Unlock()
	for _, r := range stuck {
		r.schedule()
	}
}

func (c *Committer) add(r *Replica) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("%w: its committer is closed", ErrStopping)
	}
	c.replicas[r] = struct{}{}
	c.watchLocked(r)
	return nil
}

// watch has the clock look at a replica, until that rests.
func (c *Committer) watch(r *Replica) {
	if r.clocked.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchLocked(r)
}

func (c *Committer) watchLocked(r *Replica) {
	if _, there := c.replicas[r]; !there || !r.clocked.CompareAndSwap(false, true) {
		return
	}
	c.clocked[r] = struct{}{}
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// remove lets go of a replica: no round of it begins any more, and its detached is closed when none is under way. False
// where that was asked for before.
func (c *Committer) remove(r *Replica) bool {
	c.mu.Lock()
	delete(c.replicas, r)
	delete(c.clocked, r)
	c.mu.Unlock()
	return r.detach()
}

// Synced counts the rounds whose entries were made durable. Each is counted before anything of it is acknowledged, and after it is durable: where
// the count is what it was at some moment, nothing was acknowledged since that was not durable then.
func (c *Committer) Synced() uint64 { return c.synced.Load() }

// sync makes what was appended to a log durable: with the writes of other groups, where several are under way.
func (c *Committer) sync(log store, share bool) error {
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
func (c *Committer) push(r *Replica) {
	c.mu.Lock()
	c.list = append(c.list, r)
	c.watchLocked(r)
	c.mu.Unlock()
	c.work.Signal()
}

// next takes the first replica of the list. Nil: the committer closes.
func (c *Committer) next() *Replica {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.head == len(c.list) && !c.closed {
		c.work.Wait()
	}
	if c.closed {
		return nil
	}
	r := c.list[c.head]
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
	return r
}

// roundOver ends what next began. With again the replica wants another round.
func (c *Committer) roundOver(r *Replica, again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rounds--
	c.busy.Store(int32(c.rounds))
	if again {
		c.list = append(c.list, r)
	}
}

// run is one of the goroutines that write and sync.
func (c *Committer) run() {
	for {
		r := c.next()
		if r == nil {
			return
		}
		again := false
		if r.begin() {
			r.runOnce()
			if again = r.end(); again {
				runtime.Gosched() // whoever was answered may write again, and be part of the next round
			}
		}
		c.roundOver(r, again)
	}
}

func (c *Committer) clock() {
	clock, trim := time.NewTicker(clockInterval), time.NewTicker(trimInterval)
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
				clock.Reset(clockInterval)
			}
		}
	}
}

// trim has all replicas forget old request ids.
func (c *Committer) trim() {
	c.mu.Lock()
	all := slices.Collect(maps.Keys(c.replicas))
	c.mu.Unlock()
	for _, r := range all {
		r.trimWindow()
	}
}

// tick runs Raft's clocks, tries again what had no room, and has the marks of idle groups written. False: all rest.
func (c *Committer) tick(ticks int) bool {
	var clocked, idle []*Replica
	c.mu.Lock()
	for r := range c.clocked {
		if ticks%raftTicks == 0 && r.needsClock() {
			clocked = append(clocked, r)
		}
		if !c.marking && r.isIdle() {
			idle = append(idle, r)
		}
		if r.rests() {
			r.clocked.Store(false)
			if r.rests() { // else it woke up meanwhile, and took the clock for running
				delete(c.clocked, r)
			} else {
				r.clocked.Store(true)
			}
		}
	}
	left := len(c.clocked) > 0
	c.marking = c.marking || len(idle) > 0
	c.mu.Unlock()
	for _, r := range clocked {
		r.tick()
	}
	if len(idle) > 0 {
		c.group.Go(func() { c.mark(idle) })
	}
	return left
}

// mark writes the marks of replicas that are idle still.
func (c *Committer) mark(idle []*Replica) {
	var marks sync.WaitGroup
	todo := make(chan *Replica)
	for range min(marksMax, len(idle)) {
		marks.Go(func() {
			for r := range todo {
				if r.tryBegin() {
					r.mark()
					r.endAndPush()
				}
			}
		})
	}
	for _, r := range idle {
		todo <- r
	}
	close(todo)
	marks.Wait()
	c.mu.Lock()
	c.marking = false
	c.mu.Unlock()
}
