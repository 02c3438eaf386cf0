package routing

import (
	"context"
	"time"

	"sheaf.dev/sheaf/internal/base/backoff"
)

// Pace says how calls are repeated.
type Pace struct {
	First, Most time.Duration // pauses: each is twice the one before, give or take a half
	Patience    time.Duration // of a call whose context has no deadline, from its first pause on
	// Reserve is what is left of the time for the answer to travel, or an eighth of the time where that is less.
	Reserve time.Duration
}

// Pause is the pause before repetition n, counted from 0.
func (p *Pace) Pause(n int) time.Duration {
	return backoff.Doubling{First: p.First, Most: p.Most}.After(n)
}

// Effect is what is known of the effect of a call whose attempts have failed.
type Effect struct {
	Write bool // the call changes something: an attempt without an answer may have done so
	Once  bool // the write carries no request id: it is not repeated where it may have been applied

	doubtful bool
}

// Failed takes in the failure of an attempt. sent: the request may have left this process. False: no attempt may
// follow, whatever the time.
func (e *Effect) Failed(v Verdict, sent bool) bool {
	if e.Write && (v.Fate == Unknown || v.Cut && sent) {
		e.doubtful = true
	}
	return v.Fate == Refused || v.Fate == Unknown && (!e.Write || !e.Once)
}

// Doubtful tells that the write may have been applied, although it ends with a failure of this verdict.
func (e *Effect) Doubtful(v Verdict) bool { return e.doubtful && !v.EndsDoubt }

// Attempts is a call between its attempts: how often and how long it was tried, what its attempts may have done, and
// what the last one said. Gateway and Go client repeat their calls by it. Pace is required.
type Attempts struct {
	Pace *Pace
	Effect
	AtOnce bool // the first repetition goes elsewhere, and needs no pause
	Hold   bool // the next repetition waits at least as long as the server asks

	n     int
	last  error // of the last attempt that may be repeated
	until time.Time
}

// N is the number of repetitions since the begin, or the last Progress.
func (a *Attempts) N() int { return a.n }

// Progress starts the counting anew: a stream went on.
func (a *Attempts) Progress() { a.n, a.last, a.until = 0, nil, time.Time{} }

// Failed is Effect.Failed, and keeps the error of an attempt that may be repeated.
func (a *Attempts) Failed(err error, v Verdict, sent bool) bool {
	again := a.Effect.Failed(v, sent)
	if again {
		a.last = err
	}
	return again
}

// Told is the error to tell where err ends the call: where the end of the time cut an attempt that changed nothing, the
// failure of the attempt before says more.
func (a *Attempts) Told(err error, v Verdict, sent bool) error {
	if v.Cut && a.last != nil && (!a.Write || !sent) {
		return a.last
	}
	return err
}

// Skip counts a repetition that needs no pause of its own: that of another call served it.
func (a *Attempts) Skip() { a.n++ }

// newsMax is how many repetitions news may bring forward: there may be much news before that which is waited for.
const newsMax = 8

// Pause waits until another attempt makes sense: as the pace says, or until news is closed, where what the attempts
// depend on may have changed (nil: nothing tells that). least is what the server asks to wait: with Hold it is waited,
// else no attempt follows where there is less time. False: the time is up
// before that, ctx has ended, or stop is closed.
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
