package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// machine is a computer with one volume, on which at most one process runs. Its fields are guarded by world.mu.
type machine struct {
	world   *world
	number  int
	disk    *vfstest.Mem
	volume  uuid.UUID
	raftID  uint64   // incarnation that the operator has assigned to this machine; 0 if none
	process *process // nil if the machine is down
	joining bool     // whether a goroutine is running bringUp
	// busy holds the disks on which a process is being started, installed or stopped. As flock ensures on real machines,
	// only one of these activities may use a disk at a time.
	busy      map[*vfstest.Mem]bool
	rejoining *vfstest.Mem  // disk on which rejoin is running
	foreign   *vfstest.Mem  // disk that is known to hold another shard's volume
	epoch     int           // number of times that the process or the disk was replaced
	slow      time.Duration // maximum duration of a sync
	clock     atomic.Int64  // difference between the machine's clock and the right time, in ns
	session   *session      // nil if no shard has opened the volume
	backup    *vfstest.Mem  // an older state of the disk
	since     sinceBackup
	// rolledBack is the volume's id if the disk was replaced with an older state of itself and no process has noticed
	// this yet. Otherwise rolledBack is zero.
	rolledBack uuid.UUID
	cloned     bool             // whether the disk is a copy of a member's disk, which may be older than the original
	rots       []rot            // bad bytes on the disk
	rotted     bool             // whether segments or blobs on this disk ever had bad bytes
	hostile    *unreadableBlock // fault that the next start will encounter; nil if none
	lineage    int              // changes when the history of the copy may become incomplete, although it is held
	installed  *vfstest.Mem     // disk whose copy was installed from another one, or nil
	kept       keptWrites       // writes that the neighbours on the disk have acknowledged
}

// insert replaces the disk. The caller holds world.mu.
func (m *machine) insert(disk *vfstest.Mem) {
	m.disk, m.rots, m.rotted, m.rolledBack, m.kept = disk, nil, false, uuid.UUID{}, keptWrites{}
	m.lineage++
	m.installed = nil
}

// reserve reserves a disk for the caller. It returns false if another goroutine is using the disk. The caller holds
// world.mu.
func (m *machine) reserve(disk *vfstest.Mem) bool {
	if m.busy[disk] {
		return false
	}
	m.busy[disk] = true
	return true
}

func (m *machine) letGo(disk *vfstest.Mem) {
	m.world.mu.Lock()
	defer m.world.mu.Unlock()
	delete(m.busy, disk)
}

// process is a shard with its replica of the group.
type process struct {
	machine    *machine
	raftID     uint64
	epoch      int  // epoch of the machine when the process began
	dead       bool // a dead process may still run, but its actions have no visible effect; guarded by world.mu
	disk       *vfstest.Mem
	faulty     *vfstest.Faulty // the disk as the process sees it
	committer  *replica.Committer
	journal    *journal.Journal // nil if the volume has no journal
	log        *group.Log
	replica    *replica.Replica
	neighbours []*neighbour    // other groups on the volume
	loaded     []format.Damage // damage that Load has found
	orderly    bool            // whether the process was asked to stop, as opposed to being killed
	// writesFailed is true once a write or sync of the process has failed.
	writesFailed atomic.Bool
	keeper       *keeper      // nil if nothing keeps history in this run
	full         atomic.Int32 // number of active faults that make the disk full
	// informedAt is the arrival time of the last scheduled notice about another member's shard. It is guarded by
	// world.mu.
	informedAt time.Time
}

func (m *machine) options(disk vfs.FS) group.Options {
	residency := group.Index
	if m.world.cfg.resident && m.number%2 == 1 {
		residency = group.Resident
	}
	return group.Options{
		FS: disk, Dir: groupDir, Identity: identity, SegmentBytes: 8 << 10, Residency: residency,
		Now: m.logNow, Off: m.world.cfg.off,
	}
}

// now returns the time of the machine's clock.
func (m *machine) now() time.Time {
	skew := time.Duration(m.number) * 7 * time.Millisecond
	return time.Now().Add(skew + time.Duration(m.clock.Load()))
}

