package archiver

import (
	"testing"
	"testing/synctest"
	"time"
)

// Soon after an idle group's first copy, and soon after a start, an object records the time up to which the group is
// archived. A single additional log object records this for all such groups.
func TestTheTimeOfAnIdleGroupIsKnownSoon(t *testing.T) {
	inScene(t, 3, standardLimits, func(s *scene) {
		t := s.t
		known := func(when string, objects uint64) {
			t.Helper()
			synctest.Wait()
			a := s.current()
			for id, r := range a.groups {
				if r.readAt == 0 {
					t.Errorf("%s: nobody knows until when group %s is archived", when, id)
				}
			}
			if a.last > objects {
				t.Errorf("%s: %d log objects, want at most %d", when, a.last, objects)
			}
		}
		time.Sleep(30 * time.Second) // long enough for the first copies, and for their positions and times to be recorded
		known("after the first copies", 3)
		time.Sleep(90 * time.Second)
		known("while nothing happens", 3)
		if err := s.end(); err != nil {
			t.Fatal(err)
		}
		s.restart(standardLimits)
		known("after a start", 4)
	})
}
