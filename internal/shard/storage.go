package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/shard/host"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/journal"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// keepBytes is enough for one segment of the usual size. Kept memory is not counted in any budget, so none is kept if
// there is a limit.
const keepBytes = 272 << 20

// storage is the volume of a shard with its journal, and what the logs on it share: the memory budget and the reading
// of segments. Safe for concurrent use once it is open.
type storage struct {
	*volume.Volume // nil until it is open
	store          uuid.UUID
	journal        *journal.Journal // nil until it is open
	left           journalLeft      // set before any caller can ask
	budget         budget
	loader         *segio.Loader

	cfg    *Config
	id     *host.Identity
	sealed func(group string) // called when a group has filled a segment
	logger *slog.Logger
}

// newStorage makes the storage before the volume is open. Segments are read one after another only if the configuration
// says HDD, because virtual disks often report themselves as rotational. In Resident residency the memory of one
// segment is kept for the output of compaction.
func newStorage(s *Shard) *storage {
	limit := s.cfg.MemoryLimitBytes
	// The page cache of a container counts against the container's limit, from which the memory limit is derived.
	reading := segio.LoaderOptions{Rotational: s.cfg.Medium == HDD, CacheBytes: limit / 2}
	if s.cfg.Residency == group.Resident && limit == 0 {
		reading.KeepBytes = keepBytes
	}
	return &storage{
		budget: budget{limit: limit}, loader: segio.NewLoader(reading), cfg: &s.cfg, id: &s.id,
		sealed: func(group string) { s.compactor.noteSealed(group) }, logger: s.logger,
	}
}

// open opens the volume of a store, if etcd says that it may be registered. Nothing is written to the volume before
// that. An open raises the volume's generation. A copy that is refused again and again, or a rolled-back volume, would
// otherwise get a later generation than the true volume. The registration comes after the open, because it reports a
// generation that must be on disk. It can still be refused, if another process registers between the two.
func (v *storage) open(ctx context.Context, store uuid.UUID) error {
	v.store = store
	opts := volume.Options{
		FS: v.cfg.FS, Dir: v.cfg.Dir, Store: v.store, Shard: v.cfg.Name, Create: v.cfg.Wanted.Volume == uuid.Nil,
		Adopt: v.cfg.Wanted.Adopt, ReserveBytes: v.cfg.ReserveBytes, Logger: v.logger,
	}
	sb, err := volume.FreshSuperblock(v.cfg.FS, v.cfg.Dir)
	switch {
	case err == nil && sb.Store == v.store: // the open refuses a volume of another store
		registered, err := v.id.MayRegister(ctx, sb)
		opts.Renew, opts.Registered = v.isRolledBack(err), volume.Step(registered)
		if err != nil && !opts.Renew {
			return err
		}
	case err != nil && !errors.Is(err, volume.ErrNoVolume):
		return err // if the open could read it after all, it would not know what is registered
	}
	if v.Volume, err = volume.Open(opts); err != nil {
		return err
	}
	if err := v.openJournal(); err != nil {
		return err
	}
	v.checkMedium()
	return nil
}

// Close closes the volume if it is open, and removes its journal if all groups have the journal's content. The groups
// must be closed before.
func (v *storage) Close() (err error) {
	if v.Volume == nil {
		return nil
	}
	v.loader.Close()
	if v.journal != nil {
		var clean bool
		if clean, err = v.journal.Close(); err == nil && clean { // otherwise the next start writes it to the segments
			err = v.SetJournal(false)
		}
	}
	return errors.Join(err, v.Volume.Close())
}

// isRolledBack reports whether the volume was rolled back and should become a different volume; if so, it logs that.
func (v *storage) isRolledBack(err error) bool {
	if !v.id.Renews(err) {
		return false
	}
	v.logger.Error("the volume holds an earlier state of itself: its replicas of groups with other copies join again, "+
		"groups of one copy are lost until the right volume is brought back", "error", err)
	return true
}

// checkMedium warns if the device contradicts the configured medium.
func (v *storage) checkMedium() {
	mount, err := v.Mount()
	if err != nil {
		v.logger.Warn("asking what the volume is made of", "error", err)
		return
	}
	if v.cfg.Medium != Auto && mount.Rotational != nil && *mount.Rotational != (v.cfg.Medium == HDD) {
		v.logger.Warn("the device contradicts the medium that was stated", "medium", v.cfg.Medium, "source", mount.Source,
			"rotational", *mount.Rotational)
	}
}

// raftIDOf returns the Raft id of the incarnation in a folder: the id in its replica file, or without that file the id
// of the sole voter.
func (v *storage) raftIDOf(id uuid.UUID, log *group.Log) (uint64, error) {
	f, found, err := format.ReadReplicaFile(v.cfg.FS, v.GroupDir(id))
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

// checkReplicaFile returns why a replica must not run here, or nil if the replica may run.
func (v *storage) checkReplicaFile(id uuid.UUID, f format.ReplicaFile) error {
	here := v.Superblock().Volume
	switch {
	case f.Store != v.store || f.Group != id:
		return fmt.Errorf("the replica file is of group %s of store %s", f.Group, f.Store)
	case f.Volume != here:
		return fmt.Errorf("the replica was made on volume %s, this is volume %s: a copy never runs", f.Volume, here)
	}
	return nil
}

func (v *storage) replicaFile(id uuid.UUID, raftID uint64) format.ReplicaFile {
	return format.ReplicaFile{RaftID: raftID, Volume: v.Superblock().Volume, Store: v.store, Group: id}
}

// writeReplicaFile records which replica is in the folder of a group.
func (v *storage) writeReplicaFile(id uuid.UUID, raftID uint64) error {
	return format.WriteReplicaFile(v.cfg.FS, v.GroupDir(id), v.replicaFile(id, raftID))
}

// admitWrite is called before each write.
func (v *storage) admitWrite(bytes int64, deletes bool) error {
	if err := v.Admit(bytes, deletes); err != nil || deletes {
		return err
	}
	return v.budget.admit(writeMemory(v.cfg.Residency, bytes))
}

func (v *storage) logOptions(id uuid.UUID, name string) group.Options {
	return group.Options{
		FS:           v.cfg.FS,
		Dir:          v.GroupDir(id),
		Identity:     format.Identity{Store: v.store, Group: id, Name: name},
		Residency:    v.cfg.Residency,
		SegmentBytes: v.cfg.SegmentBytes,
		Retention:    v.cfg.Retention,
		Budget:       &v.budget,
		Spare:        v.Spare,
		Loader:       v.loader,
		Journal:      v.journal,
		Sealed:       func() { v.sealed(name) },
		Logger:       v.logger.With("group", name),
		Off:          v.cfg.off,
	}
}
