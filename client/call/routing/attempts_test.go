package routing

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"sheaf.dev/sheaf/client/call/reason"
)

// failure returns a status with the given reason in its ErrorInfo. If why is empty, it has no reason, like a status
// from the transport or from gRPC itself.
func failure(t *testing.T, code codes.Code, why string) *status.Status {
	t.Helper()
	st := status.New(code, "no")
	if why == "" {
		return st
	}
	st, err := st.WithDetails(&errdetails.ErrorInfo{Domain: reason.Domain, Reason: why})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// attemptFailure is the failure of one attempt.
type attemptFailure struct {
	code codes.Code
	why  string
	sent bool
}

var (
	refused = attemptFailure{codes.Unavailable, reason.NoLeader, true}
	lost    = attemptFailure{codes.Unavailable, "", true}
	unsent  = attemptFailure{codes.Unavailable, "", false}
	cut     = attemptFailure{codes.DeadlineExceeded, "", true}
	uncut   = attemptFailure{codes.DeadlineExceeded, "", false}
	full    = attemptFailure{codes.ResourceExhausted, reason.DiskFull, true}
	exists  = attemptFailure{codes.AlreadyExists, reason.RecordExists, true}
	unknown = attemptFailure{codes.Unknown, reason.OutcomeUnknown, true}
)

func TestWhatFailuresMeanForACall(t *testing.T) {
	read, write, once := Effect{}, Effect{Write: true}, Effect{Write: true, Once: true}
	for name, c := range map[string]struct {
		effect   Effect
		failures []attemptFailure
		again    bool // whether the call may be attempted again after the last failure
		doubtful bool
		told     int // index of the failure whose error the caller receives
	}{
		"a refused read":                      {read, []attemptFailure{refused}, true, false, 0},
		"a lost read":                         {read, []attemptFailure{lost}, true, false, 0},
		"a read that is cut":                  {read, []attemptFailure{cut}, false, false, 0},
		"a read that is cut later":            {read, []attemptFailure{lost, refused, cut}, false, false, 1},
		"a refused write":                     {write, []attemptFailure{refused}, true, false, 0},
		"a write that was not sent":           {write, []attemptFailure{unsent}, true, false, 0},
		"a lost write":                        {write, []attemptFailure{lost}, true, true, 0},
		"a lost write, refused then":          {write, []attemptFailure{lost, refused}, true, true, 1},
		"a lost write, no room then":          {write, []attemptFailure{lost, full}, false, true, 1},
		"a lost write, looked up then":        {write, []attemptFailure{lost, exists}, false, false, 1},
		"a write of which a gateway says so":  {write, []attemptFailure{unknown}, true, true, 0},
		"a write that is cut":                 {write, []attemptFailure{refused, cut}, false, true, 1},
		"a write that is cut before its time": {write, []attemptFailure{refused, uncut}, false, false, 0},
		"a write for which there is no room":  {write, []attemptFailure{full}, false, false, 0},
		"a lost write without a request id":   {once, []attemptFailure{lost}, false, true, 0},
		"a refused write without an id":       {once, []attemptFailure{refused, unsent}, true, false, 1},
	} {
		a := Attempts{Effect: c.effect}
		var last Verdict
		var errs []error
		var told error
		again := true
		for _, f := range c.failures {
			if !again {
				t.Fatalf("%s: no attempt follows the one before", name)
			}
			st := failure(t, f.code, f.why)
			errs = append(errs, st.Err())
			last = Judge(st, f.sent)
			told = a.Report(st.Err(), last, f.sent)
			again = a.Failed(st.Err(), last, f.sent)
		}
		if again != c.again || a.Doubtful(last) != c.doubtful || !errors.Is(told, errs[c.told]) {
			t.Errorf("%s: again %v, doubtful %v, told %v", name, again, a.Doubtful(last), told)
		}
	}
}

var pace = Pace{First: 8 * time.Millisecond, Most: 64 * time.Millisecond, Patience: time.Second}

func TestPausesGrow(t *testing.T) {
	for n, ms := range []int{8, 16, 32, 64, 64, 64} {
		want := time.Duration(ms) * time.Millisecond
		for range 100 {
			if d := pace.Pause(n); d < want/2 || d >= want*3/2 {
				t.Fatalf("pause %d: %v", n, d)
			}
		}
	}
	if d := pace.Pause(1 << 20); d > pace.Most*3/2 {
		t.Error(d)
	}
}

func TestPausesEndWithTheTime(t *testing.T) {
	for name, c := range map[string]struct {
		deadline time.Duration // time until the deadline of the context; 0 if the context has none
		reserve  time.Duration
		least    time.Duration
		from, to time.Duration // the earliest and the latest time at which the call may give up
	}{
		"patience":   {0, 0, 0, 900 * time.Millisecond, time.Second},
		"a deadline": {2 * time.Second, 0, 0, 1900 * time.Millisecond, 2 * time.Second},
		"time for the answer": {2 * time.Second, 100 * time.Millisecond, 0, 1800 * time.Millisecond,
			1900 * time.Millisecond},
		"an eighth of it":        {160 * time.Millisecond, time.Second, 0, 40 * time.Millisecond, 140 * time.Millisecond},
		"a wish that is too far": {2 * time.Second, 0, time.Hour, 0, 0},
		"a wish that is not": {2 * time.Second, 0, 500 * time.Millisecond, 1400 * time.Millisecond,
			1600 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			if c.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.deadline)
				defer cancel()
			}
			p, began := pace, time.Now()
			p.Reserve = c.reserve
			a := Attempts{Pace: &p}
			for a.Pause(ctx, c.least, nil, nil) {
			}
			if took := time.Since(began); took < c.from || took > c.to || a.N() < 1 {
				t.Errorf("%s: gave up after %v and %d pauses", name, took, a.N())
			}
		})
	}
}

func TestActiveStreamGetsItsFullTimeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, began := Attempts{Pace: &pace, AtOnce: true}, time.Now()
		if !a.Pause(t.Context(), 0, nil, nil) || time.Since(began) != 0 {
			t.Errorf("elsewhere only after %v", time.Since(began))
		}
		for a.AtOnce = false; time.Since(began) < 10*time.Second; {
			if !a.Pause(t.Context(), 0, nil, nil) {
				t.Fatalf("gave up after %v", time.Since(began))
			}
			a.Progress()
		}
	})
}

func TestEndOfPause(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	slow := Pace{First: time.Hour, Most: time.Hour, Patience: 1000 * time.Hour}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		a := Attempts{Pace: &slow}
		for range newsMax {
			if !a.Pause(t.Context(), 0, closed, nil) {
				t.Fatal("news ended the call")
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("news was taken in after %v", took)
		}
		if !a.Pause(t.Context(), 0, closed, nil) || time.Since(began) < slow.First/2 {
			t.Error("much news leaves no pause")
		}
		if a.Pause(t.Context(), 0, nil, closed) {
			t.Error("a stop did not end the call")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if a.Pause(ctx, 0, nil, nil) || (&Attempts{Pace: &slow, AtOnce: true}).Pause(ctx, 0, nil, nil) {
			t.Error("a cancelled call went on")
		}
	})
}

// If a rate quota is used up, the client waits as long as the server asks, even if the routing changes meanwhile. If
// a storage quota is used up, the client does not wait.
func TestClientWaitsForRateQuota(t *testing.T) {
	exceeded := func(after time.Duration) Verdict {
		st := failure(t, codes.ResourceExhausted, reason.QuotaExceeded)
		if after > 0 {
			with, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
			if err != nil {
				t.Fatal(err)
			}
			st = with
		}
		return Judge(st, true)
	}
	if v := exceeded(0); v.Later() || v.Fate != Final {
		t.Errorf("what is stored may come later: %+v", v)
	}
	if v := Judge(failure(t, codes.ResourceExhausted, reason.Overloaded), true); !v.Later() {
		t.Errorf("what is too much now may not come later: %+v", v)
	}
	synctest.Test(t, func(t *testing.T) {
		v := exceeded(3 * time.Second)
		if !v.Later() {
			t.Fatalf("a rate may not come later: %+v", v)
		}
		news := make(chan struct{})
		close(news)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		a := Attempts{Pace: &Pace{First: time.Millisecond, Most: time.Second, Patience: time.Minute}, AtOnce: true,
			Hold: true}
		began := time.Now()
		if !a.Pause(ctx, v.Wait, news, nil) || time.Since(began) < v.Wait || time.Since(began) > v.Wait+time.Second {
			t.Errorf("waited for %v", time.Since(began))
		}
		if a.Hold = true; a.Pause(ctx, v.Wait, news, nil) {
			t.Error("it was waited beyond the time")
		}
		if !a.Pause(ctx, time.Millisecond, news, nil) {
			t.Error("the next pause is held, too")
		}
	})
}