// create creates the group on the first machines.
func (w *world) create() {
	var ids []uint64
	for _, m := range w.machines[:w.cfg.copies] {
		m.raftID = w.newRaftID(m)
		ids = append(ids, m.raftID)
	}
	w.ledger.begin(&raftpb.ConfState{Voters: ids})
	for _, m := range w.machines[:w.cfg.copies] {
		err := group.Create(m.options(m.disk), w.ledger.firstConf)
		if err == nil {
			err = format.WriteReplicaFile(m.disk, groupDir, m.replicaFile(m.raftID, m.volume, false))
		}
		if err != nil {
			w.violate(oracleDisk, "create: %v", err)
			return
		}
		m.start()
	}
}

// newRaftID returns the id of a new incarnation.
func (w *world) newRaftID(m *machine) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := w.random.Uint64() | 1
	w.at[id] = m
	return id
}

func (m *machine) replicaFile(raftID uint64, volume uuid.UUID, joining bool) format.ReplicaFile {
	return format.ReplicaFile{RaftID: raftID, Volume: volume, Store: identity.Store, Group: identity.Group,
		Joining: joining}
}

// start loads the replica on the disk and runs it. It does nothing if there is no replica, or if the replica has not
// joined yet. It also does nothing if another goroutine is using the disk, because that goroutine starts the replica
// when it is done.
func (m *machine) start() {
	w := m.world
	w.mu.Lock()
	disk, volume, epoch := m.disk, m.volume, m.epoch
	if m.process != nil || w.ctx.Err() != nil || !m.reserve(disk) {
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	defer m.letGo(disk)
	file, found, err := format.ReadReplicaFile(disk, groupDir)
	switch {
	case errors.Is(err, vfs.ErrCrashed):
		return
	case err != nil:
		w.violate(oracleDisk, "%v: %v", m, err)
		return
	case !found || file.Joining:
		m.noticeAge(disk)
		return
	case file.Volume != volume && w.cfg.mutation != mutateCopy:
		w.mu.Lock()
		again := m.foreign == disk
		m.foreign = disk
		w.mu.Unlock()
		m.noticeAge(disk)
		if !again {
			w.fire("replica of another volume not run")
		}
		return
	}
	if !m.openVolume(disk) || m.isWithoutManifest(disk, file) {
		return
	}
	p := m.load(disk, file, epoch)
	if p == nil {
		return
	}
	w.mu.Lock()
	if m.epoch != epoch || m.disk != disk || m.process != nil || w.ctx.Err() != nil {
		p.dead = true
		w.mu.Unlock()
		p.halt()
		return
	}
	m.process = p
	w.mu.Unlock()
	for _, n := range p.neighbours {
		w.wait.Go(func() { p.writeNeighbour(n) })
	}
	w.informOfRestart(p.raftID)
}

// noticeAge opens the volume of a machine whose disk was rolled back to a state without the replica that should run
// there. A real shard opens its volume even if it has no replica to run, and so it notices that the disk's state is
// old.
func (m *machine) noticeAge(disk *vfstest.Mem) {
	m.world.mu.Lock()
	aged := m.rolledBack
	m.world.mu.Unlock()
	if aged != uuid.Nil {
		m.openVolume(disk)
	}
}

// load starts a process from the disk's content. It returns nil if the process cannot be started now.
func (m *machine) load(disk *vfstest.Mem, file format.ReplicaFile, epoch int) *process {
	w := m.world
	fs, ended := m.takeUnreadable(disk)
	if !m.replayJournal(fs) {
		ended()
		return nil
	}
	opts := m.options(fs)
	if w.cfg.journal > 0 {
		opts.Journal = journal.New(journal.Options{FS: fs, Dir: volumeDir, FileBytes: w.cfg.journal, Off: w.cfg.off})
	}
	log, report, err := group.Load(context.Background(), opts, nil)
	forGood := ended()
	if report.HintedBytes > 0 {
		w.fire("start from the hint of the active segment")
	}
	switch {
	case errors.Is(err, vfs.ErrCrashed):
		return nil
	case refusedToRead(err) && forGood != nil:
		w.startLater(m, time.Millisecond)
		return nil
	case errors.Is(err, group.ErrTailDamaged) && w.mayHaveRot(m) && w.cfg.mutation == mutateTail && truncateTail(disk):
		w.startLater(m, time.Millisecond)
		return nil
	case errors.Is(err, group.ErrTailDamaged) && forGood != nil && w.cfg.mutation == mutateRead &&
		forGood.truncateUnreadable():
		w.startLater(m, time.Millisecond)
		return nil
	case errors.Is(err, group.ErrTailDamaged) && w.mayHaveRot(m):
		w.trace("%v: load: %v", m, err)
		w.wait.Go(func() { m.rejoin(disk, file, epoch) })
		return nil
	case err != nil || report.Outcome == group.Damaged && !w.mayHaveRot(m):
		w.violate(oracleDisk, "%v: load: %v, %+v", m, err, report)
		return nil
	}
	for _, d := range report.Damages {
		w.noteFound(m, "at load", d.File)
	}
	p := &process{machine: m, raftID: file.RaftID, epoch: epoch, loaded: report.Damages, disk: disk, faulty: fs,
		committer: replica.NewCommitter(), journal: opts.Journal, log: log}
	fetch := p.fetchBlobs
	if w.cfg.mutation == mutateBlobs {
		fetch = nil
	}
	p.replica, err = replica.Start(replica.Options{
		Log: log, Committer: p.committer, RaftID: file.RaftID, Transport: p, Quiet: w.cfg.quiet, Lease: true, Now: m.now,
		OnSnapshot: func(_, _, from uint64) { w.wait.Go(func() { p.reinstall(from) }) },
		FetchBlobs: fetch,
		Probe:      &replica.Probe{BeforeSync: p.beforeSync, Applied: w.ledger.applier(p), Shared: true}, Off: w.cfg.off,
	})
	if err != nil {
		if !disk.Crashed() {
			w.violate(oracleDisk, "%v: start: %v", m, err)
		}
		p.halt()
		return nil
	}
	if !p.startNeighbours() {
		p.halt()
		return nil
	}
	hard, conf, _ := log.InitialState()
	last, _ := log.LastIndex()
	p.keepHistory()
	w.trace("%v starts replica %x: applied %d, last %d, hard state %v, membership %v of %d, report %+v", m, file.RaftID,
		log.AppliedIndex(), last, hard, conf, log.ConfIndex(), report)
	return p
}

// replayJournal replays a disk's journal: it writes the journal's content to the segments before anything else reads
// the segments. It returns false if this fails.
func (m *machine) replayJournal(disk vfs.FS) bool {
	w := m.world
	found, err := journal.Replay(disk, volumeDir, journal.Target{
		Apply: func(id uuid.UUID, share journal.Share) error {
			if w.cfg.mutation == mutateJournal {
				return nil
			}
			if w.cfg.mutation == mutateDoubt {
				share.Lost, share.Doubt = nil, 0
			}
			if id != identity.Group && len(share.Ranges) > 0 {
				w.fire("journal written to the segment of a neighbour")
			}
			return group.Redo(disk, dirOf(id), share)
		},
		Groups: func() ([]uuid.UUID, error) { return groupsOn(disk) },
	})
	switch {
	case errors.Is(err, vfs.ErrCrashed):
		return false
	case err != nil || len(found.Bad) > 0 && !w.mayHaveRot(m):
		w.violate(oracleDisk, "%v: journal: %v, %v", m, err, found.Bad)
		return false
	case len(found.Bad) > 0:
		w.trace("%v: journal: %v", m, found.Bad)
		w.fire("journal damaged at a start")
		w.noteFound(m, "in the journal", "journal-0")
		w.noteFound(m, "in the journal", "journal-1")
	case len(found.Ranges) > 0:
		w.fire("journal written to the segment")
	}
	return true
}

// beforeSync waits for as long as a sync of the disk should take.
func (p *process) beforeSync() {
	w := p.machine.world
	w.mu.Lock()
	d := between(w.random, 100*time.Microsecond, 3*time.Millisecond+p.machine.slow)
	w.mu.Unlock()
	time.Sleep(d)
}

// halt stops those parts of a process that still run after it was killed.
func (p *process) halt() {
	if p.keeper != nil {
		p.keeper.end()
	}
	p.committer.Close()
	if p.journal != nil {
		if _, err := p.journal.Close(); err != nil && !p.disk.Crashed() && !p.writesFailed.Load() {
			p.machine.world.violate(oracleDisk, "%v: close the journal: %v", p.machine, err)
		}
	}
	p.closeNeighbours()
	if err := p.log.Close(p.orderly); err != nil && !p.disk.Crashed() && !p.writesFailed.Load() {
		p.machine.world.violate(oracleDisk, "%v: close: %v", p.machine, err)
	}
}

// kill kills the process at once. The caller holds world.mu. The returned function stops the goroutines of the
// process. No other goroutine may use the process's disk before that function has returned.
func (m *machine) kill() (end func()) {
	p := m.process
	m.process = nil
	m.closeVolume()
	m.epoch++
	if p == nil {
		return func() {}
	}
	p.dead = true
	m.busy[p.disk] = true
	return func() {
		p.halt()
		m.letGo(p.disk)
	}
}

// cutPower kills the process and leaves the disk in the state after a power cut.
func (m *machine) cutPower(s vfstest.Survival) {
	w := m.world
	w.mu.Lock()
	end := m.kill()
	m.disk = m.disk.CrashClone(s)
	w.mu.Unlock()
	w.trace("%v loses power, survival %v", m, s)
	w.wait.Go(end)
}

// halt kills the process, and waits until its goroutines have returned.
func (m *machine) halt() {
	m.world.mu.Lock()
	end := m.kill()
	m.world.mu.Unlock()
	end()
}

// restart stops the process cleanly and starts it again.
func (m *machine) restart() {
	w := m.world
	w.mu.Lock()
	p := m.process
	w.mu.Unlock()
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, 2*time.Second)
	_ = p.replica.Stop(ctx) // Stop abandons pending writes that no majority has confirmed
	cancel()
	w.mu.Lock()
	mine := m.process == p
	end := func() {}
	if mine {
		p.orderly = true
		end = m.kill()
	}
	w.mu.Unlock()
	end()
	if mine {
		m.start()
	}
}

