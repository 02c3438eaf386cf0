package quota

import (
	"context"
	"errors"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/security/access"
)

// begin calls t.Begin without a deadline, for a call that occupies no memory while it waits.
func begin(t *Tenant) error { return t.Begin(context.Background(), 0) }

// Callers that are refused at the same time get different times to retry. These times are as far apart as those of
// admitted calls.
func TestCallersAreInformedOneAfterAnother(t *testing.T) {
	const limit = 100
	for _, c := range []struct {
		name   string
		quota  access.Quota
		quotas access.Quotas
		apart  time.Duration
	}{
		{"calls", access.CallsPerSecond, access.Quotas{CallsPerSecond: limit}, 10 * time.Millisecond},
		{"bytes, of calls of 100 bytes", access.BytesPerSecond, access.Quotas{BytesPerSecond: 100 * limit},
			10 * time.Millisecond},
		{"at a time", access.CallsAtOnce, access.Quotas{CallsAtOnce: 1}, time.Second / turnsPerSecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlay(c.quotas, 1, "s")
			a := p.tenant("s")
			a.late.mean = 100
			for begin(a) == nil {
				if c.quota != access.CallsAtOnce {
					a.Moved(100)
				}
			}
			// The loop above has ended with a refusal, so further calls are refused, too.
			before := exceeded(t, begin(a), c.quota, true).RetryAfter
			for n := range 10 {
				now := exceeded(t, begin(a), c.quota, true).RetryAfter
				if apart := now - before; apart < c.apart-time.Microsecond || apart > c.apart+time.Microsecond {
					t.Errorf("caller %d is told %v, and the one before %v", n, now, before)
				}
				before = now
			}
		})
	}
}

// Every turn is at most a second away, whatever the number of callers, unless the quota itself needs longer.
func TestTurnsAreBounded(t *testing.T) {
	p := newPlay(access.Quotas{CallsPerSecond: 1, BytesPerSecond: 1}, 1, "s")
	a := p.tenant("s")
	now := p.clock.Now()
	for range 10 {
		if turn := a.turn(now, access.CallsPerSecond, time.Millisecond); turn > turnMost {
			t.Errorf("a turn in %v", turn)
		}
	}
	if turn := a.turn(now, access.BytesPerSecond, time.Minute); turn != time.Minute {
		t.Errorf("a turn in %v where the debt is a minute's", turn)
	}
	if turn := a.turn(now, access.CallsPerSecond, time.Millisecond); turn > turnMost {
		t.Errorf("a turn in %v behind one of another quota", turn)
	}
}

