package archiver

import (
	"testing"
	"testing/synctest"
	"time"
)

// Work has pauses that are as long as the work before them, until the time after which it must not be delayed.
func TestHalfOfTheTimeIsPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		work := pace(began.Add(5 * time.Second))
		for i, want := range []time.Duration{2 * time.Second, 4 * time.Second, 5 * time.Second, 6 * time.Second} {
			time.Sleep(time.Second)
			work.rest(t.Context())
			if took := time.Since(began); took != want {
				t.Errorf("the work of %d s ends after %v, and not after %v", i+1, took, want)
			}
		}
		(*pacer)(nil).rest(t.Context())
	})
}
