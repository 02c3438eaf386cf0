package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/disk"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// newDisk creates the shard's Disk, whose volume is not open yet. Segments are read one after another only if the
// configuration says HDD, because virtual disks often report themselves as rotational.
func (c *Config) newDisk(logger *slog.Logger) *disk.Disk {
	return disk.New(disk.Options{
		Log: group.Options{
			FS: c.FS, Residency: c.Residency, SegmentBytes: c.SegmentBytes, Retention: c.Retention, Off: c.off,
		},
		Rotational: c.Medium == HDD, MemoryLimitBytes: c.MemoryLimitBytes, Logger: logger,
	})
}

// openVolume opens the volume if etcd permits its registration. Until that is known, nothing is written to the
// volume, because opening it raises its generation. If every attempt raised the generation, a refused copy or a
// rolled-back volume would end up with a later generation than the true volume. The registration follows the opening,
// because it reports a generation that must already be on disk. It can still be refused if another process registers
// in between.
func (s *Shard) openVolume(ctx context.Context) error {
	c := &s.cfg
	opts := volume.Options{
		FS: c.FS, Dir: c.Dir, Store: s.meta.StoreUUID, Shard: c.Name, Create: c.Wanted.Volume == uuid.Nil,
		Adopt: c.Wanted.Adopt, ReserveBytes: c.ReserveBytes, Logger: s.logger,
	}
	sb, err := volume.FreshSuperblock(c.FS, c.Dir)
	switch {
	case err == nil && sb.Store == opts.Store: // Open refuses a volume of another store
		registered, err := s.id.MayRegister(ctx, sb)
		opts.Renew, opts.Registered = s.isRolledBack(err), volume.Step(registered)
		if err != nil && !opts.Renew {
			return err
		}
	case err != nil && !errors.Is(err, volume.ErrNoVolume):
		return err // Open might still read the superblock, but would not know the registered step
	}
	if err := s.volume.Open(opts); err != nil {
		return err
	}
	s.checkMedium()
	return nil
}

// isRolledBack reports whether the volume was rolled back and must therefore get a new identity. It logs a message in
// that case.
func (s *Shard) isRolledBack(err error) bool {
	if !s.id.Renews(err) {
		return false
	}
	s.logger.Error("the volume holds an earlier state of itself: its replicas of groups with other copies join again, "+
		"groups of one copy are lost until the right volume is brought back", "error", err)
	return true
}

// checkMedium warns if the device contradicts the configured medium.
func (s *Shard) checkMedium() {
	mount, err := s.volume.Mount()
	if err != nil {
		s.logger.Warn("asking what the volume is made of", "error", err)
		return
	}
	if s.cfg.Medium != Auto && mount.Rotational != nil && *mount.Rotational != (s.cfg.Medium == HDD) {
		s.logger.Warn("the device contradicts the medium that was stated", "medium", s.cfg.Medium, "source", mount.Source,
			"rotational", *mount.Rotational)
	}
}

// findGroups reads which groups have a folder on the volume. The result replaces all earlier knowledge about
// replicas.
func (s *Shard) findGroups() error {
	ids, err := s.volume.Groups()
	if err != nil {
		return err
	}
	found := make(map[uuid.UUID]replicas.State, len(ids))
	for _, id := range ids {
		found[id] = s.volume.Find(id)
		if found[id].Phase == member.DamagedTail {
			s.metrics.tails.WithLabelValues(tailFound).Inc()
		}
		if err := found[id].Err; vfs.IsShortage(err) { // the folder could not be read, so the start fails and is retried
			return fmt.Errorf("group %s: %w", id, format.MarkShortage(err))
		}
	}
	s.replicas.Replace(found)
	return nil
}

// A disk may be restored from an image that was taken while a shard ran on it. Such an image looks like the disk
// after a kill, so the image alone does not show that it is old. Therefore the shard raises the volume's step number
// every few seconds if anything has become durable, and reports the number to etcd. After a restore, etcd has a later
// step than the image, and the volume is refused. This does not protect writes that were acknowledged after the last
// step in etcd.

const (
	// stepEvery is the time between two steps of a volume with writes in progress. An image that is newer than the last
	// step may be mistaken for the volume itself.
	stepEvery = 5 * time.Second
	// stepPatience bounds one request to etcd.
	stepPatience = 5 * time.Second
)

// stepAll repeatedly raises the volume's step until ctx is done. While etcd does not respond, the shard continues to
// serve, but it takes no further step until etcd has the current one. The period during which an image may be
// mistaken for the volume becomes longer accordingly.
func (s *Shard) stepAll(ctx context.Context, known placement.Shard) {
	tick := time.NewTicker(s.cfg.stepEvery)
	defer tick.Stop()
	told := true // etcd has the current step of the volume
	for covered := uint64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if told {
			// durable is read before the step is raised, so data that becomes durable meanwhile is covered by the next step.
			durable := s.committer.Synced() + s.installer.tookOver.Load()
			if durable == covered {
				continue
			}
			next, err := s.volume.NextStep(volume.Step(known.Step))
			s.problems.Note("taking the volume to its next step", err)
			if err != nil {
				continue
			}
			known.Registered, known.Step = known.Step, placement.Step(next)
			covered = durable
		}
		patience, cancel := context.WithTimeout(ctx, stepPatience)
		err := s.cfg.Placement.NextStep(patience, known)
		cancel()
		switch told = err == nil; {
		case ctx.Err() != nil:
			return
		case errors.Is(err, placement.ErrRolledBack):
			s.yield(err)
			return
		}
		s.problems.Note(
			"reporting the step of the volume to etcd: until then, an image of its disk that is put back is not "+
				"distinguished from it", err)
	}
}
