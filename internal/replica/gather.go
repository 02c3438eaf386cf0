package replica

import (
	"math"
	"time"
)

// Callers that write one record after another come back as soon as they are answered. A round that begins at once would
// find only those that came during the last one: half of them in each round, twice as many syncs. So a group that has
// just ended a round waits until as many writes are there as were under way, but no longer than that round took, and
// gatherTimeMax at most. It waits only while other groups are being synced: then the device has work meanwhile.

// gatherTimeMax bounds what is added to the time of a write.
const gatherTimeMax = 5 * time.Millisecond

// gathering holds the replicas that wait for more writes. Guarded by Committer.mu.
type gathering struct {
	committer *Committer
	parked    []*Replica
	timer     *time.Timer                             // runs where parked is not empty
	wait      func(round time.Duration) time.Duration // how long at most, behind a round that took so long
}

func (g *gathering) init(c *Committer) {
	g.committer = c
	g.timer = time.AfterFunc(math.MaxInt64, c.gathered)
	g.timer.Stop()
	g.wait = func(round time.Duration) time.Duration { return min(round, gatherTimeMax) }
}

func (g *gathering) stop() { g.timer.Stop() }

// park lets a replica, which wants a round, wait for more writes; false where they are there already. Called with mu
// held.
func (g *gathering) park(r *Replica, expected int) bool {
	wait := g.wait(time.Duration(r.roundTime.Load()))
	r.parkedUntil = time.Now().Add(wait)
	r.parked.Store(int32(expected))
	// A write that comes from now on sees that it is parked; one that came before is counted here.
	if int(r.waiting.Load()) >= expected {
		r.parked.Store(0)
		return false
	}
	g.parked = append(g.parked, r)
	if len(g.parked) == 1 {
		g.timer.Reset(wait)
	}
	return true
}

// unpark gives a replica its round, where it is parked.
func (c *Committer) unpark(r *Replica) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, p := range c.gather.parked {
		if p == r {
			last := len(c.gather.parked) - 1
			c.gather.parked[i] = c.gather.parked[last]
			c.gather.release(r)
			c.gather.parked[last] = nil
			c.gather.parked = c.gather.parked[:last]
			return
		}
	}
}

// release is called with mu held.
func (g *gathering) release(r *Replica) {
	r.parked.Store(0)
	g.committer.list = append(g.committer.list, r)
	g.committer.work.Signal()
}

// gathered is the timer: it gives those a round that have waited long enough.
func (c *Committer) gathered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, next := time.Now(), time.Duration(math.MaxInt64)
	left := c.gather.parked[:0]
	for _, r := range c.gather.parked {
		if wait := r.parkedUntil.Sub(now); wait > 0 && !c.closed {
			left = append(left, r)
			next = min(next, wait)
			continue
		}
		c.gather.release(r)
	}
	clear(c.gather.parked[len(left):])
	c.gather.parked = left
	if len(left) > 0 {
		c.gather.timer.Reset(next)
	}
}

// expected says, at the end of a round, how many writes the next one may have soon; 0: it need not wait. With other
// members there are messages to send, which wait for nothing.
func (r *Replica) expected() int {
	waiting, answered := int(r.waiting.Load()), int(r.answered.Load())
	if waiting == 0 || answered == 0 || !r.alone.Load() || r.stuck.Load() {
		return 0
	}
	return waiting + answered
}

// full tells that a parked replica has the writes that it waits for.
func (r *Replica) full() bool {
	expected := r.parked.Load()
	return expected > 0 && r.waiting.Load() >= expected
}
