package sim

import (
	"math/rand/v2"
	"time"

	"sheaf.dev/sheaf/internal/vfs"
)

// worstMoment takes a volume when it matters most: one voter is left behind, so that the others alone hold what is
// acknowledged; then the disk of one of them is emptied or rolled back, and the other one, which leads, is cut off. What the
// two that are left may not do is elect the one that was left behind.
func (w *world) worstMoment(o *operator, r *rand.Rand) bool {
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
	if r.IntN(2) == 0 {
		lost.backup = lost.disk.CrashClone(vfs.Survival{Kind: vfs.SurviveNone})
	}
	w.mu.Unlock()
	w.only(func(a, b int) bool { return a != behind.number && b != behind.number })
	if !w.sleep(between(r, 200*time.Millisecond, 800*time.Millisecond)) {
		return false
	}
	return w.loseAlone(o, r, lost, leader.machine) && w.sleep(between(r, time.Second, 4*time.Second))
}

// loseAlone takes the disk of a machine and cuts the leader off at the same moment. Nobody may sleep with a lock held: the
// time of the bubble would stand still.
func (w *world) loseAlone(o *operator, r *rand.Rand, lost, leader *machine) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !w.mayLose(o, lost) {
		return false
	}
	w.only(func(a, b int) bool { return a != leader.number && b != leader.number })
	disk := vfs.NewMem()
	if lost.backup != nil {
		disk = lost.backup
	}
	w.replaceVolume(lost, disk, r)
	return true
}

// only lets nothing through but where it is allowed.
func (w *world) only(open func(from, to int) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.cut)
	for a := range w.machines {
		for b := range w.machines {
			if a != b && !open(a, b) {
				w.cut[[2]int{a, b}] = true
			}
		}
	}
}
