package quota

import (
	"context"
	"fmt"
	"time"

	"sheaf.dev/sheaf/internal/security/access"
)

// A refused call costs a shard nearly as much as one that is let in. So callers are told different times to come again,
// one after another, as fast as the rate lets calls in; and where a tenant is refused more often than that although it
// was told, its further calls wait for their turn before they are answered. A loop that never waits is so kept from the
// processors that all tenants share.

const (
	// turnMost is the longest RetryAfter, unless the quota itself needs longer, and the longest time between two turns.
	turnMost = time.Second
	// lateMost is how long a call is kept before it is answered. It is well below what counts as a slow call.
	lateMost = 500 * time.Millisecond
	// keptMost bounds the calls of one tenant that are kept at a time. Each takes up a stream of its connection, which
	// for a gateway is one for all callers.
	keptMost = 256
	// keptOfAllMost bounds those of all tenants at one shard: half of the streams that a connection has by default.
	keptOfAllMost = 512
	// keptBytes is the memory of a call that is kept, without its request and its buffers.
	keptBytes = 16 << 10
	// turnsPerSecond is how many callers are told to come again in a second where no rate of calls says that.
	turnsPerSecond = 200
)

// late is what a tenant's refusals cost, and who waits for an answer. Guarded by Tenant.mu.
type late struct {
	atOnce bucket    // refusals that are answered at once
	last   time.Time // the last turn that was given out
	kept   int       // calls
	mean   float64   // bytes that a call moves, of the last ones mostly
}

// Begin begins a call; End must follow where it answers nil. Where a quota is in the way, the call is refused at once;
// or, where the tenant is refused more often than its rate, it is tried again when its turn has come, after half a
// second, or half of the time that ctx has left, at most. holds is the memory that the call has taken, in bytes. Errors
// are *Exceeded, ErrStopping, or that of ctx.
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

// turn is when a call may come again that a quota keeps from beginning: behind those who were told before. needs is
// what the quota itself needs. Called with mu held.
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

// keep tells whether a call is kept instead of being refused at once: letGo must follow then. Called with mu held.
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

// letGo ends what keep has begun. Called with mu held.
func (t *Tenant) letGo(holds int64) {
	t.set.kept.Add(-1)
	t.late.kept--
	t.held -= keptBytes + holds
}

// refuseCall makes the error of a call that is refused, and counts it. Called with mu held.
func (t *Tenant) refuseCall(quota access.Quota, turn time.Duration) error {
	words := fmt.Sprintf("try again in %v", max(turn.Round(time.Millisecond), time.Millisecond))
	if quota == access.CallsAtOnce {
		words = "wait until calls have ended"
	}
	return t.refuse(quota, turn, words)
}
