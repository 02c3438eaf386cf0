package parallel

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestConcurrencyIsLimited checks that every function is called, and that exactly the allowed number of calls run at a
// time.
func TestConcurrencyIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most, done := 0, 0, 0
		began := time.Now()
		Times(10, 3, func(i int) {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			running--
			done |= 1 << i
		})
		if most != 3 || done != 1<<10-1 || time.Since(began) != 4*time.Second {
			t.Errorf("at most %d at a time, done are %b, after %v", most, done, time.Since(began))
		}
	})
}
