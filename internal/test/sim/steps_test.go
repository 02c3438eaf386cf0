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

// Each disk has a superblock, and etcd has a registry of volumes. Both work as in a real store, with the same code
// and the same rule. So a disk may be replaced with an earlier image of itself at any moment. The only exception is
// the first few seconds after the image was taken, in which the image cannot be distinguished from the disk (see
// docs/operations/troubleshooting.md).

const (
	superDir = "/s" // folder of the superblock
	// While a volume is being written, it makes a step once in stepTime. stepBound is the maximum time that may pass
	// after a write until etcd knows a step that is newer than the write.
	stepTime  = time.Second
	stepBound = stepTime + 5*stepLook
	stepLook  = 100 * time.Millisecond
)

// session is a volume that a shard has opened and registered.
type session struct {
	disk    *vfstest.Mem
	volume  *volume.Volume
	shard   placement.Shard
	told    bool   // whether etcd has the current step
	covered uint64 // number of the committer's rounds that were durable when that step was made
	last    time.Time
}

// sinceBackup records the events on a machine since the image of its disk was taken. It is guarded by world.mu.
type sinceBackup struct {
	restarted bool          // whether the volume was opened again
	durable   uint64        // number of durable rounds when the image was taken
	covered   time.Duration // how long etcd has responded, without interruption, since the first write after the image
	written   bool
}

// isOld reports whether enough has happened since the image was taken that the machine must recognize the image as
// old. The caller holds world.mu.
func (s sinceBackup) isOld() bool { return s.restarted || s.covered >= stepBound }

// backUpNow takes an image of a machine's disk. The caller holds world.mu.
func (m *machine) backUpNow() {
	m.backup = m.disk.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
	m.since = sinceBackup{durable: m.durableRounds()}
}

// durableRounds returns how many rounds of the committer have become durable since the process began. The caller holds
// world.mu.
func (m *machine) durableRounds() uint64 {
	if m.process == nil {
		return 0
	}
	return m.process.committer.Synced()
}

func (m *machine) shardName() string { return fmt.Sprint("shard-", m.number) }

// isForeign reports whether a disk has another shard's volume.
func (m *machine) isForeign(disk *vfstest.Mem) bool {
	sb, _, err := volume.VerifySuperblock(disk, superDir)
	return err == nil && sb.Shard != m.shardName() && m.world.cfg.mutation != mutateCopy
}

// openVolume opens and registers a volume, as a shard does before it reads the content of the volume. It returns false
// if the volume must not be used, or cannot be used now. The caller has reserved the disk.
func (m *machine) openVolume(disk *vfstest.Mem) bool {
	w := m.world
	name := m.shardName()
	w.mu.Lock()
	open, silent, aged := m.session != nil && m.session.disk == disk, w.isEtcdSilent(), m.rolledBack
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
		// The volume belongs to another shard. No replica on it may run, and its content is wiped if the space is needed.
		// With mutateCopy, the volume is used nevertheless.
		return w.cfg.mutation == mutateCopy
	case err == nil && aged != uuid.Nil && sb.Volume != aged:
		w.mu.Lock()
		defer w.mu.Unlock()
		// An earlier start noticed the rollback, durably gave the volume a new id, and was killed. The replicas on the disk
		// belong to a volume that no longer exists.
		if m.disk == disk {
			m.onRefused()
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
			m.onRefused()
		}
		_ = v.Close()
		return false
	}
	if m.rolledBack != uuid.Nil && w.cfg.mutation == mutateNothing {
		w.recordViolation(oracleDisk, fmt.Sprintf("%v: its volume was set back, and is taken: %+v", m, sb))
	}
	m.rolledBack = uuid.UUID{}
	w.volumes[s.shard.VolumeUUID] = s.shard.Record()
	m.session, m.since.restarted = s, true
	return true
}

// onRefused is called when the registry has refused a machine's volume because it is an old state. It gives the machine
// a new identity, as a shard does in this case. The caller holds world.mu.
func (m *machine) onRefused() {
	w := m.world
	// Only two kinds of disks may be refused: those that were rolled back, and cloned ones. After a second swap, a
	// cloned disk may be an old state of the machine's own disk.
	if m.rolledBack == uuid.Nil && !m.cloned {
		w.recordViolation(oracleDisk, fmt.Sprintf("%v: its volume is refused, and was never set back", m))
	}
	w.fired["volume set back, and noticed"]++
	w.lost[m.raftID] = true
	m.takeNewIdentity()
	m.raftID, m.backup, m.rolledBack, m.cloned = 0, nil, uuid.UUID{}, false
	m.epoch++
}

