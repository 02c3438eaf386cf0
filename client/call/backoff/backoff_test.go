package backoff

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// After any number of failures, a pause is between half and one and a half times the value that doubling gives.
func TestPausesDouble(t *testing.T) {
	d := Doubling{First: 100 * time.Millisecond, Most: time.Second}
	for n, want := range map[int]time.Duration{
		0: 100 * time.Millisecond, 1: 200 * time.Millisecond, 3: 800 * time.Millisecond, 4: time.Second, 16: time.Second,
		1 << 30: time.Second,
	} {
		for range 100 {
			if got := d.After(n); got < want/2 || got >= want*3/2 {
				t.Fatalf("after failure %d: %v, want %v give or take a half", n, got, want)
			}
		}
	}
}

// Wait waits longer each time. After a call of Again, it begins with the first pause. It stops waiting when its
// context is done.
func TestTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		tries := Tries{Doubling: Doubling{First: time.Second, Most: time.Hour}}
		took := func() time.Duration {
			began := time.Now()
			if !tries.Wait(ctx) {
				t.Error("a pause ended early")
			}
			return time.Since(began)
		}
		for range 4 {
			took()
		}
		if fifth := took(); fifth < 8*time.Second {
			t.Errorf("the fifth pause took %v", fifth)
		}
		tries.AtMost(2 * time.Second)
		if next := took(); next < time.Second || next >= 3*time.Second {
			t.Errorf("a pause of at most two seconds, give or take a half, took %v", next)
		}
		if next := took(); next < 2*time.Second {
			t.Errorf("the one behind it took %v", next)
		}
		tries.Again()
		if first := took(); first >= 1500*time.Millisecond {
			t.Errorf("the first pause after all was well took %v", first)
		}
		cancel()
		if tries.Wait(ctx) {
			t.Error("it went on after its context had ended")
		}
	})
}
