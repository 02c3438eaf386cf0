package routing

import (
	"context"
	"time"

	"sheaf.dev/sheaf/client/call/backoff"
)

// Pace configures how calls are retried.
type Pace struct {
	First, Most time.Duration // each pause is twice the previous one, plus or minus half
	Patience    time.Duration // time limit of a call whose context has no deadline, counted from its first pause
	// Reserve is the part of the remaining time that is kept for sending the response back. If an eighth of the
	// remaining time is less, that much is kept instead.
	Reserve time.Duration
}

// Pause returns the pause before retry n, counted from 0.
func (p *Pace) Pause(n int) time.Duration {
	return backoff.Doubling{First: p.First, Most: p.Most}.After(n)
}

// Effect records whether a call's failed attempts may have changed something.
type Effect struct {
	Write bool // whether the call is a write, so that an attempt without a response may have been applied
	Once  bool // whether the write has no request id, so that it is not retried if it may have been applied

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

// N returns the number of retries since the start, or since the last Progress.
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

// Skip counts a retry that needs no pause of its own, because the pause of another call also served this one.
func (a *Attempts) Skip() { a.n++ }

// newsMax is the number of retries that a message on the channel news may bring forward. It is limited because many
// changes that do not concern the call may be reported before the one that does.
const newsMax = 8

// Pause waits until another attempt makes sense, which is when the pause required by the pace is over, or when the
// channel news is closed. That channel is closed when something on which the attempts depend may have changed. It is
// nil if there is no such signal. The argument least is the wait that the server asks for. With Hold, Pause waits at
// least that long, and returns false if less time is left. Pause also returns false if the call's time is up before the
// next attempt, if ctx is done, or if the channel stop is closed.
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
