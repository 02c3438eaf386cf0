package replica

import (
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/vfs"
)

// gathers makes a group of which one write was just answered, and one more waits for its next round, while another group
// is being synced (busy) or there is none. wait is how long it may gather.
func gathers(t *testing.T, busy bool, wait time.Duration) (one *member, waiting *Pending, syncs *vfs.Fault) {
	faulty := vfs.NewFaulty(vfs.NewMem())
	m := newMachine(t, faulty, "/v")
	m.committer.mu.Lock()
	m.committer.gather.wait = func(time.Duration) time.Duration { return wait }
	m.committer.mu.Unlock()
	one = m.open("one", nil)
	hold := func(name string) (reached, open chan struct{}) {
		reached, open = make(chan struct{}), make(chan struct{})
		faulty.Add(&vfs.Fault{
			Match: func(op vfs.Op) bool { return isSegmentSync(op) && strings.Contains(op.Name, "/"+name+"/") }, Count: 1,
			Effect: vfs.EffectPass, Before: func(vfs.Op) { close(reached); <-open },
		})
		return reached, open
	}
	if busy {
		other := m.open("other", nil)
		reached, open := hold("other")
		p := other.Propose(put(1, "a"))
		<-reached
		t.Cleanup(func() { close(open); mustWait(t, p) })
	}
	reached, open := hold("one")
	first := one.Propose(put(1, "a"))
	<-reached
	waiting = one.Propose(put(2, "b"))
	syncs = faulty.Add(&vfs.Fault{
		Match:  func(op vfs.Op) bool { return isSegmentSync(op) && strings.Contains(op.Name, "/one/") },
		Effect: vfs.EffectPass,
	})
	close(open)
	mustWait(t, first)
	return one, waiting, syncs
}

func TestARoundWaitsForWhoWasAnswered(t *testing.T) {
	one, waiting, syncs := gathers(t, true, time.Hour)
	for deadline := time.Now().Add(20 * time.Second); one.parked.Load() != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it waits for %d writes, want 2", one.parked.Load())
		}
	}
	if answeredYet(waiting) {
		t.Fatal("the round began before all were there")
	}
	again := one.Propose(put(1, "c"))
	mustWait(t, again)
	mustWait(t, waiting)
	if syncs.Fired() != 1 {
		t.Fatalf("%d syncs for two writes, want 1", syncs.Fired())
	}
	if one.parked.Load() != 0 {
		t.Fatal("it waits still")
	}
}

func TestARoundDoesNotWaitForLong(t *testing.T) {
	one, waiting, _ := gathers(t, true, time.Millisecond)
	mustWait(t, waiting) // though nobody else comes
	one.wantData(t, 2, "b")
}

func TestARoundDoesNotWaitWhereTheDeviceIsIdle(t *testing.T) {
	_, waiting, _ := gathers(t, false, time.Hour)
	mustWait(t, waiting)
}

func TestStopOfAGroupThatGathers(t *testing.T) {
	one, waiting, _ := gathers(t, true, 50*time.Millisecond)
	one.stop(t)
	mustWait(t, waiting)
}
