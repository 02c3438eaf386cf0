package quota

import (
	"context"
	"fmt"
	"time"

	"sheaf.dev/sheaf/internal/security/access"
)

// A refused call costs a shard nearly as much as an admitted one. So each refused caller gets a different time to
// retry, and these times are spaced according to the quota's rate. If a tenant's callers do not wait for these times,
// and their calls are refused at a higher rate than the quota allows, further calls wait for their turn before they are
// answered. So a caller that retries refused calls in a loop cannot use up the CPU time that all tenants share.

const (
	// turnMost is the longest time after which a refused caller is told to retry, unless the quota itself needs longer.
	// It is also the longest time between two turns.
	turnMost = time.Second
	// lateMost is the longest wait of a call before it gets a response. lateMost is well below the limit for a slow call.
	lateMost = 500 * time.Millisecond
	// keptMost bounds how many calls of one tenant may wait. Each of them uses a stream of its connection, and a gateway
	// has two connections for all its callers.
	keptMost = 256
	// keptOfAllMost bounds the waiting calls of all tenants on one shard. It is half of the streams that a connection
	// has by default.
	keptOfAllMost = 512
	// keptBytes is the memory of a waiting call, without its request and its buffers.
	keptBytes = 16 << 10
	// turnsPerSecond is how many callers may retry per second if there is no quota for the rate of calls.
	turnsPerSecond = 200
)

// late records a tenant's refusals, and its calls that wait for their turn. Guarded by Tenant.mu.
type late struct {
	atOnce bucket    // limits the refusals that are returned immediately
	last   time.Time // time of the last turn that was assigned
	kept   int       // number of waiting calls
	mean   float64   // moving average of the bytes that a call moves
}

// Begin begins a call. If it returns nil, the caller must call End. If a quota is exceeded, Begin normally refuses the
// call immediately. A tenant whose calls are refused at a higher rate than its quota allows is slowed down instead: the
// call waits for its turn, and Begin then checks the quotas again. The wait lasts at most half a second, and at most
// half of the time until ctx's deadline. The argument `holds` is the memory in bytes that the call occupies while it
// waits. Begin returns *Exceeded, ErrStopping, or ctx's error.
func (t *Tenant) Begin(ctx context.Context, holds int64) error {
	now := t.set.now()
	t.mu.Lock()
	quota, needs := t.blocked(now)
	if quota == "" {
		t.begun(now)
		t.mu.Unlock()
		return nil
	}
	turn := t.turn(now, quota, needs)
	if !t.keep(now, holds) {
		defer t.mu.Unlock()
		return t.refuseCall(quota, turn)
	}
	t.counts.waited[quota]++
	t.mu.Unlock()

	wait := min(turn, lateMost)
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, deadline.Sub(now)/2)
	}
	err := t.set.pause(ctx, wait, nil)
	now = t.set.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.letGo(holds)
	if err != nil {
		return err
	}
	if quota, needs = t.blocked(now); quota == "" {
		t.begun(now)
		return nil
	}
	return t.refuseCall(quota, t.turn(now, quota, needs))
}

// turn assigns a turn to a call that a quota blocks, and returns the time until that turn. Turns are spaced according
// to the quota's rate. The argument needs is the delay that the quota itself requires, and a turn never comes sooner.
// Called with mu held.
func (t *Tenant) turn(now time.Time, quota access.Quota, needs time.Duration) time.Duration {
	perSecond := float64(turnsPerSecond)
	switch {
	case quota == access.CallsPerSecond:
		perSecond = t.calls.rate
	case quota == access.BytesPerSecond && t.late.mean > 0:
		perSecond = t.bytes.rate / t.late.mean
	}
	most := max(needs, turnMost)
	apart := min(time.Duration(min(1/perSecond, turnMost.Seconds())*float64(time.Second)), turnMost)
	at := now.Add(needs)
	if next := t.late.last.Add(apart); next.After(at) {
		at = next
	}
	if last := now.Add(most); at.After(last) {
		at = last
	}
	t.late.last = at
	return at.Sub(now)
}

// keep reports whether a call may wait instead of being refused immediately. If it may, keep reserves the call's
// memory, and the caller must call letGo. Called with mu held.
func (t *Tenant) keep(now time.Time, holds int64) bool {
	if t.late.atOnce.wait(now, 1) == 0 {
		t.late.atOnce.take(now, 1)
		return false
	}
	if t.late.kept >= keptMost || t.held > 0 && t.held+keptBytes+holds > heldMost {
		return false
	}
	if t.set.kept.Add(1) > keptOfAllMost {
		t.set.kept.Add(-1)
		return false
	}
	t.late.kept++
	t.held += keptBytes + holds
	return true
}

// letGo ends a wait that keep allowed, and releases its memory. Called with mu held.
func (t *Tenant) letGo(holds int64) {
	t.set.kept.Add(-1)
	t.late.kept--
	t.held -= keptBytes + holds
}

// refuseCall returns the error for a refused call, and counts the refusal. Called with mu held.
func (t *Tenant) refuseCall(quota access.Quota, turn time.Duration) error {
	words := fmt.Sprintf("try again in %v", max(turn.Round(time.Millisecond), time.Millisecond))
	if quota == access.CallsAtOnce {
		words = "wait until calls have ended"
	}
	return t.refuse(quota, turn, words)
}
