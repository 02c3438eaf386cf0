package replica

import "sync/atomic"

// idle says why the clock need not look at a replica. It is read without the core's mutex, because the clock reads it
// for each group of the volume.
type idle struct {
	onlyMember atomic.Bool // no other member, not even a learner: Raft needs no clock
	resting    atomic.Bool // the group rests: Raft needs no clock
	stuck      atomic.Bool // the log has no space, so the clock must retry the log in any case
	ended      atomic.Bool // the membership says that the group has ended, see format.EndedID
}

func (i *idle) needsTick() bool { return !i.onlyMember.Load() && !i.resting.Load() || i.stuck.Load() }

// fullLog records that the log had no space on disk or in memory, and when to try again. It belongs to a core.
type fullLog struct {
	idle  *idle
	err   error // nil if there is space
	ticks int   // ticks until the next attempt
	wait  int   // ticks between the last two attempts
}

// retryTicksMax bounds the wait: a log without space is tried again after 1 tick, and then after twice as long each
// time.
const retryTicksMax = 10

// set records the result of the last attempt.
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

// tick counts a tick, and reports whether it is time for another attempt.
func (f *fullLog) tick() bool {
	f.ticks--
	return f.ticks <= 0
}
