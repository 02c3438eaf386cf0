// Package backoff has the pauses between two tries of what failed.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Doubling is a row of pauses: each is twice the one before, from First up to Most, give or take a half, so that many
// who failed together do not try again together. First is above 0.
type Doubling struct{ First, Most time.Duration }

// After is the pause after failure n, counted from 0. Safe for concurrent use.
func (d Doubling) After(n int) time.Duration {
	p := min(d.First<<min(n, 16), d.Most)
	return p/2 + rand.N(p) //nolint:gosec // jitter
}

// Tries are the tries of one thing, one after another. The zero value needs its Doubling. Not safe for concurrent use.
type Tries struct {
	Doubling
	failed int
}

// Wait waits before the next try, longer each time; false: ctx ended.
func (t *Tries) Wait(ctx context.Context) bool {
	t.failed++
	return Sleep(ctx, t.After(t.failed-1))
}

// Again has the pauses begin anew: a try went well for a while.
func (t *Tries) Again() { t.failed = 0 }

// AtMost shortens the next pause to about that, where it would be longer.
func (t *Tries) AtMost(d time.Duration) {
	for t.failed > 0 && t.First<<min(t.failed, 16) > d {
		t.failed--
	}
}

// Sleep waits that long; false: ctx ended before.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
