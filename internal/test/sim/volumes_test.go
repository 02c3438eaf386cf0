package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// mayLose reports whether a machine's disk may be lost without a loss of data. This is the case if a quorum of the
// other members holds everything, so no other voter may be lost or damaged. The caller holds o.mu, so that the
// membership does not change.
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
		if other := w.at[id]; other != nil && other != m && other.mayBeDamaged() {
			return false
		}
	}
	// The leader may have been replaced without noticing it. Its membership is current only if it is the newest that any
	// member has applied.
	return members.ConfIndex == w.ledger.newestConf() && m.raftID != 0
}

func (w *world) loseVolume(o *operator, r *rand.Rand) bool {
	m := w.one(r)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !w.mayLose(o, m) {
		return false
	}
	w.replaceVolume(m, vfstest.NewMem(), r)
	return true
}

// replaceVolume gives a machine a new disk. Everything on the old disk is lost for good, including the incarnation.
func (w *world) replaceVolume(m *machine, disk *vfstest.Mem, r *rand.Rand) {
	w.mu.Lock()
	end := m.kill()
	m.insert(disk)
	m.backup, m.cloned = nil, false
	old, volume := m.raftID, m.volume
	sound := w.cfg.mutation != mutateReuse
	if sound {
		m.takeNewIdentity()
		m.raftID = 0
	}
	w.lost[old] = sound
	w.mu.Unlock()
	w.wait.Go(end)
	if w.cfg.mutation == mutateReuse {
		_ = group.Create(m.options(disk), w.ledger.firstConf)
		_ = format.WriteReplicaFile(disk, groupDir, m.replicaFile(old, volume, false))
	}
	w.startLater(m, between(r, 10*time.Millisecond, time.Second))
}

// takeNewIdentity gives a machine's volume a new identity after the disk was replaced. The caller holds world.mu.
func (m *machine) takeNewIdentity() {
	m.volume = uuid.UUID{3, byte(m.number), byte(m.epoch), byte(m.epoch >> 8)}
}

func (w *world) backUp(_ *operator, r *rand.Rand) bool {
	m := w.one(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(m.rots) > 0 || m.disk.Crashed() {
		return false
	}
	if sb, _, err := volume.VerifySuperblock(m.disk, superDir); err != nil || sb.Shard != m.shardName() {
		return false // the disk has no volume of this shard to restore later
	}
	if m.process == nil {
		w.fired["volume backed up while its machine was down"]++
	}
	m.backUpNow()
	return true
}

// swapVolumes swaps the disk of a member with the disk of a machine that holds nothing of the group. Each shard then
// finds a volume that is not registered for it, so no replica on it may run, unless a second swap has returned a disk
// to its own machine.
func (w *world) swapVolumes(o *operator, r *rand.Rand) bool {
	m, other := w.one(r), w.one(r)
	o.mu.Lock()
	defer o.mu.Unlock()
	if m == other || !w.mayLose(o, m) || !w.isMember(m) || w.isMember(other) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(m.rots)+len(other.rots) > 0 {
		return false // the swap would move the bad bytes, which are recorded by machine
	}
	ends := []func(){m.kill(), other.kill()}
	disk := m.disk.CrashClone(survival(r))
	m.insert(other.disk.CrashClone(survival(r)))
	other.insert(disk)
	m.cloned, other.cloned = other.cloned, m.cloned
	for i, machine := range []*machine{m, other} {
		if machine.raftID != 0 {
			w.lost[machine.raftID] = true
		}
		machine.raftID, machine.backup = 0, nil
		if machine.cloned {
			// The disk may be an older state of the machine's own disk. A real shard would notice this by the generation, so
			// the volume is treated as a new one.
			machine.takeNewIdentity()
		}
		w.wait.Go(ends[i])
		w.startLater(machine, between(r, 10*time.Millisecond, time.Second))
	}
	return true
}

// isMember reports whether the leader's membership includes the incarnation of a machine.
func (w *world) isMember(m *machine) bool {
	leader := w.leader()
	if leader == nil {
		return false
	}
	conf := leader.replica.Members().Conf
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(slices.Concat(conf.GetVoters(), conf.GetVotersOutgoing(), conf.GetLearners(),
		conf.GetLearnersNext()), m.raftID)
}

// copyVolume puts an older copy of a member's disk into a machine that holds nothing of the group. It does so at the
// worst moment: the member itself is down, and the leader is disconnected. The copy has the Raft id of the member,
// but it lacks the entries that the member has acknowledged since the copy was made.
func (w *world) copyVolume(o *operator, r *rand.Rand) bool {
	var to *machine
	for _, i := range r.Perm(len(w.machines)) {
		if !w.isMember(w.machines[i]) {
			to = w.machines[i]
		}
	}
	return to != nil && w.atWorst(o, r, func(m *machine) bool {
		w.mu.Lock()
		copied := m.backup
		w.mu.Unlock()
		if copied == nil || w.isMember(to) {
			return false
		}
		w.mu.Lock()
		end := to.kill()
		to.insert(copied.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone}))
		to.raftID, to.backup, to.cloned = 0, nil, true
		w.mu.Unlock()
		w.wait.Go(end)
		w.startLater(to, time.Millisecond)
		m.cutPower(survival(r))
		w.startLater(m, between(r, 3*time.Second, 5*time.Second))
		return true
	})
}
