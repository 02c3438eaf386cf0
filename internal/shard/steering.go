package shard

import (
	"sync"
	"time"
)

// steering is the list of groups to look at. It has its own lock, because groups are added while their replica is
// locked.
type steering struct {
	wake chan struct{}

	list  sync.Mutex // guards all below
	due   map[*groupReplica]struct{}
	busy  map[*groupReplica]struct{} // being looked at
	moves map[*groupReplica]struct{} // groups that are getting copies elsewhere now
	waits map[*groupReplica]*steerWait
	fetch map[*groupReplica]uint64 // groups to install again, and the member to install from
}

// steerWait is the time until the next look at a group that is unfinished.
type steerWait struct {
	looks int // looks since the last step, all of which left something unfinished
	timer *time.Timer
}

func newSteering() steering {
	return steering{
		wake: make(chan struct{}, 1), due: map[*groupReplica]struct{}{}, busy: map[*groupReplica]struct{}{},
		moves: map[*groupReplica]struct{}{},
		waits: map[*groupReplica]*steerWait{}, fetch: map[*groupReplica]uint64{},
	}
}

func (q *steering) wakeUp() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// ask requests a look at a group. It never blocks.
func (q *steering) ask(g *groupReplica) {
	q.list.Lock()
	q.due[g] = struct{}{}
	q.list.Unlock()
	q.wakeUp()
}

// take returns the groups that are due and not being looked at, and the groups to install again.
func (q *steering) take() (due []*groupReplica, fetch map[*groupReplica]uint64) {
	q.list.Lock()
	defer q.list.Unlock()
	for g := range q.due {
		if _, busy := q.busy[g]; !busy {
			q.busy[g] = struct{}{}
			delete(q.due, g)
			due = append(due, g)
		}
	}
	fetch, q.fetch = q.fetch, map[*groupReplica]uint64{}
	return due, fetch
}

// done ends the look at a group. If something is left to do, the function next is called after a pause. The pause grows
// each time, and is never in step with Raft's clocks, because a member looks silent whenever they tick.
func (q *steering) done(g *groupReplica, unfinished bool, next func()) {
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
func (q *steering) stepped(g *groupReplica) {
	q.list.Lock()
	defer q.list.Unlock()
	if w := q.waits[g]; w != nil {
		w.looks = 0
	}
}

// mayMove reports whether a group may get copies elsewhere now, and if so reserves a place for it.
func (q *steering) mayMove(g *groupReplica, limit int) bool {
	q.list.Lock()
	defer q.list.Unlock()
	if _, moves := q.moves[g]; !moves && len(q.moves) >= limit {
		return false
	}
	q.moves[g] = struct{}{}
	return true
}

func (q *steering) moved(g *groupReplica) {
	q.list.Lock()
	defer q.list.Unlock()
	delete(q.moves, g)
}