// bringUp starts the incarnation that the operator wants on a machine: it starts the replica if it is already there,
// and otherwise makes it join the group.
func (m *machine) bringUp(raftID uint64) {
	w := m.world
	w.mu.Lock()
	running := m.process != nil && m.process.raftID == raftID
	if m.joining || running || m.raftID != raftID || m.rejoining == m.disk {
		w.mu.Unlock()
		return
	}
	m.joining = true
	end := m.kill() // a removed incarnation may still run on this machine
	disk, volume := m.disk, m.volume
	w.mu.Unlock()
	end()
	defer func() {
		w.mu.Lock()
		m.joining = false
		w.mu.Unlock()
	}()
	file, found, err := format.ReadReplicaFile(disk, groupDir)
	if err == nil && found && file.RaftID == raftID && file.Volume == volume && !file.Joining {
		m.start()
		return
	}
	if found && err == nil && (file.RaftID != raftID || file.Volume != volume) || m.isForeign(disk) {
		m.wipe(disk) // removes data of another incarnation, or of another shard's volume
	}
	m.join(raftID)
}

// wipe removes the folder of a removed replica. A real shard would move the files to the trash.
func (m *machine) wipe(disk *vfstest.Mem) {
	w := m.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.disk == disk && !disk.Crashed() {
		m.empty()
	}
}

