package sim

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// Each disk has a superblock, and etcd a registry of volumes, with the code and the rule of shards. A disk may be put
// back from an image at any moment but in the seconds of which docs/operations/troubleshooting.md says that an image
// passes for the disk.

const (
	superDir = "/s" // of the superblock
	// stepTime is the time between two steps of a volume that is written to, and stepBound that within which etcd knows
	// of one after a write.
	stepTime  = time.Second
	stepBound = stepTime + 5*stepLook
	stepLook  = 100 * time.Millisecond
)

// session is a volume that a shard has opened and registered.
type session struct {
	disk    *vfstest.Mem
	volume  *volume.Volume
	shard   placement.Shard
	told    bool   // etcd has the step
	covered uint64 // what was durable before the step
	last    time.Time
}

// sinceBackup is what happened to a machine since its disk was backed up. Guarded by world.mu.
type sinceBackup struct {
	restarted bool          // the volume was opened again
	durable   uint64        // what was durable then
	covered   time.Duration // in which a step was due for what was written after it, and etcd answered
	written   bool
}

// isOld reports whether the machine must notice that an image is old. Called with world.mu held.
func (s sinceBackup) isOld() bool { return s.restarted || s.covered >= stepBound }

// backUpNow takes an image of the disk of a machine. Called with world.mu held.
func (m *machine) backUpNow() {
	m.backup = m.disk.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
	m.since = sinceBackup{durable: m.durable()}
}

// durable returns how much became durable since the process began. Called with world.mu held.
func (m *machine) durable() uint64 {
	if m.process == nil {
		return 0
	}
	return m.process.committer.Synced()
}

func (m *machine) shardName() string { return fmt.Sprint("shard-", m.number) }

// isForeign reports whether a disk has the volume of another machine's shard.
func (m *machine) isForeign(disk *vfstest.Mem) bool {
	sb, _, err := volume.VerifySuperblock(disk, superDir)
	return err == nil && sb.Shard != m.shardName() && m.world.cfg.mutation != mutateCopy
}

// openVolume does what a shard does before it looks at what a volume holds; false: the volume must not be used, or not
// now. The caller holds the disk.
func (m *machine) openVolume(disk *vfstest.Mem) bool {
	w := m.world
	name := m.shardName()
	w.mu.Lock()
	open, silent, aged := m.session != nil && m.session.disk == disk, w.isEtcdSilent(), m.aged
	w.mu.Unlock()
	if open {
		return true
	}
	if silent {
		w.startLater(m, 200*time.Millisecond)
		return false
	}
	opts := volume.Options{FS: disk, Dir: superDir, Store: identity.Store, Shard: name, Create: true, ReserveBytes: 1}
	sb, _, err := volume.VerifySuperblock(disk, superDir)
	switch {
	case errors.Is(err, vfs.ErrCrashed):
		return false
	case err != nil && !errors.Is(err, volume.ErrNoVolume):
		w.violate(oracleDisk, "%v: superblock: %v", m, err)
		return false
	case err == nil && sb.Shard != name:
		// it is another shard's: what it holds does not run, and is wiped where the room is needed
		return w.cfg.mutation == mutateCopy
	case err == nil && aged != uuid.Nil && sb.Volume != aged:
		w.mu.Lock()
		defer w.mu.Unlock()
		// a start noticed, gave the volume another id, durably, and was killed: its replicas are of a volume that is no more
		if m.disk == disk {
			m.refused()
			w.fired["killed when a volume set back had got another id"]++
		}
		return false
	case err == nil:
		sb.Generation++
		registered, err := w.mayRegister(shardOn(name, sb))
		opts.Renew, opts.Registered = err != nil, volume.Step(registered)
	}
	v, err := volume.Open(opts)
	if err != nil {
		if !disk.Crashed() {
			w.violate(oracleDisk, "%v: open its volume: %v", m, err)
		}
		return false
	}
	s := &session{disk: disk, volume: v, shard: shardOn(name, v.Superblock()), told: true, last: time.Now()}
	s.shard.Boot = uuid.New()
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.disk != disk || opts.Renew {
		if m.disk == disk {
			m.refused()
		}
		_ = v.Close()
		return false
	}
	if m.aged != uuid.Nil && w.cfg.mutation == mutateNothing {
		w.found(oracleDisk, fmt.Sprintf("%v: its volume was set back, and is taken: %+v", m, sb))
	}
	m.aged = uuid.UUID{}
	w.volumes[s.shard.VolumeUUID] = s.shard.Record()
	m.session, m.since.restarted = s, true
	return true
}

// refused gives a machine another identity, as a shard does whose volume was set back. Called with world.mu held.
func (m *machine) refused() {
	w := m.world
	if m.aged == uuid.Nil {
		w.found(oracleDisk, fmt.Sprintf("%v: its volume is refused, and was never set back", m))
	}
	w.fired["volume set back, and noticed"]++
	w.lost[m.raftID] = true
	m.beginAnew()
	m.raftID, m.backup, m.aged, m.cloned = 0, nil, uuid.UUID{}, false
	m.epoch++
}

func shardOn(name string, sb volume.Superblock) placement.Shard {
	return placement.Shard{
		Name: name, VolumeUUID: sb.Volume, Generation: sb.Generation, Step: placement.Step(sb.Step),
		Registered: placement.Step(sb.Registered),
	}
}

