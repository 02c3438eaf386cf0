package lead

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/shard/replicas"
)

// steering tracks the groups that the Steerer is examining, and what it must remember about groups until it examines
// them again.
type steering struct {
	list  sync.Mutex                 // guards the fields below
	busy  map[*replicas.Replica]bool // replicas that are being examined; true: another examination was requested
	waits map[*replicas.Replica]*steerWait
	// The keys of moves and known are UUIDs of groups, because a group's replica may be replaced by a new one.
	moves map[uuid.UUID]struct{} // groups that are getting copies on other shards; the replica of each is in busy or waits
	known map[uuid.UUID]*memory
}

// memory holds what the Steerer must remember about a group. Except for the field held, it is used only while the
// group is being examined.
type memory struct {
	held      atomic.Bool // see HoldEnded
	changedAt time.Time   // time of the last membership change that this shard requested
	term      uint64      // term in which this shard last led the group
	since     time.Time   // time when term was first seen
	// come lists the target shards that are registered but hold no member, each with its volume. Whenever the leader
	// examines the group, it compares this list with the current one.
	come      []string
	comeSince time.Time // time when come was first seen
}

// steerWait describes the pause after which an unfinished group is examined again.
type steerWait struct {
	looks int // number of examinations since the last step
	timer *time.Timer
}

func newSteering() steering {
	return steering{
		busy: map[*replicas.Replica]bool{}, waits: map[*replicas.Replica]*steerWait{}, moves: map[uuid.UUID]struct{}{},
		known: map[uuid.UUID]*memory{},
	}
}

// take begins to examine each replica for which this was requested, unless the replica is already being examined. It
// returns the replicas to examine.
func (q *steering) take(asked map[*replicas.Replica]struct{}) (due []*replicas.Replica) {
	q.list.Lock()
	defer q.list.Unlock()
	for g := range asked {
		_, busy := q.busy[g]
		if q.busy[g] = busy; !busy {
			due = append(due, g)
		}
	}
	return due
}

// done ends the examination of a group. If the group is unfinished, it is examined again after a pause, which grows
// each time. The pauses have jitter, so that the examinations do not coincide with the ticks of Raft: right after a
// tick, a member that is alive looks silent.
func (q *steering) done(g *replicas.Replica, unfinished bool) {
	q.list.Lock()
	defer q.list.Unlock()
	if q.busy[g] {
		g.AskLook()
	}
	delete(q.busy, g)
	w := q.waits[g]
	if w != nil {
		w.timer.Stop()
	}
	if !unfinished {
		delete(q.waits, g)
		delete(q.moves, g.UUID) // a look that was still running when the move ended may have reserved a place again
		return
	}
	if w == nil {
		w = &steerWait{}
		q.waits[g] = w
	}
	w.timer = time.AfterFunc(lookPauses.After(w.looks), g.AskLook)
	w.looks++
}

// Idle reports whether no group is being examined or waiting to be examined again.
func (q *steering) Idle() bool {
	q.list.Lock()
	defer q.list.Unlock()
	return len(q.busy)+len(q.waits) == 0
}

// stepped resets the pauses of a group, because a step was taken.
func (q *steering) stepped(g *replicas.Replica) {
	q.list.Lock()
	defer q.list.Unlock()
	if w := q.waits[g]; w != nil {
		w.looks = 0
	}
}

// mayMove reports whether a group may get copies on other shards now, and if so reserves a place for the group.
func (q *steering) mayMove(g *replicas.Replica, limit int) bool {
	q.list.Lock()
	defer q.list.Unlock()
	if _, moves := q.moves[g.UUID]; !moves && len(q.moves) >= limit {
		return false
	}
	q.moves[g.UUID] = struct{}{}
	return true
}

func (q *steering) moved(g *replicas.Replica) {
	q.list.Lock()
	defer q.list.Unlock()
	delete(q.moves, g.UUID)
}

// memoryOf returns what the Steerer remembers about a group.
func (q *steering) memoryOf(g *replicas.Replica) *memory {
	q.list.Lock()
	defer q.list.Unlock()
	if q.known[g.UUID] == nil {
		q.known[g.UUID] = &memory{}
	}
	return q.known[g.UUID]
}

// forget drops what is stored about a group whose replica has left.
func (q *steering) forget(g *replicas.Replica) {
	q.list.Lock()
	defer q.list.Unlock()
	delete(q.moves, g.UUID)
	delete(q.known, g.UUID)
}