// join creates a new incarnation, which installs its content from another member.
func (m *machine) join(raftID uint64) {
	w := m.world
	w.mu.Lock()
	disk, volume, epoch := m.disk, m.volume, m.epoch
	due := m.raftID == raftID && m.process == nil
	w.mu.Unlock()
	if !due {
		return
	}
	file := m.replicaFile(raftID, volume, true)
	if err := format.WriteReplicaFile(disk, groupDir, file); err != nil {
		return // the disk has crashed, and join will be called again
	}
	m.install(disk, file, epoch, 0)
}

// install copies the state of another member to the disk and then starts the replica. It tries other members until
// one copy is complete.
func (m *machine) install(disk *vfstest.Mem, file format.ReplicaFile, epoch int, from uint64) {
	w := m.world
	w.mu.Lock()
	held := m.reserve(disk)
	w.mu.Unlock()
	defer func() {
		if held {
			m.letGo(disk)
		}
	}()
	for w.sleep(50 * time.Millisecond) {
		w.mu.Lock()
		current := m.epoch == epoch && m.process == nil
		held = held || current && m.reserve(disk)
		w.mu.Unlock()
		if !current {
			return
		}
		if !held {
			continue
		}
		if !m.openVolume(disk) || !m.replayJournal(disk) {
			return
		}
		source := w.copySource(m, from)
		if source == nil {
			from = 0
			continue
		}
		if err := m.copyState(disk, file, source); err != nil {
			w.trace("%v: install from %v: %v", m, source.machine, err)
			from = 0 // the next attempt may use any other member
			continue
		}
		w.fire("installed")
		m.letGo(disk)
		held = false
		m.start()
		w.snapshotTaken(file.RaftID)
		return
	}
}

