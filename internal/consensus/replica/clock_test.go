package replica

import (
	"testing"
	"testing/synctest"
	"time"
)

// The clock does no work for resting replicas, and runs again as soon as a replica has work.
func TestTheClockLooksAtNoReplicaThatRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newQuietNetwork(t)
		first, leader := n.lead()
		all := func() (count int) {
			for _, one := range n.members {
				count += one.machine.committer.Clocked()
			}
			return count
		}
		for i := range int64(20) {
			leader.must(t, put(i, "a"))
			if all() == 0 {
				t.Fatal("the clock looks at none of those at work")
			}
			n.rest(3)
			until(t, "the marks are written, and the clock stops", func() bool { return all() == 0 })
			time.Sleep(time.Duration(i) * 10 * time.Millisecond)
		}
		n.stop(first)
		n.down(first)
		_, leader = n.lead() // the other members' clocks run again and start an election
		leader.must(t, put(1, "b"))
		until(t, "the marks are written, and the clock stops again", func() bool { return all() == 0 })
	})
}
