package archiver

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// setRate sets the probability that a group does not answer.
func (s *scene) setRate(rate float64) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	s.model.rate = rate
}

// coverWithin calls Cover. If the call is not served within a minute, it ends with an error.
func (s *scene) coverWithin() error {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	return s.Cover(ctx)
}

// coveredSince fails the test unless objects record of each group that it is archived up to a time after since.
func (s *scene) coveredSince(since time.Time) (logs uint64) {
	s.t.Helper()
	a := s.current()
	for id, r := range a.groups {
		if r.readAt < since.UnixNano() {
			s.t.Errorf("group %s is known to be archived up to %v before the call", id, since.Sub(time.Unix(0, r.readAt)))
		}
	}
	return a.last
}

// Objects record only every 10 minutes up to which time a group is archived that is not written. Cover has them record
// it at once, for all groups together.
func TestCoverRecordsTheTimeOfEachGroup(t *testing.T) {
	inScene(t, 3, standardLimits, func(s *scene) {
		t := s.t
		time.Sleep(2 * time.Minute)
		s.model.write(s.model.one(1), 100)
		synctest.Wait()
		before, called := s.Status().Number, time.Now()
		var calls sync.WaitGroup
		for range 3 {
			calls.Go(func() {
				if err := s.coverWithin(); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		if took := time.Since(called); took > time.Second {
			t.Errorf("it took %v", took)
		}
		if logs := s.coveredSince(called); logs > before+3 { // each call may come after the round of the one before
			t.Errorf("%d log objects for three calls", logs-before)
		}
	})
}

// While a group cannot be read, Cover does not return. It says which group, and does not disturb later calls.
func TestCoverWaitsForEachGroup(t *testing.T) {
	inScene(t, 3, standardLimits, func(s *scene) {
		t := s.t
		time.Sleep(2 * time.Minute)
		s.setRate(1)
		err := s.coverWithin()
		if !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "3 groups could not be read, such as 0") {
			t.Errorf("no group answers: %v", err)
		}
		s.setRate(0)
		called := time.Now()
		if err := s.coverWithin(); err != nil {
			t.Error(err)
		}
		s.coveredSince(called)
	})
}
