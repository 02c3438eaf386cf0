package group

import (
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

const (
	// commitStepMax is the most time that is counted between two entries of the log; see Log.RecentRequests. The commit
	// times of a log jump if a leader's clock is set, or if a machine with a different clock becomes leader.
	commitStepMax = 10 * time.Second
	// clockErrorMax is how wrong the clocks of machines may be without making a start forget requests.
	clockErrorMax = 24 * time.Hour
)

// ages knows how long ago entries were applied in this process, by its monotonic clock. It is safe for concurrent
// use.
type ages struct {
	mu    sync.Mutex
	marks []ageMark // ascending; the last one is for the last entry, the others are ageStep apart
}

// ageMark records a time, and the index up to which all entries were applied at that time.
type ageMark struct {
	index uint64
	at    time.Time
}

const ageStep = 5 * time.Second

// note records that entries up to an index were applied just now.
func (a *ages) note(index uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if n := len(a.marks); n >= 2 && now.Sub(a.marks[n-2].at) < ageStep {
		a.marks[n-1] = ageMark{index, now}
		return
	}
	old := 0
	for old+1 < len(a.marks) && now.Sub(a.marks[old+1].at) >= format.DefaultRequestWindow.Age {
		old++
	}
	a.marks = append(a.marks[:0], a.marks[old:]...)
	a.marks = append(a.marks, ageMark{index, now})
}

// through returns the last index up to which every entry was applied at least age ago; 0 if none is known.
func (a *ages) through(age time.Duration) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := len(a.marks) - 1; i >= 0; i-- {
		if time.Since(a.marks[i].at) >= age {
			return a.marks[i].index
		}
	}
	return 0
}
