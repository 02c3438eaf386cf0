package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/test/vfstest"
)

// fault describes one kind of fault. Its function returns true if it has caused the fault.
type fault struct {
	name   string
	weight int
	do     func(w *world, o *operator, r *rand.Rand) bool
}

// faults holds all faults with their usual weights.
var faults = []fault{
	{"crash", 8, (*world).crashOne},
	{"crash at an operation", 6, (*world).crashLater},
	{"power cut of all", 3, (*world).crashAll},
	{"orderly restart", 2, (*world).restartOne},
	{"partition", 8, (*world).partition},
	{"one-way cut", 4, (*world).partitionOneWay},
	{"network healed", 6, (*world).healNetwork},
	{"network bad", 6, (*world).spoilNetwork},
	{"slow disk", 4, (*world).slowDisk},
	{"lead handed over", 6, (*world).handOver},
	{"compaction", 14, (*world).compact},
	{"members changed", 5, (*world).retarget},
	{"volume lost", 6, (*world).loseVolume},
	{"volume rolled back", 8, (*world).rollBack},
	{"volume lost at the worst moment", 4, (*world).loseAtWorstMoment},
	{"volume backed up", 8, (*world).backUp},
	{"etcd silent", 2, (*world).silenceEtcd},
	{"volumes swapped", 4, (*world).swapVolumes},
	{"volume copied at the worst moment", 2, (*world).copyVolume},
	{"bytes rot", 10, (*world).rotOne},
	{"bytes rot at the worst moment", 2, (*world).worstRot},
	{"bytes rot in a small file", 8, (*world).rotSmall},
	{"both copies of a small file bad", 4, (*world).rotBoth},
	{"reads fail at a start", 6, (*world).failReads},
	{"the journal rots", 4, (*world).rotJournal},
	{"reads fail at the worst moment", 2, (*world).worstRead},
	{"lead handed over behind a cut", 1, (*world).transferBehindPartition},
	{"call to lead comes late", 1, (*world).timeoutNowArrivesLate},
	{"vote asked of one just started", 1, (*world).askRestartedVoter},
	{"power cut behind a vote", 1, (*world).voteTwice},
	{"clock set", 4, (*world).setClock},
	{"disk full", 4, (*world).fullDisk},
	{"syncs fail", 6, (*world).failSync},
	{"writes fail", 5, (*world).failWrite},
	{"silence of a moment", 6, (*world).silence},
	{"told late of a silence", 2, (*world).informLate},
}

// nemesis causes one fault after another until the time for faults is over.
func (w *world) nemesis(o *operator) {
	r := rand.New(rand.NewPCG(w.seed, 2))
	var all []fault
	total := 0
	for _, f := range faults {
		if weight, set := w.cfg.faults[f.name]; set || w.cfg.faults != nil {
			f.weight = weight
		}
		if f.weight > 0 {
			all, total = append(all, f), total+f.weight
		}
	}
	for end := time.Now().Add(w.cfg.length); time.Now().Before(end); {
		if !w.sleep(between(r, 50*time.Millisecond, 900*time.Millisecond)) {
			return
		}
		x := r.IntN(total)
		for _, f := range all {
			if x -= f.weight; x < 0 {
				if f.do(w, o, r) {
					w.fire(f.name)
				}
				break
			}
		}
	}
}

func (w *world) one(r *rand.Rand) *machine { return w.machines[r.IntN(len(w.machines))] }

func survival(r *rand.Rand) vfstest.Survival {
	return vfstest.Survival{Kind: vfstest.SurvivalKinds[r.IntN(len(vfstest.SurvivalKinds))], Seed: r.Uint64()}
}

// startLater starts a machine after some time.
func (w *world) startLater(m *machine, after time.Duration) {
	w.wait.Go(func() {
		if w.sleep(after) {
			m.start()
		}
	})
}

func (w *world) crashOne(_ *operator, r *rand.Rand) bool {
	m := w.one(r)
	m.cutPower(survival(r))
	w.startLater(m, between(r, 10*time.Millisecond, 3*time.Second))
	return true
}

