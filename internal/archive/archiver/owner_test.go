package archiver

import (
	"errors"
	"testing"
	"time"
)

// An archiver of an idle store creates no object for minutes, so it does not notice that another one has taken over. It
// must notice before it prunes. The one that took over remains the owner, even if it creates a log object just when it
// asks.
func TestAnArchiverThatWasTakenOverIsNoOwner(t *testing.T) {
	inScene(t, 1, standardLimits, func(s *scene) {
		t := s.t
		<-s.Begun()
		first := s.process
		if err := first.Owns(t.Context()); err != nil {
			t.Errorf("alone: %v", err)
		}
		s.restart(standardLimits)
		<-s.Begun()
		var taken *TakenOverError
		if err := first.Owns(t.Context()); !errors.As(err, &taken) || taken.Writer != s.Status().Writer || taken.Epoch != 2 {
			t.Errorf("taken over: %v", err)
		}
		s.view.change(func(v *view) {
			v.hook = func(op, _ string) {
				if op == "stat" {
					s.model.write(s.model.one(0), 100)
					time.Sleep(25 * time.Second)
				}
			}
		})
		for range 3 {
			if err := s.Owns(t.Context()); err != nil {
				t.Errorf("the owner: %v", err)
			}
		}
		s.view.change(func(v *view) { v.hook, v.rate, v.only = nil, 1, faultUnread })
		if err := s.Owns(t.Context()); !errors.Is(err, errBucket) {
			t.Errorf("the bucket is away: %v", err)
		}
		s.view.change(func(v *view) { v.rate = 0 })
		if err := first.end(); err != nil && !errors.As(err, &taken) {
			t.Error(err)
		}
	})
}