// Callers that wait as long as they are told are not delayed any further, and are refused hardly more often than they
// are admitted.
func TestCallersThatObeyAreNotKept(t *testing.T) {
	const limit, callers, seconds = 200, 64, 10
	p := newPlay(access.Quotas{CallsPerSecond: limit}, 1, "s")
	a, let, refused := p.tenant("s"), 0, 0
	begun := p.clock.Now()
	next := make([]time.Time, callers)
	for i := range next {
		next[i] = begun
	}
	for p.clock.Now().Sub(begun) < seconds*time.Second {
		who := 0
		for i := range next {
			if next[i].Before(next[who]) {
				who = i
			}
		}
		p.clock.now = later(p.clock.now, next[who])
		wait := time.Duration(0)
		if err := begin(a); err == nil {
			let++
			a.End()
		} else {
			refused++
			wait = exceeded(t, err, access.CallsPerSecond, true).RetryAfter
		}
		// Like the Go client, a caller waits up to half as long again as it was told.
		next[who] = p.clock.Now().Add(wait + wait*time.Duration(refused%8)/16)
	}
	if n := a.Usage().Waited[access.CallsPerSecond]; n > 0 {
		t.Errorf("%d calls of callers that obey were kept", n)
	}
	if let < limit*seconds*9/10 || refused > let*3/2 {
		t.Errorf("%d let in, %d refused", let, refused)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// A loop that retries immediately gets about as many responses as its rate allows, because its calls are delayed.
func TestALoopThatNeverWaitsIsAnsweredLate(t *testing.T) {
	const limit, seconds = 100, 10
	p := newPlay(access.Quotas{CallsPerSecond: limit}, 1, "s")
	a, let, answers := p.tenant("s"), 0, 0
	for end := p.clock.Now().Add(seconds * time.Second); p.clock.Now().Before(end); answers++ {
		if answers > 3*limit*seconds {
			t.Fatalf("%d answers within %v", answers, seconds*time.Second-end.Sub(p.clock.Now()))
		}
		if begin(a) == nil {
			let++
			a.End()
		}
	}
	if let < limit*seconds*9/10 || let > limit*seconds*11/10 {
		t.Errorf("%d calls were let in within %d s, of %d", let, seconds, limit)
	}
}

// The number and the memory of delayed calls are limited, for each tenant and for all tenants together. Further calls
// are refused immediately. Delayed calls get a response when their turn has come, when half of the time until their
// deadline has passed, or when the shard stops.
func TestWhatIsKeptIsBounded(t *testing.T) {
	const limit = 10
	p := newPlay(access.Quotas{CallsPerSecond: limit}, 1, "s")
	s := p.sets["s"]
	quotas := access.Quotas{CallsPerSecond: limit}
	s.Take([]access.Tenant{{Name: "a", Prefix: "a-", Quotas: quotas}, {Name: "b", Prefix: "b-", Quotas: quotas},
		{Name: "c", Prefix: "c-", Quotas: quotas}})
	kept, let := make(chan time.Duration), make(chan error)
	s.cfg.Pause = func(_ context.Context, d time.Duration) error {
		kept <- d
		return <-let
	}
	of := func(group string) *Tenant {
		a := s.Group(group).Tenant()
		for a.Usage().Refused[access.CallsPerSecond] < limit/2 { // these calls are refused immediately
			if begin(a) == nil {
				a.End()
			}
		}
		return a
	}
	answers := make(chan error)
	keep := func(ctx context.Context, a *Tenant, holds int64) time.Duration {
		t.Helper()
		go func() { answers <- a.Begin(ctx, holds) }()
		select {
		case d := <-kept:
			return d
		case err := <-answers:
			t.Fatalf("a call is answered at once: %v", err)
			return 0
		}
	}
	a, b, c := of("a-1"), of("b-1"), of("c-1")
	for range keptMost {
		if d := keep(t.Context(), a, 0); d <= 0 || d > lateMost {
			t.Fatalf("a call is kept for %v", d)
		}
	}
	atOnce := func(a *Tenant) {
		t.Helper()
		go func() { answers <- begin(a) }()
		select {
		case <-kept:
			t.Fatal("a call is kept beyond what may be")
		case err := <-answers:
			if err == nil {
				t.Fatal("a call is let in")
			}
		}
	}
	atOnce(a)
	for range keptOfAllMost - keptMost {
		keep(t.Context(), b, 0)
	}
	atOnce(c)
	stopping := errors.New("stopping")
	for range keptOfAllMost {
		let <- stopping
		if err := <-answers; !errors.Is(err, stopping) {
			t.Fatal(err)
		}
	}
	if a.held != 0 || b.held != 0 || a.late.kept != 0 || s.kept.Load() != 0 {
		t.Errorf("%d and %d bytes are held, %d and %d calls kept", a.held, b.held, a.late.kept, s.kept.Load())
	}
	keep(t.Context(), a, heldMost-keptBytes)
	atOnce(a)
	let <- stopping
	<-answers
	ctx, cancel := context.WithDeadline(t.Context(), p.clock.Now().Add(20*time.Millisecond))
	defer cancel()
	if d := keep(ctx, a, 0); d > 10*time.Millisecond {
		t.Errorf("a call that has 20 ms is kept for %v", d)
	}
	let <- nil
	exceeded(t, <-answers, access.CallsPerSecond, true)
	keep(t.Context(), a, 0)
	p.clock.now = p.clock.now.Add(time.Second)
	let <- nil
	if err := <-answers; err != nil {
		t.Errorf("its turn has come: %v", err)
	}
	if got := a.Usage().Open; got != 1 {
		t.Errorf("%d calls are under way", got)
	}
}