// copySource chooses the process from which the state is copied. It prefers the replica with the Raft id in the
// argument from.
func (w *world) copySource(m *machine, from uint64) *process {
	all := w.processes()
	w.mu.Lock()
	defer w.mu.Unlock()
	var can []*process
	for _, p := range all {
		if p.machine == m || w.partitioned[[2]int{p.machine.number, m.number}] {
			continue
		}
		if p.raftID == from {
			return p
		}
		can = append(can, p)
	}
	if len(can) == 0 {
		return nil
	}
	return can[w.random.IntN(len(can))]
}

// copyState copies the state of another process to the disk.
func (m *machine) copyState(disk *vfstest.Mem, file format.ReplicaFile, source *process) error {
	w, ctx := m.world, m.world.ctx
	w.mu.Lock()
	kept, archive := w.promisesOf(source)
	m.lineage++
	w.mu.Unlock()
	export, err := source.log.Export(ctx)
	if err != nil {
		return err
	}
	defer export.Close()
	install, err := transfer.NewInstall(ctx, m.options(disk).ForInstall(), file, export.Manifest())
	if err != nil {
		return err
	}
	for missing := install.Missing(); len(missing) > 0; missing = install.Missing() {
		for _, f := range missing {
			w.sleep(time.Millisecond)
			if err := copyFile(export, install, f); err != nil {
				return err
			}
		}
	}
	if err := install.Finish(ctx); err != nil {
		return err
	}
	m.inherit(source, kept, archive)
	return nil
}

func copyFile(export *group.Export, install *transfer.Install, f transfer.File) error {
	from, err := export.Open(f.Name, f.Have)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := install.File(f)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	return to.Commit()
}

// reinstall stops a replica that is too far behind, and installs it again from a copy.
func (p *process) reinstall(from uint64) {
	m, w := p.machine, p.machine.world
	w.mu.Lock()
	if m.process != p {
		w.mu.Unlock()
		return // the process was replaced, because an earlier snapshot has caused a reinstall
	}
	end := m.kill()
	epoch, disk, volume := m.epoch, m.disk, m.volume
	w.fired["far behind"]++
	w.mu.Unlock()
	end()
	m.install(disk, m.replicaFile(p.raftID, volume, false), epoch, from)
}

// snapshotTaken tells the leader that a member was installed from a copy.
func (w *world) snapshotTaken(raftID uint64) {
	for _, p := range w.processes() {
		id := p.raftID
		_ = p.replica.Step(&raftpb.Message{Type: raftpb.MsgSnapStatus.Enum(), From: &raftID, To: &id})
	}
}

func (m *machine) String() string { return fmt.Sprintf("machine %d", m.number) }