// crashLater schedules a power cut for a later moment, just before an operation changes the disk.
func (w *world) crashLater(_ *operator, r *rand.Rand) bool {
	m, s, restart := w.one(r), survival(r), between(r, 10*time.Millisecond, 2*time.Second)
	w.mu.Lock()
	disk := m.disk
	w.mu.Unlock()
	disk.CrashAfter(disk.OpCount() + r.Int64N(40))
	w.wait.Go(func() {
		for range 30 {
			if !w.sleep(50*time.Millisecond) || disk.Crashed() {
				break
			}
		}
		w.mu.Lock()
		same := m.disk == disk
		w.mu.Unlock()
		if same { // otherwise the machine has been given another disk
			m.cutPower(s)
			w.startLater(m, restart)
		}
	})
	return true
}

func (w *world) crashAll(_ *operator, r *rand.Rand) bool {
	for _, m := range w.machines {
		m.cutPower(survival(r))
		w.startLater(m, between(r, 10*time.Millisecond, time.Second))
	}
	return true
}

func (w *world) restartOne(_ *operator, r *rand.Rand) bool {
	m := w.one(r)
	w.wait.Go(m.restart)
	return true
}

func (w *world) partition(_ *operator, r *rand.Rand) bool {
	side := make([]bool, len(w.machines))
	if r.IntN(2) == 0 {
		side[r.IntN(len(side))] = true
	} else {
		for i := range side {
			side[i] = r.IntN(2) == 0
		}
	}
	if leader := w.leader(); leader != nil && r.IntN(2) == 0 {
		clear(side)
		side[leader.machine.number] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.partitioned)
	for a := range side {
		for b := range side {
			if side[a] != side[b] {
				w.partitioned[[2]int{a, b}] = true
			}
		}
	}
	return true
}

func (w *world) partitionOneWay(_ *operator, r *rand.Rand) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, b := r.IntN(len(w.machines)), r.IntN(len(w.machines))
	w.partitioned[[2]int{a, b}] = true
	return a != b
}

func (w *world) healNetwork(_ *operator, _ *rand.Rand) bool { return w.connect() }

// connect lets every message through. It returns false if nothing was blocked before.
func (w *world) connect() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := len(w.partitioned) > 0 || w.bad
	clear(w.partitioned)
	w.bad = false
	return was
}

func (w *world) spoilNetwork(_ *operator, _ *rand.Rand) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bad = true
	return true
}

func (w *world) slowDisk(_ *operator, r *rand.Rand) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		m.slow = 0
	}
	w.one(r).slow = between(r, 20*time.Millisecond, 1500*time.Millisecond)
	return true
}

func (w *world) handOver(_ *operator, r *rand.Rand) bool {
	leader := w.leader()
	if leader == nil {
		return false
	}
	voters := leader.replica.Members().Conf.GetVoters()
	to := voters[r.IntN(len(voters))]
	w.wait.Go(func() {
		if err := leader.replica.TransferLeader(w.ctx, to); err == nil && to != leader.raftID {
			w.fire("lead handed over in fact")
		}
	})
	return true
}

func (w *world) compact(_ *operator, r *rand.Rand) bool {
	all := w.processes()
	if len(all) == 0 {
		return false
	}
	p := all[r.IntN(len(all))]
	w.wait.Go(func() { w.compactOne(p) })
	return true
}

// appliedByAll returns the highest index that has been applied by every member in the leader's membership. It returns
// 0 if there is no leader, or if some member is not running.
func (w *world) appliedByAll() uint64 {
	leader := w.leader()
	if leader == nil {
		return 0
	}
	members := leader.replica.Members()
	limit := members.AppliedIndex
	for _, m := range members.Progress {
		applied := uint64(0)
		for _, p := range w.processes() {
			if p.raftID == m.ID {
				applied = p.log.AppliedIndex()
			}
		}
		limit = min(limit, applied)
	}
	return limit
}

// retarget chooses new machines for the copies.
func (w *world) retarget(o *operator, r *rand.Rand) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.target = r.Perm(len(w.machines))[:w.cfg.copies]
	slices.Sort(o.target)
	return true
}
