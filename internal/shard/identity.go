package shard

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/volume"
)

// openVolume opens the volume, where etcd says that it may be registered. Before that nothing is written to it: an open
// raises its generation, and a copy that is refused again and again, or a volume that was set back, would come to have
// a later one than the true one.
func (s *Shard) openVolume(ctx context.Context) error {
	opts := volume.Options{
		FS: s.cfg.FS, Dir: s.cfg.Dir, Store: s.store, Shard: s.cfg.Name, Create: s.cfg.Wanted.Volume == uuid.Nil,
		Adopt: s.cfg.Wanted.Adopt, ReserveBytes: s.cfg.ReserveBytes, Logger: s.logger,
	}
	sb, err := volume.FreshSuperblock(s.cfg.FS, s.cfg.Dir)
	switch {
	case err == nil && sb.Store == s.store: // one of another store is refused by the open
		registered, err := s.id.MayRegister(ctx, sb)
		opts.Renew, opts.Registered = s.isRolledBack(err), volume.Step(registered)
		if err != nil && !opts.Renew {
			return err
		}
	case err != nil && !errors.Is(err, volume.ErrNoVolume):
		return err // an open that can read it after all would not know what is registered
	}
	if s.volume, err = volume.Open(opts); err != nil {
		return err
	}
	return s.openJournal()
}

// isRolledBack tells that the volume was set back, and is to be taken for another one; and logs it.
func (s *Shard) isRolledBack(err error) bool {
	if !s.id.Renews(err) {
		return false
	}
	s.logger.Error("the volume holds an earlier state of itself: its replicas of groups with other copies join anew, "+
		"groups of one copy are lost until the right volume is brought back", "error", err)
	return true
}

// renew takes the volume for another one, before anything on it has served: none of its replicas votes again.
func (s *Shard) renew() error {
	if err := s.volume.Renew(); err != nil {
		return err
	}
	s.mu.Lock()
	clear(s.groups)
	s.mu.Unlock()
	return s.findGroups()
}

// checkMedium warns where the device contradicts the medium that was stated.
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