func shardOn(name string, sb volume.Superblock) placement.Shard {
	return placement.Shard{
		Name: name, VolumeUUID: sb.Volume, Generation: sb.Generation, Step: placement.Step(sb.Step),
		Registered: placement.Step(sb.Registered),
	}
}

// mayRegister asks the registry in etcd whether a shard may register. It also returns the step that the registry
// holds.
func (w *world) mayRegister(s placement.Shard) (placement.Step, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen, there := w.volumes[s.VolumeUUID]
	if !there || w.cfg.mutation == mutateRollBack {
		return seen.Step, nil
	}
	if w.cfg.mutation == mutateSteps {
		seen.Step = placement.Step{} // without steps, only the generations are compared
	}
	return seen.Step, placement.MayFollow(seen, s)
}

// closeVolume releases a volume. The caller holds world.mu.
func (m *machine) closeVolume() {
	if m.session != nil {
		_ = m.session.volume.Close()
		m.session = nil
	}
}

// empty removes everything of the group from the disk. The caller holds world.mu.
func (m *machine) empty() {
	aged := m.rolledBack
	m.insert(m.withoutGroup())
	m.rolledBack = aged
}

// withoutGroup returns the disk without the content of the group, as if that content had been moved to the trash. The
// volume stays the same. If the disk belongs to another shard, withoutGroup returns a blank disk, as if the disk had
// been replaced by hand.
func (m *machine) withoutGroup() *vfstest.Mem {
	disk := vfstest.NewMem()
	sb, _, err := volume.VerifySuperblock(m.disk, superDir)
	if err == nil && sb.Shard == m.shardName() {
		err = copySuperblock(m.disk, disk)
	}
	if err != nil || sb.Shard != m.shardName() {
		m.backup = nil // the new disk is a different volume, so the backup has become useless
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

// runVolumeSteps makes the volume of each machine take its next step when that step is due.
func (w *world) runVolumeSteps() {
	for w.sleep(stepLook) {
		for _, m := range w.machines {
			w.step(m)
		}
	}
}

func (w *world) step(m *machine) {
	w.mu.Lock()
	s, silent, durable := m.session, w.isEtcdSilent(), m.durableRounds()
	runs := s != nil && m.process != nil && m.process.disk == s.disk
	if runs && m.backup != nil {
		m.since.measure(durable, silent)
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
		w.recordViolation(oracleDisk, fmt.Sprintf("%v: its next step is refused: %v", m, err))
	}
	w.volumes[s.shard.VolumeUUID] = s.shard.Record()
	s.told, s.last = true, time.Now()
	w.fired["step of a volume"]++
}

// measure is called at regular intervals while a machine runs. It measures how long etcd has been responding without
// interruption. The time before the first write after the backup does not count.
func (s *sinceBackup) measure(durable uint64, silent bool) {
	s.written = s.written || durable != s.durable
	switch {
	case silent:
		s.covered = 0
	case s.written:
		s.covered += stepLook
	}
}

// isEtcdSilent reports whether etcd does not respond now. The caller holds world.mu.
func (w *world) isEtcdSilent() bool { return time.Now().Before(w.etcdSilent) }

// silenceEtcd stops etcd's responses for a while. Running processes continue, but their volumes make no further
// steps.
func (w *world) silenceEtcd(_ *operator, r *rand.Rand) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.etcdSilent = time.Now().Add(between(r, 500*time.Millisecond, 3*time.Second))
	return true
}

// rollBack replaces a machine's disk with an older state of itself. The machine must notice this on its own.
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

// putBack replaces a machine's disk with the image that was taken of it earlier. The image is kept, so that it can be
// used again.
func (w *world) putBack(m *machine, r *rand.Rand) {
	w.mu.Lock()
	end := m.kill()
	m.insert(m.backup.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone}))
	m.cloned = false
	if sb, _, err := volume.VerifySuperblock(m.disk, superDir); err != nil {
		w.recordViolation(oracleDisk, fmt.Sprintf("%v: superblock of an image: %v", m, err))
	} else {
		m.rolledBack = sb.Volume
	}
	w.lost[m.raftID] = w.cfg.mutation != mutateRollBack && w.cfg.mutation != mutateSteps
	w.mu.Unlock()
	w.wait.Go(end)
	w.startLater(m, between(r, 10*time.Millisecond, time.Second))
}
