package lead

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/shard/replicas"
)

// steering records which groups the Steerer is examining, and what it must remember about groups between two looks.
type steering struct {
	list  sync.Mutex                 // guards the fields below
	busy  map[*replicas.Replica]bool // replicas with a look in progress; true: another look was requested meanwhile
	waits map[*replicas.Replica]*steerWait
	// The keys of moves and known are UUIDs of groups, because a new replica of a group may replace the old one.
	moves map[uuid.UUID]struct{} // groups that are getting copies on other shards; all of them are in busy or in waits
	known map[uuid.UUID]*memory
}

// memory holds what the Steerer must remember about a group. Except for held, only the look at the group uses it.
type memory struct {
	held      atomic.Bool // see HoldEnded
	changedAt time.Time   // time of the last membership change that this shard requested
	term      uint64      // term in which this shard last led the group
	since     time.Time   // time when term was first seen
	// come lists the target shards that are registered but hold no member, with their volumes. The leader compares it
	// with the current ones at each look.
	come      []string
	comeSince time.Time // time when come was first seen
}

// steerWait describes the pause until the next look at an unfinished group.
type steerWait struct {
	looks int // number of looks since the last step
	timer *time.Timer
}

func newSteering() steering {
	return steering{
		busy: map[*replicas.Replica]bool{}, waits: map[*replicas.Replica]*steerWait{}, moves: map[uuid.UUID]struct{}{},
		known: map[uuid.UUID]*memory{},
	}
}

// take begins a look at each replica that has requested one, unless a look at it is in progress. It returns the
// replicas to look at.
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

// done ends the look at a group. If the group is unfinished, the next look follows after a pause, which grows each
// time. The pause's jitter keeps the looks out of step with the ticks of Raft, because right after a tick a member that
// is alive looks silent.
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

// Idle reports whether no look is in progress or planned.
func (q *steering) Idle() bool {
	q.list.Lock()
	defer q.list.Unlock()
	return len(q.busy)+len(q.waits) == 0
}

// stepped resets the pauses of a group after a step.
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

// memoryOf returns the facts that the Steerer keeps about a group.
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
