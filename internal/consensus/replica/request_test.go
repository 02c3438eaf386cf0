package replica

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// A repeated write gets the result of the first one, whatever time the machines' clocks show. A clock may be moved
// forward or back, a new leader may have a different clock, and the clock at a start may be wrong.
func TestRequestIDsAreRememberedWhateverTheClockSays(t *testing.T) {
	for _, ahead := range []time.Duration{11 * time.Minute, -11 * time.Minute} {
		t.Run(fmt.Sprint(ahead), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := makeNetwork(t)
				clocks := map[uint64]*atomic.Int64{1: {}, 2: {}, 3: {}}
				n.change = func(id uint64, o *Options) {
					o.Now = func() time.Time { return time.Now().Add(time.Duration(clocks[id].Load())) }
				}
				n.startAll()
				first, leader := n.lead()
				want := leader.must(t, put(1, "old").request(1, 1))
				leader.must(t, put(1, "new").request(2, 1))
				check := func(what string) {
					t.Helper()
					_, now := n.lead()
					if got, err := n.write(t, 0, put(1, "old").request(1, 1)); err != nil || !got.Repeated || got.Index != want.Index {
						t.Fatalf("%s: %+v, %v; the first was %+v", what, got, err, want)
					}
					now.wantData(t, 1, "new")
				}
				clocks[first].Add(int64(ahead))
				leader.must(t, put(2, "x").request(3, 1))
				check("the leader's clock is set")
				clocks[first%3+1].Add(2 * int64(ahead))
				ok(t, leader.TransferLeader(timeout(t), first%3+1))
				_, err := n.write(t, 0, put(2, "y").request(4, 1))
				ok(t, err)
				check("another one leads, whose clock is wrong")
				for _, id := range voters {
					n.stop(id)
				}
				n.startAll()
				check("all were started anew")
				time.Sleep(format.DefaultRequestWindow.Age + time.Second)
				if got, err := n.write(t, 0, put(1, "old").request(1, 1)); err != nil || got.Repeated {
					t.Fatalf("it is remembered for longer than the window: %+v, %v", got, err)
				}
			})
		})
	}
}

// If a write did nothing, a late duplicate of the write gets the same result and does nothing either.
func TestALateDuplicateOfAWriteThatDidNothingDoesNothing(t *testing.T) {
	for _, copies := range []int{1, 3} {
		t.Run(fmt.Sprint(copies), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var one *member
				if copies == 3 {
					_, one = newNetwork(t).lead()
				} else {
					one = newMachine(t, vfstest.NewMem(), "/v").open("7", nil)
				}
				if gone := one.must(t, del(5).request(1, 1)); gone.Index != 0 || gone.Existed || gone.Repeated {
					t.Fatalf("a delete of nothing: %+v", gone)
				}
				first := one.must(t, put(5, "a"))
				exists := put(5, "b").ifAbsent().request(2, 1)
				_, err := one.do(t, exists)
				wantRefusal(t, err, ErrExists, first.Index)
				other := put(5, "b").ifVersion(first.Index+100).request(3, 1)
				_, err = one.do(t, other)
				wantRefusal(t, err, ErrMismatch, first.Index)
				one.must(t, del(5))
				_, err = one.do(t, exists)
				wantRefusal(t, err, ErrExists, first.Index)
				one.must(t, put(5, "c"))
				if gone := one.must(t, del(5).request(1, 1)); gone.Index != 0 || gone.Existed || !gone.Repeated {
					t.Fatalf("the delete of nothing, once more: %+v", gone)
				}
				_, err = one.do(t, other)
				wantRefusal(t, err, ErrMismatch, first.Index)
				one.wantData(t, 5, "c")

				// A request id under which nothing was written is still unused. Another write may use it, and the id
				// then belongs to that write.
				current := one.must(t, put(5, "d")).Index
				if done := one.must(t, put(5, "b").ifVersion(current).request(3, 1)); done.Repeated || done.Index == 0 {
					t.Fatalf("another condition: %+v", done)
				}
				if again := one.must(t, other); !again.Repeated {
					t.Fatalf("the duplicate of the first: %+v", again)
				}
				if _, err := one.do(t, del(5).request(3, 1)); !errors.Is(err, ErrReused) {
					t.Fatalf("a delete under the id of a put: %v", err)
				}
				one.wantData(t, 5, "b")
				one.machine.halt()
			})
		})
	}
}

func wantRefusal(t *testing.T, err, why error, current uint64) {
	t.Helper()
	var refusal *ConditionError
	if !errors.As(err, &refusal) || refusal.Err != why || //nolint:errorlint // ConditionError holds the error unwrapped
		refusal.Current != current {
		t.Fatalf("got %v, want %v of version %d", err, why, current)
	}
}

// A busy group remembers more writes than Window.Writes, because clients may repeat calls for at least Window.AgeMin.
func TestRequestIDsOfABusyGroupAreRememberedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := makeNetwork(t)
		n.change = func(_ uint64, o *Options) {
			o.Window = format.RequestWindow{Age: 10 * time.Minute, Writes: 10, AgeMin: 2 * time.Minute, WritesMax: 1000}
		}
		n.startAll()
		_, leader := n.lead()
		want := leader.must(t, put(1, "a").request(1, 1))
		for i := range uint64(100) {
			leader.must(t, put(2, "b").request(2, i))
		}
		time.Sleep(time.Minute)
		if got := leader.must(t, put(1, "a").request(1, 1)); !got.Repeated || got.Index != want.Index {
			t.Fatalf("forgotten within a minute: %+v", got)
		}
		time.Sleep(time.Minute + time.Second)
		leader.must(t, put(2, "b").request(3, 1))
		if got := leader.must(t, put(1, "a").request(1, 1)); got.Repeated {
			t.Fatalf("kept for longer than is promised: %+v", got)
		}
	})
}
