package replica

import "sync/atomic"

// idle says why the clock need not look at a replica. It is read without the core's mutex: the clock asks it for each
// group of the volume.
type idle struct {
	onlyMember atomic.Bool // learners count: Raft needs no clock
	resting    atomic.Bool // the group rests: Raft needs no clock
	stuck      atomic.Bool // the log has no room: it is tried again by the clock, in any case
}

func (i *idle) needsTick() bool { return !i.onlyMember.Load() && !i.resting.Load() || i.stuck.Load() }

// fullLog says that the log had no room, and when it is tried again. It belongs to a core.
type fullLog struct {
	idle  *idle
	err   error // nil: there is room
	ticks int   // until the next try
	wait  int   // between the last two
}

// retryTicksMax bounds the wait: a log without room is tried again after 1 tick, then after twice as long each time.
const retryTicksMax = 10

// set notes what the last try found.
func (f *fullLog) set(err error) (changed bool) {
	changed = (err == nil) != (f.err == nil)
	f.err = err
	f.idle.stuck.Store(err != nil)
	if changed {
		f.wait = 0
	}
	f.wait = min(max(1, 2*f.wait), retryTicksMax)
	f.ticks = f.wait
	return changed
}

// tick tells that it is time for a try.
func (f *fullLog) tick() bool {
	f.ticks--
	return f.ticks <= 0
}
