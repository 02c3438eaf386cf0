package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/vfs"

	"github.com/google/uuid"
)

// fault is one kind of trouble; it tells whether it was made.
type fault struct {
	name   string
	weight int
	do     func(w *world, o *operator, r *rand.Rand) bool
}

// faults with their usual weights.
var faults = []fault{
	{"crash", 8, (*world).crashOne},
	{"crash at an operation", 6, (*world).crashLater},
	{"power cut of all", 3, (*world).crashAll},
	{"orderly restart", 2, (*world).restartOne},
	{"partition", 8, (*world).partition},
	{"one-way cut", 4, (*world).cutOneWay},
	{"network healed", 6, (*world).healNetwork},
	{"network bad", 6, (*world).spoilNetwork},
	{"slow disk", 4, (*world).slowDisk},
	{"lead handed over", 6, (*world).handOver},
	{"compaction", 14, (*world).compact},
	{"members changed", 5, (*world).retarget},
	{"volume lost", 6, (*world).loseVolume},
	{"volume rolled back", 8, (*world).rollBack},
	{"volume lost at the worst moment", 4, (*world).worstMoment},
	{"volume backed up", 8, (*world).backUp},
	{"bytes rot", 10, (*world).rotOne},
	{"bytes rot at the worst moment", 2, (*world).worstRot},
}

// nemesis makes faults for the length of the run.
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

func survival(r *rand.Rand) vfs.Survival {
	return vfs.Survival{Kind: vfs.SurvivalKinds[r.IntN(len(vfs.SurvivalKinds))], Seed: r.Uint64()}
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

// crashLater cuts the power at one of the next operations of the disk, between any two of them.
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
		if same { // not replaced meanwhile
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
	clear(w.cut)
	for a := range side {
		for b := range side {
			if side[a] != side[b] {
				w.cut[[2]int{a, b}] = true
			}
		}
	}
	return true
}

func (w *world) cutOneWay(_ *operator, r *rand.Rand) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, b := r.IntN(len(w.machines)), r.IntN(len(w.machines))
	w.cut[[2]int{a, b}] = true
	return a != b
}

func (w *world) healNetwork(_ *operator, _ *rand.Rand) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := len(w.cut) > 0 || w.bad
	clear(w.cut)
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
	w.wait.Go(func() {
		p.log.SetTombstoneLimit(w.appliedByAll())
		report, err := p.log.Compact(w.ctx, group.CompactOptions{All: true})
		if err == nil && report.EntriesDropped > 0 {
			w.fire("compaction dropped entries")
		}
	})
	return true
}

// appliedByAll is what a leader tells: up to where every member has applied. 0: it does not know.
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

// retarget chooses anew on which machines the copies are to be.
func (w *world) retarget(o *operator, r *rand.Rand) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.target = r.Perm(len(w.machines))[:w.cfg.copies]
	slices.Sort(o.target)
	return true
}

// mayLose tells whether the disk of a machine may go without the loss of what a quorum of the others does not hold: no other
// incarnation that has a vote is lost. Called with o.mu held, under which the operator changes members.
func (w *world) mayLose(o *operator, m *machine) bool {
	if o.changing {
		return false
	}
	leader := w.leader()
	if leader == nil {
		return false
	}
	members := leader.replica.Members()
	if members.Changing || len(members.Conf.GetVoters()) < 3 || len(members.Conf.GetVoters()) < w.cfg.copies {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range members.Conf.GetVoters() {
		if w.lost[id] {
			return false
		}
		if other := w.at[id]; other != nil && other != m && len(other.rots) > 0 {
			return false
		}
	}
	// The leader may be one of the past: only the newest membership that anybody applied counts.
	return members.ConfIndex == w.ledger.newestConf() && m.raftID != 0
}

func (w *world) loseVolume(o *operator, r *rand.Rand) bool {
	m := w.one(r)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !w.mayLose(o, m) {
		return false
	}
	w.replaceVolume(m, vfs.NewMem(), r)
	return true
}

// replaceVolume gives a machine another disk. What was on it is gone for good, and with it the incarnation.
func (w *world) replaceVolume(m *machine, disk *vfs.Mem, r *rand.Rand) {
	w.mu.Lock()
	end := m.kill()
	m.disk, m.backup, m.rots, m.rotted = disk, nil, nil, false
	old, volume := m.raftID, m.volume
	sound := w.cfg.mutation != mutateReuse && w.cfg.mutation != mutateRollBack
	if sound {
		m.volume = uuid.UUID{3, byte(m.number), byte(m.epoch), byte(m.epoch >> 8)}
		m.raftID = 0
	}
	w.lost[old] = sound
	w.mu.Unlock()
	w.wait.Go(end)
	if w.cfg.mutation == mutateReuse {
		_ = group.Create(m.options(disk), w.ledger.firstConf)
		_ = group.WriteReplicaFile(disk, groupDir, m.replicaFile(old, volume, false))
	}
	w.startLater(m, between(r, 10*time.Millisecond, time.Second))
}

func (w *world) backUp(_ *operator, r *rand.Rand) bool {
	m := w.one(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.process == nil || len(m.rots) > 0 {
		return false
	}
	m.backup = m.disk.CrashClone(vfs.Survival{Kind: vfs.SurviveNone})
	return true
}

// rollBack puts an older state of the disk in its place. The shard sees that by the generation, and begins anew.
func (w *world) rollBack(o *operator, r *rand.Rand) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	var m *machine
	w.mu.Lock()
	for _, i := range r.Perm(len(w.machines)) {
		if w.machines[i].backup != nil {
			m = w.machines[i]
		}
	}
	w.mu.Unlock()
	if m == nil || !w.mayLose(o, m) {
		return false
	}
	backup := m.backup
	w.replaceVolume(m, backup, r)
	return true
}