// mayRegister asks the registry in etcd.
func (w *world) mayRegister(s placement.Shard) (placement.Step, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen, there := w.volumes[s.VolumeUUID]
	if !there || w.cfg.mutation == mutateRollBack {
		return seen.Step, nil
	}
	if w.cfg.mutation == mutateSteps {
		seen.Step = placement.Step{} // generations alone
	}
	return seen.Step, placement.MayFollow(seen, s)
}

// closeVolume releases a volume. Called with world.mu held.
func (m *machine) closeVolume() {
	if m.session != nil {
		_ = m.session.volume.Close()
		m.session = nil
	}
}

// empty takes from the disk what it holds of the group. Called with world.mu held.
func (m *machine) empty() {
	aged := m.aged
	m.insert(m.emptied())
	m.aged = aged
}

// emptied is a disk without what this one holds of the group: it is in the trash. It is the same volume; in the place
// of another shard's, somebody gives the shard a blank disk.
func (m *machine) emptied() *vfstest.Mem {
	disk := vfstest.NewMem()
	sb, _, err := volume.VerifySuperblock(m.disk, superDir)
	if err == nil && sb.Shard == m.shardName() {
		err = copySuperblock(m.disk, disk)
	}
	if err != nil || sb.Shard != m.shardName() {
		m.backup = nil // it is another volume
		return vfstest.NewMem()
	}
	return disk
}

func copySuperblock(from, to *vfstest.Mem) error {
	name := path.Join(superDir, "superblock")
	source, err := from.Open(name)
	if err != nil {
		return err
	}
	defer source.Close()
	size, err := source.Size()
	if err != nil {
		return err
	}
	content := make([]byte, size)
	if _, err := source.ReadAt(content, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := to.MkdirAll(superDir); err != nil {
		return err
	}
	target, err := to.Create(name)
	if err != nil {
		return err
	}
	_, err = target.WriteAt(content, 0)
	return errors.Join(err, target.Sync(), target.Close(), to.SyncDir(superDir), to.SyncDir("/"))
}

// steps takes the volumes of all machines from step to step.
func (w *world) steps() {
	for w.sleep(stepLook) {
		for _, m := range w.machines {
			w.step(m)
		}
	}
}

func (w *world) step(m *machine) {
	w.mu.Lock()
	s, silent, durable := m.session, w.isEtcdSilent(), m.durable()
	runs := s != nil && m.process != nil && m.process.disk == s.disk
	if runs && m.backup != nil {
		m.since.note(durable, silent)
	}
	w.mu.Unlock()
	if !runs || time.Since(s.last) < stepTime {
		return
	}
	if s.told {
		if durable == s.covered {
			return
		}
		next, err := s.volume.NextStep(volume.Step(s.shard.Step))
		if err != nil {
			if !s.disk.Crashed() && !errors.Is(err, volume.ErrClosed) {
				w.violate(oracleDisk, "%v: %v", m, err)
			}
			return
		}
		s.shard.Registered, s.shard.Step = s.shard.Step, placement.Step(next)
		s.covered, s.told = durable, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.session != s || w.isEtcdSilent() {
		return
	}
	if err := placement.MayFollow(w.volumes[s.shard.VolumeUUID], s.shard); err != nil && w.cfg.mutation == mutateNothing {
		w.found(oracleDisk, fmt.Sprintf("%v: its next step is refused: %v", m, err))
	}
	w.volumes[s.shard.VolumeUUID] = s.shard.Record()
	s.told, s.last = true, time.Now()
	w.fired["step of a volume"]++
}

// note takes in one look at a machine that runs.
func (s *sinceBackup) note(durable uint64, silent bool) {
	s.written = s.written || durable != s.durable
	switch {
	case silent:
		s.covered = 0
	case s.written:
		s.covered += stepLook
	}
}

// isEtcdSilent is called with world.mu held.
func (w *world) isEtcdSilent() bool { return time.Now().Before(w.etcdSilent) }

// silenceEtcd makes etcd answer nobody for a while: running processes continue, and take no further step.
func (w *world) silenceEtcd(_ *operator, r *rand.Rand) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.etcdSilent = time.Now().Add(between(r, 500*time.Millisecond, 3*time.Second))
	return true
}

// rollBack puts an older state of its disk into a machine. The machine must notice this without help.
func (w *world) rollBack(o *operator, r *rand.Rand) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	var m *machine
	w.mu.Lock()
	for _, i := range r.Perm(len(w.machines)) {
		if w.machines[i].backup != nil && w.machines[i].since.isOld() {
			m = w.machines[i]
		}
	}
	w.mu.Unlock()
	if m == nil || !w.mayLose(o, m) {
		return false
	}
	w.putBack(m, r)
	return true
}

// putBack gives a machine the image of its disk. The image is kept: it may be put back again.
func (w *world) putBack(m *machine, r *rand.Rand) {
	w.mu.Lock()
	end := m.kill()
	m.insert(m.backup.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone}))
	m.cloned = false
	if sb, _, err := volume.VerifySuperblock(m.disk, superDir); err != nil {
		w.found(oracleDisk, fmt.Sprintf("%v: superblock of an image: %v", m, err))
	} else {
		m.aged = sb.Volume
	}
	w.lost[m.raftID] = w.cfg.mutation != mutateRollBack && w.cfg.mutation != mutateSteps
	w.mu.Unlock()
	w.wait.Go(end)
	w.startLater(m, between(r, 10*time.Millisecond, time.Second))
}
