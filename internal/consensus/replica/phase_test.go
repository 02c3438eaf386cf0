package replica

import "testing"

// Each phase follows only the phases that this test lists. In particular, late messages are sent, and writes are
// answered, only after the Ready is synced.
func TestPhasesFollowEachOther(t *testing.T) {
	type step struct{ from, to phase }
	legal := map[step]bool{
		{idling, taken}:              true,
		{taken, sentEarly}:           true,
		{sentEarly, visibleEarly}:    true,
		{visibleEarly, appliedEarly}: true,
		{appliedEarly, appended}:     true,
		{appliedEarly, synced}:       true, // allowed if there is nothing to write
		{appended, synced}:           true,
		{synced, sentLate}:           true,
		{sentLate, visible}:          true,
		{visible, applied}:           true,
		{applied, idling}:            true,
	}
	enters := func(s step) (entered bool) {
		defer func() { entered = recover() == nil }()
		s.from.enter(s.to)
		return true
	}
	for from := idling; from <= failed; from++ {
		for to := idling; to <= failed; to++ {
			want := legal[step{from, to}] || to == failed
			if got := enters(step{from, to}); got != want {
				t.Errorf("phase %q after %q: entered %v, want %v", to, from, got, want)
			}
		}
	}
}
