package routing

import (
	"context"
	"time"

	"sheaf.dev/sheaf/client/call/backoff"
)

// Pace configures how calls are retried.
type Pace struct {
	// First and Most are the first pause and the longest one. Each pause is twice the previous one, plus or minus half.
	First, Most time.Duration
	Patience    time.Duration // time limit of a call whose context has no deadline, counted from its first pause
	// Reserve is the time that is kept for sending the response back. At most an eighth of the remaining time is kept,
	// even if Reserve is longer.
	Reserve time.Duration
}

// Pause returns the pause before retry n, counted from 0.
func (p *Pace) Pause(n int) time.Duration {
	return backoff.Doubling{First: p.First, Most: p.Most}.After(n)
}

// Effect records whether a call's failed attempts may have changed something.
type Effect struct {
	Write bool // whether the call is a write, so that an attempt without a response may have been applied
	Once  bool // the write has no request id, so it is not retried if it may have been applied

	doubtful bool
}

// Failed records that an attempt failed. The argument sent means that the request may have left this process. Failed
// returns false if the call must not be attempted again, even if time is left.
func (e *Effect) Failed(v Verdict, sent bool) bool {
	if e.Write && (v.Fate == Unknown || v.TimedOut && sent) {
		e.doubtful = true
	}
	return v.Fate == Refused || v.Fate == Unknown && (!e.Write || !e.Once)
}

// Doubtful reports whether the write may have been applied even though its last attempt failed with verdict v.
func (e *Effect) Doubtful(v Verdict) bool { return e.doubtful && !v.EndsDoubt }

// Attempts is the state of a call between its attempts: how often and for how long it was attempted, what its attempts
// may have done, and the last error. Gateways and the Go client use Attempts to retry calls. Pace is required.
type Attempts struct {
	Pace *Pace
	Effect
	AtOnce bool // whether the first retry goes to another server, and needs no pause
	Hold   bool // whether the next retry waits at least as long as the server asks

	n     int
	last  error // error of the last attempt that may be retried
	until time.Time
}

// N returns the number of retries since the first attempt, or since the last call of Progress.
func (a *Attempts) N() int { return a.n }

// Progress resets the state of the attempts, because a stream made progress.
func (a *Attempts) Progress() { a.n, a.last, a.until = 0, nil, time.Time{} }

// Failed is like Effect.Failed, and also keeps the error of an attempt that may be retried.
func (a *Attempts) Failed(err error, v Verdict, sent bool) bool {
	again := a.Effect.Failed(v, sent)
	if again {
		a.last = err
	}
	return again
}

// Report returns the error to report when the call ends with err. If the deadline aborted an attempt that changed
// nothing, Report returns the error of the previous attempt, because that error is more specific.
func (a *Attempts) Report(err error, v Verdict, sent bool) error {
	if v.TimedOut && a.last != nil && (!a.Write || !sent) {
		return a.last
	}
	return err
}

// Skip counts a retry for which the caller does not call Pause, because it has just paused for another call.
func (a *Attempts) Skip() { a.n++ }

// newsMax is how many retries, counted from the first one, may have their pause cut short by the channel news. Later
// pauses always last their full time, because the channel may report many changes that do not concern the call.
const newsMax = 8

// Pause waits until the next attempt should be made, and returns true. It waits as long as the pace requires, or
// until the channel news is closed, which means that something on which the call depends may have changed. news may
// be nil. The argument least is the time that the server asks to wait. With Hold, Pause waits at least that long.
// Pause returns false if there is not enough time left for another attempt, if ctx is done, or if the channel stop is
// closed.
func (a *Attempts) Pause(ctx context.Context, least time.Duration, news, stop <-chan struct{}) bool {
	delay := a.Pace.Pause(a.n)
	if a.AtOnce && a.n == 0 {
		delay = 0
	}
	if a.Hold {
		delay, news, a.Hold = max(delay, least)+delay/2, nil, false
	}
	if a.n++; a.n > newsMax {
		news = nil
	}
	if a.until.IsZero() {
		now := time.Now()
		deadline, ok := ctx.Deadline()
		if !ok {
			deadline = now.Add(a.Pace.Patience)
		}
		a.until = deadline.Add(-min(deadline.Sub(now)/8, a.Pace.Reserve))
	}
	if left := time.Until(a.until); left <= delay || left <= least {
		return false
	}
	if delay == 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-news:
	case <-ctx.Done():
		return false
	case <-stop:
		return false
	}
	return true
}
