package message

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
)

// A refused amount may not appear in the count even for a moment: while it did, others were refused for it, although
// their own amounts were within the limit.
func TestRefusedAmountIsNeverCounted(t *testing.T) {
	b := newBudget(10)
	b.Add(5)
	var other sync.WaitGroup
	var stop atomic.Bool
	asked := make(chan struct{})
	other.Go(func() {
		for n := 0; !stop.Load(); n++ {
			if b.Take(6, 0) == nil {
				t.Error("6 are granted beside 5 of 10")
			}
			if n == 100 {
				close(asked)
			}
		}
	})
	<-asked
	rounds := 5_000_000
	if testing.Short() {
		rounds = 100_000 // under the race detector, which looks for something else
	}
	for range rounds {
		if err := b.Take(1, 0); err != nil {
			t.Errorf("1 is refused beside 5 of 10: %v", err)
			break
		}
		b.Add(-1)
	}
	stop.Store(true)
	other.Wait()
	wantUsed(t, b, 5)
}

func TestBudgetAdmitsAnyAmountIfNothingElseIsTaken(t *testing.T) {
	b := newBudget(10)
	if err := b.Take(30, 0); err != nil {
		t.Fatal(err)
	}
	if err := b.Take(30, 30); err != nil {
		t.Fatalf("the only call asks for more: %v", err)
	}
	if err := b.Within(100).Take(41, 0); !errors.Is(err, errFull) {
		t.Fatalf("41 beside 60 of 100 give %v", err)
	}
	wantUsed(t, b, 60)
}
