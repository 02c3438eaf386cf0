package restore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// These are the bounds of the memory that the images of a restore may reserve.
const (
	// roomBytes is how many bytes all plans together may reserve.
	roomBytes = 80 << 20
	// imageBytes is reserved for each plan, for the buffers of the readers and of the call that sends the files.
	imageBytes = 4 << 20
)

// patience is how long Image waits for memory, or for the end of another image of the same group.
const patience = 10 * time.Second

// need says how much memory the plan of a group reserves.
type need struct {
	bytes int64 // the bytes that are counted against roomBytes
	// large means that the group is read twice, because its entries do not fit into memory. The table of its newest
	// versions needs 24 bytes for each record, and is not counted, so only one large group has a plan at a time.
	large bool
}

// needOf returns the need of a group, given the size of its archived entries.
func needOf(archived, room int64) need {
	if kept := keptMax(archived); imageBytes+kept <= room {
		return need{bytes: imageBytes + kept}
	}
	return need{bytes: imageBytes, large: true}
}

// keep returns how many bytes of the group's entries are kept in memory.
func (n need) keep() int64 {
	if n.large {
		return 0
	}
	return n.bytes - imageBytes
}

// images admits the images of a restore in the order in which they are requested, as soon as there is memory for them.
// It also keeps the plans of closed images until another group needs their memory. Safe for concurrent use.
type images struct {
	mu      sync.Mutex
	room    int64              // bytes that no plan has reserved; guarded by mu
	large   bool               // whether a large group has a plan; guarded by mu
	open    map[uuid.UUID]bool // groups whose image is open or being created; guarded by mu
	idle    []*plan            // plans of closed images, the oldest one first; guarded by mu
	waiting []*request         // the oldest one first; guarded by mu
}

// request asks for the image of a group.
type request struct {
	group    uuid.UUID
	need     need
	admitted chan struct{} // closed when the image may be created
	plan     *plan         // the plan of an earlier image of the group, or nil; set before admitted is closed
}

func newImages(room int64) *images { return &images{room: room, open: map[uuid.UUID]bool{}} }

// begin waits until the image of a group may be created, but not longer than the given time. If there was an image of
// the group before, it may return the plan of that image. The caller must then call end. If the time is over, begin
// returns ErrBusy.
func (i *images) begin(ctx context.Context, group uuid.UUID, need need, patience time.Duration) (*plan, error) {
	q := &request{group: group, need: need, admitted: make(chan struct{})}
	i.mu.Lock()
	i.waiting = append(i.waiting, q)
	i.admit()
	i.mu.Unlock()
	select {
	case <-q.admitted:
		return q.plan, nil
	default:
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	err := ErrBusy
	select {
	case <-q.admitted:
		return q.plan, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	at := slices.Index(i.waiting, q)
	if at < 0 {
		return q.plan, nil // it was admitted meanwhile
	}
	i.waiting = slices.Delete(i.waiting, at, at+1)
	i.admit() // this request may have held up others
	return nil, err
}

// end lets go of an image. If there is a plan, it remains until its memory is needed.
func (i *images) end(group uuid.UUID, need need, p *plan) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.open, group)
	if p != nil {
		i.idle = append(i.idle, p)
	} else {
		i.release(need)
	}
	i.admit()
}

func (i *images) release(n need) {
	i.room += n.bytes
	if n.large {
		i.large = false
	}
}

// admit admits the requests for which there is memory. A request that lacks memory holds up those behind it, so that it
// is not overtaken for ever. A large group that waits for another large one holds up only large groups. A request for a
// group whose image is open holds up none.
func (i *images) admit() {
	var memory, large bool // whether a request lacks memory, and whether one waits for a large group
	i.waiting = slices.DeleteFunc(i.waiting, func(q *request) bool {
		switch {
		case i.open[q.group]:
			return false
		case i.takePlan(q):
		case memory, q.need.large && large:
			return false
		case q.need.large && !i.endLarge():
			large = true
			return false
		case !i.reserve(q.need):
			memory = true
			return false
		}
		i.open[q.group] = true
		close(q.admitted)
		return true
	})
}

// takePlan gives the plan of an earlier image to a request for the same group, if there is one.
func (i *images) takePlan(q *request) bool {
	at := slices.IndexFunc(i.idle, func(p *plan) bool { return p.identity.Group == q.group })
	if at < 0 {
		return false
	}
	q.plan = i.idle[at]
	i.idle = slices.Delete(i.idle, at, at+1)
	return true
}

// endLarge drops the plan of a large group, unless its image is open. It reports whether no large group has a plan.
func (i *images) endLarge() bool {
	if at := slices.IndexFunc(i.idle, func(p *plan) bool { return p.need.large }); at >= 0 {
		i.drop(at)
	}
	return !i.large
}

// reserve reserves memory. It drops plans of closed images for it, the oldest one first.
func (i *images) reserve(n need) bool {
	for i.room < n.bytes && len(i.idle) > 0 {
		i.drop(0)
	}
	if i.room < n.bytes {
		return false
	}
	i.room -= n.bytes
	i.large = i.large || n.large
	return true
}

// drop drops the plan of a closed image.
func (i *images) drop(at int) {
	i.release(i.idle[at].need)
	i.idle = slices.Delete(i.idle, at, at+1)
}
