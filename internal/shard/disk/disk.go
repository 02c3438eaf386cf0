// Package disk opens a shard's volume, and owns the components that the shard's groups share: the journal, the memory
// budget, and the options of their logs. It also reads and writes the replica files, which identify the replicas on
// the volume.
package disk

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// keepBytes bounds the memory that is kept for reuse. It is enough for one segment of the usual size. Because kept
// memory is not charged to any budget, none is kept if a memory limit is configured.
const keepBytes = 272 << 20

// Options configure a Disk.
type Options struct {
	Log        group.Options // options that all logs share: FS, Residency, SegmentBytes, Retention, Off
	Rotational bool          // segments are read one after another
	// MemoryLimitBytes bounds the indexes and images of all groups together. 0 means no limit.
	MemoryLimitBytes int64
	Logger           *slog.Logger
}

// Disk is the volume of a shard with its journal, and the parts that the logs on it share: the memory budget and the
// reader of segments. It is safe for concurrent use once it is open.
type Disk struct {
	*volume.Volume // nil until Open
	Options
	Store   uuid.UUID
	Journal *journal.Journal // nil until Open
	Left    JournalLeft      // set by Open

	budget budget
	loader *segio.Loader
}

// New creates a Disk whose volume is not open yet. In Resident residency, the Disk keeps memory for one segment, into
// which compaction writes.
func New(opts Options) *Disk {
	limit := opts.MemoryLimitBytes
	// In a container, the page cache counts against the container's limit, from which the memory limit is derived. The
	// reader therefore assumes that half of that limit is available for the page cache.
	reading := segio.LoaderOptions{Rotational: opts.Rotational, CacheBytes: limit / 2}
	if opts.Log.Residency == group.Resident && limit == 0 {
		reading.KeepBytes = keepBytes
	}
	return &Disk{Options: opts, budget: budget{limit: limit}, loader: segio.NewLoader(reading)}
}

// Open opens the volume and its journal.
func (v *Disk) Open(opts volume.Options) (err error) {
	v.Store = opts.Store
	if v.Volume, err = volume.Open(opts); err != nil {
		return err
	}
	return v.openJournal()
}

// Close closes the volume if it is open. It removes the volume's journal if everything in the journal is also in the
// groups' segments. The groups must be closed first.
func (v *Disk) Close() (err error) {
	if v.Volume == nil {
		return nil
	}
	v.loader.Close()
	if v.Journal != nil {
		var clean bool
		// If the journal still has content that a segment lacks, the next start writes this content to the segments.
		if clean, err = v.Journal.Close(); err == nil && clean {
			err = v.SetJournal(false)
		}
	}
	return errors.Join(err, v.Volume.Close())
}

// RaftIDOf returns the Raft id of the replica in a group's folder. It comes from the replica file or, if there is no
// such file, it is the id of the group's only voter. If plan already contains the replica file, RaftIDOf does not
// read the file again.
func (v *Disk) RaftIDOf(id uuid.UUID, log *group.Log, plan *group.Plan) (uint64, error) {
	var f format.ReplicaFile
	var found bool
	var err error
	if plan != nil && plan.Replica != nil {
		f, found = *plan.Replica, plan.Replica.RaftID != 0
	} else {
		f, found, err = format.ReadReplicaFile(v.Log.FS, v.GroupDir(id))
	}
	switch {
	case err != nil:
		return 0, err
	case found:
		return f.RaftID, v.checkReplicaFile(id, f)
	}
	_, conf, err := log.InitialState()
	if err != nil {
		return 0, err
	}
	if len(conf.GetVoters()) != 1 || len(conf.GetVotersOutgoing()) > 0 {
		return 0, fmt.Errorf(
			"the group's voters are %x, and no replica file says which of them this is: the folder is not whole",
			conf.GetVoters())
	}
	return conf.GetVoters()[0], nil
}

// checkReplicaFile returns the reason why the replica in a replica file must not run on this volume, or nil if it may
// run.
func (v *Disk) checkReplicaFile(id uuid.UUID, f format.ReplicaFile) error {
	here := v.Superblock().Volume
	switch {
	case f.Store != v.Store || f.Group != id:
		return fmt.Errorf("the replica file is of group %s of store %s", f.Group, f.Store)
	case f.Volume != here:
		return fmt.Errorf("the replica was made on volume %s, this is volume %s: a copy never runs", f.Volume, here)
	}
	return nil
}

// ReplicaFile returns the replica file for a new replica on this volume.
func (v *Disk) ReplicaFile(id uuid.UUID, raftID uint64) format.ReplicaFile {
	return format.ReplicaFile{RaftID: raftID, Volume: v.Superblock().Volume, Store: v.Store, Group: id}
}

// WriteReplicaFile records which replica is in a group's folder.
func (v *Disk) WriteReplicaFile(id uuid.UUID, raftID uint64) error {
	return format.WriteReplicaFile(v.Log.FS, v.GroupDir(id), v.ReplicaFile(id, raftID))
}

// AdmitWrite is called before each write. It returns an error if the volume or the memory has no space for the write.
func (v *Disk) AdmitWrite(bytes int64, deletes bool) error {
	if err := v.Admit(bytes, deletes); err != nil || deletes {
		return err
	}
	return v.budget.admit(writeMemory(v.Log.Residency, bytes))
}

// LogOptions returns the options of a group's log.
func (v *Disk) LogOptions(id uuid.UUID, name string) group.Options {
	opts := v.Log
	opts.Dir = v.GroupDir(id)
	opts.Identity = format.Identity{Store: v.Store, Group: id, Name: name}
	opts.Budget, opts.Spare, opts.Loader, opts.Journal = &v.budget, v.Spare, v.loader, v.Journal
	opts.Logger = v.Logger.With("group", name)
	return opts
}

// MemoryUsed returns how many bytes the indexes and images of all groups take.
func (v *Disk) MemoryUsed() int64 { return v.budget.used.Load() }

// budget bounds the memory of all groups on a shard. It implements group.Budget.
type budget struct {
	limit int64 // in bytes; 0 means no limit
	used  atomic.Int64
}

var _ group.Budget = (*budget)(nil)

// Take implements group.Budget.
func (b *budget) Take(n int64) error {
	used := b.used.Add(n)
	if n <= 0 || b.limit == 0 || used <= b.limit {
		return nil
	}
	b.used.Add(-n)
	return fmt.Errorf("%w: %d bytes more than the %d in use, limit %d", group.ErrMemory, n, used-n, b.limit)
}

// admit returns an error for a write that needs n bytes if fewer are left.
func (b *budget) admit(n int64) error {
	if used := b.used.Load(); b.limit > 0 && used+n > b.limit {
		return fmt.Errorf("%w: a write of %d bytes on top of the %d in use, limit %d", group.ErrMemory, n, used, b.limit)
	}
	return nil
}

// indexBytesPerRecord is the largest cost of a new record in the index while its table grows.
const indexBytesPerRecord = 34

// writeMemory returns the memory that a write needs if it stores the given number of bytes.
func writeMemory(residency group.Residency, bytes int64) int64 {
	if residency == group.Resident {
		return bytes + indexBytesPerRecord
	}
	return indexBytesPerRecord
}
