package sim

import (
	"math/rand/v2"
	"time"

	"sheaf.dev/sheaf/internal/test/vfstest"
)

// loseAtWorstMoment loses a volume while the remaining members lack acknowledged entries. It disconnects one voter, so
// that only the other two hold all acknowledged entries. Of these two, one then loses its disk or is rolled back, and
// the other one, the leader, is disconnected. The voter that is behind must not be elected by the remaining voters.
func (w *world) loseAtWorstMoment(o *operator, r *rand.Rand) bool {
	return w.atWorst(o, r, func(lost *machine) bool {
		w.mu.Lock()
		old := lost.backup != nil && lost.since.isOld()
		w.mu.Unlock()
		if old {
			w.putBack(lost, r)
			return true
		}
		w.replaceVolume(lost, vfstest.NewMem(), r)
		return true
	})
}

// worstRot damages the last synced bytes of a voter's log at the worst moment: another voter is behind, and the
// leader is disconnected. The machine finds the damage at once, because it restarts or scrubs.
func (w *world) worstRot(o *operator, r *rand.Rand) bool {
	return w.atWorst(o, r, func(lost *machine) bool {
		if !w.rotDisk(lost, r, 1+r.IntN(3)/2*3) {
			return false
		}
		w.mu.Lock()
		p := lost.process
		w.mu.Unlock()
		if p != nil && r.IntN(3) == 0 {
			w.wait.Go(func() { w.scrub(p) })
			return true
		}
		lost.cutPower(survival(r))
		w.startLater(lost, between(r, 10*time.Millisecond, 300*time.Millisecond))
		return true
	})
}

func (w *world) atWorst(o *operator, r *rand.Rand, lose func(*machine) bool) bool {
	leader := w.leader()
	if leader == nil || w.cfg.copies != 3 {
		return false
	}
	var others []*machine
	w.mu.Lock()
	for _, id := range leader.replica.Members().Conf.GetVoters() {
		if m := w.at[id]; m != nil && m != leader.machine && m.process != nil {
			others = append(others, m)
		}
	}
	w.mu.Unlock()
	if len(others) != 2 {
		return false
	}
	i := r.IntN(2)
	behind, lost := others[i], others[1-i]
	w.mu.Lock()
	longer := time.Duration(0)
	if r.IntN(2) == 0 && len(lost.rots) == 0 {
		lost.backUpNow()
		longer = stepBound + 2*stepLook // time after which the machine must recognize that the image is old
	}
	w.mu.Unlock()
	w.connectOnly(func(a, b int) bool { return a != behind.number && b != behind.number })
	if !w.sleep(longer + between(r, 200*time.Millisecond, 800*time.Millisecond)) {
		return false
	}
	return w.loseAlone(o, lost, leader.machine, lose) && w.sleep(between(r, time.Second, 4*time.Second))
}

// loseAlone calls lose() for a machine, and disconnects the leader at the same moment. lose() must not sleep, because
// loseAlone holds a lock, and virtual time stops while another goroutine waits for a lock.
func (w *world) loseAlone(o *operator, lost, leader *machine, lose func(*machine) bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !w.mayLose(o, lost) || !lose(lost) {
		return false
	}
	w.connectOnly(func(a, b int) bool { return a != leader.number && b != leader.number })
	return true
}

// connectOnly changes the network: it connects the machines for which open() returns true, and drops all messages
// between the others.
func (w *world) connectOnly(open func(from, to int) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.partitioned)
	for a := range w.machines {
		for b := range w.machines {
			if a != b && !open(a, b) {
				w.partitioned[[2]int{a, b}] = true
			}
		}
	}
}
