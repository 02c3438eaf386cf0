package lead

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/shard/replicas"
)

// steering records which groups are being looked at, and what the Steerer remembers of groups between two looks.
type steering struct {
	list  sync.Mutex                 // guards all below
	busy  map[*replicas.Replica]bool // being looked at; true: another look was asked for meanwhile
	waits map[*replicas.Replica]*steerWait
	// moves and known are by the UUID of the group, because another replica of the group may replace the present one.
	moves map[uuid.UUID]struct{} // groups that are getting copies elsewhere now: all of them are in busy or in waits
	known map[uuid.UUID]*memory
}

// memory is what the Steerer remembers of a group. Only the look at the group uses it, except for held.
type memory struct {
	held      atomic.Bool // see HoldEnded
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
		busy: map[*replicas.Replica]bool{}, waits: map[*replicas.Replica]*steerWait{}, moves: map[uuid.UUID]struct{}{},
		known: map[uuid.UUID]*memory{},
	}
}

// take begins a look at each replica that asked for one and is not being looked at, and returns these replicas.
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

// done ends the look at a group. If something is left to do, the next look follows after a pause. The pause grows each
// time. Its jitter keeps the looks out of step with the ticks of Raft, because right after a tick a member that is
// alive looks silent.
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
		delete(q.moves, g.UUID) // a look that was still running when the move ended may have taken a place again
		return
	}
	if w == nil {
		w = &steerWait{}
		q.waits[g] = w
	}
	w.timer = time.AfterFunc(lookPauses.After(w.looks), g.AskLook)
	w.looks++
}

// Idle reports whether no group is being examined, and no group waits to be examined again.
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

// mayMove reports whether a group may get copies elsewhere now, and if so reserves a place for it.
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

// memoryOf returns what is remembered of a group.
func (q *steering) memoryOf(g *replicas.Replica) *memory {
	q.list.Lock()
	defer q.list.Unlock()
	if q.known[g.UUID] == nil {
		q.known[g.UUID] = &memory{}
	}
	return q.known[g.UUID]
}

// forget drops what is remembered of a group whose replica has left.
func (q *steering) forget(g *replicas.Replica) {
	q.list.Lock()
	defer q.list.Unlock()
	delete(q.moves, g.UUID)
	delete(q.known, g.UUID)
}
