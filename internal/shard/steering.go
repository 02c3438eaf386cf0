package shard

import (
	"sync"
	"sync/atomic"
	"time"

	"sheaf.dev/sheaf/internal/shard/replicas"
)

// steering is the list of groups to look at. It has its own lock, because groups are added while their replica is
// locked.
type steering struct {
	wake chan struct{}

	list  sync.Mutex // guards all below
	due   map[*replicas.Replica]struct{}
	busy  map[*replicas.Replica]struct{} // being looked at
	moves map[*replicas.Replica]struct{} // groups that are getting copies elsewhere now
	waits map[*replicas.Replica]*steerWait
	fetch map[*replicas.Replica]uint64 // groups to install again, and the member to install from
	leads map[*replicas.Replica]*lead
}

// lead is what the steerer remembers of a group. Only the look at the group uses it, except for deleting.
type lead struct {
	deleting  atomic.Bool // deleteGroup or resume is in progress
	changedAt time.Time   // time of the last membership change asked for here
	term      uint64      // term in which this shard last led the group
	since     time.Time   // when term was first seen
	// come lists the wanted shards that are registered and hold no member, with their volumes, as the leader last saw
	// them.
	come      []string
	comeSince time.Time // when come was first seen
}

// steerWait is the time until the next look at a group that is unfinished.
type steerWait struct {
	looks int // looks since the last step, all of which left something unfinished
	timer *time.Timer
}

func newSteering() steering {
	return steering{
		wake: make(chan struct{}, 1), due: map[*replicas.Replica]struct{}{}, busy: map[*replicas.Replica]struct{}{},
		moves: map[*replicas.Replica]struct{}{},
		waits: map[*replicas.Replica]*steerWait{}, fetch: map[*replicas.Replica]uint64{},
		leads: map[*replicas.Replica]*lead{},
	}
}

func (q *steering) wakeUp() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// ask requests a look at a group. It never blocks.
func (q *steering) ask(g *replicas.Replica) {
	q.list.Lock()
	q.due[g] = struct{}{}
	q.list.Unlock()
	q.wakeUp()
}

// take returns the groups that are due and not being looked at, and the groups to install again.
func (q *steering) take() (due []*replicas.Replica, fetch map[*replicas.Replica]uint64) {
	q.list.Lock()
	defer q.list.Unlock()
	for g := range q.due {
		if _, busy := q.busy[g]; !busy {
			q.busy[g] = struct{}{}
			delete(q.due, g)
			due = append(due, g)
		}
	}
	fetch, q.fetch = q.fetch, map[*replicas.Replica]uint64{}
	return due, fetch
}

// done ends the look at a group. If something is left to do, the function next is called after a pause. The pause grows
// each time, and is never in step with Raft's clocks, because a member looks silent whenever they tick.
func (q *steering) done(g *replicas.Replica, unfinished bool, next func()) {
	q.list.Lock()
	defer q.list.Unlock()
	delete(q.busy, g)
	if _, again := q.due[g]; again {
		q.wakeUp()
	}
	w := q.waits[g]
	if w != nil {
		w.timer.Stop()
	}
	if !unfinished {
		delete(q.waits, g)
		return
	}
	if w == nil {
		w = &steerWait{}
		q.waits[g] = w
	}
	w.timer = time.AfterFunc(lookPauses.After(w.looks), next)
	w.looks++
}

// stepped resets the pauses of a group after a step.
func (q *steering) stepped(g *replicas.Replica) {
	q.list.Lock()
	defer q.list.Unlock()
	if w := q.waits[g]; w != nil {
		w.looks = 0
	}
}

// mayMove reports whether a group may get copies elsewhere now, and if so reserves a place for it.
func (q *steering) mayMove(g *replicas.Replica, limit int) bool {
	q.list.Lock()
	defer q.list.Unlock()
	if _, moves := q.moves[g]; !moves && len(q.moves) >= limit {
		return false
	}
	q.moves[g] = struct{}{}
	return true
}

func (q *steering) moved(g *replicas.Replica) {
	q.list.Lock()
	defer q.list.Unlock()
	delete(q.moves, g)
}

// leadOf returns what is remembered of a group.
func (q *steering) leadOf(g *replicas.Replica) *lead {
	q.list.Lock()
	defer q.list.Unlock()
	if q.leads[g] == nil {
		q.leads[g] = &lead{}
	}
	return q.leads[g]
}

// forget drops what is remembered of a replica that has left its group.
func (q *steering) forget(g *replicas.Replica) {
	q.list.Lock()
	defer q.list.Unlock()
	delete(q.moves, g)
	delete(q.leads, g)
}
