// Package backoff computes the pauses between retries.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Doubling is a sequence of pauses. Each pause is twice the previous one, from First up to Most, plus or minus half, so
// that many clients that failed together do not retry together. First must be greater than 0.
type Doubling struct{ First, Most time.Duration }

// After returns the pause after failure n, counted from 0. After is safe for concurrent use.
func (d Doubling) After(n int) time.Duration {
	p := min(d.First<<min(n, 16), d.Most)
	return p/2 + rand.N(p) //nolint:gosec // jitter
}

// Tries counts the failed attempts at one operation. Doubling must be set. Tries is not safe for concurrent use.
type Tries struct {
	Doubling
	failed int
}

// Wait waits before the next attempt, longer each time. It returns false if ctx is done first.
func (t *Tries) Wait(ctx context.Context) bool {
	t.failed++
	return Sleep(ctx, t.After(t.failed-1))
}

// Again resets the backoff, so that the next pause is the shortest one. Call it after the operation has worked for a
// while.
func (t *Tries) Again() { t.failed = 0 }

// AtMost limits the next pause to about d.
func (t *Tries) AtMost(d time.Duration) {
	for t.failed > 0 && t.First<<min(t.failed, 16) > d {
		t.failed--
	}
}

// Sleep waits for d. It returns false if ctx is done first.
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
