package shard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
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

// adoptMembers takes over the groups that etcd gives to another shard, which is not there, on just this volume. It
// returns the view as it is then.
func (s *Shard) adoptMembers(ctx context.Context, view placement.View) (placement.View, error) {
	if !s.cfg.Wanted.Adopt || view.Held() != "" {
		return view, nil
	}
	groups := maps.Clone(view.Groups)
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		g := groups[name]
		i := slices.IndexFunc(g.Members, func(m placement.Member) bool {
			_, alive := view.Shards[m.Shard]
			return m.VolumeUUID == s.volume.Superblock().Volume && m.Shard != s.cfg.Name && !alive
		})
		if i < 0 {
			continue
		}
		from := g.Members[i].Shard
		g.Members = slices.Clone(g.Members)
		g.Members[i].Shard = s.cfg.Name
		if g.Leader == from {
			g.Leader = s.cfg.Name
		}
		g, err := s.cfg.Placement.PutGroup(ctx, g)
		if err != nil {
			return view, fmt.Errorf("adopting group %s from shard %s: %w", name, from, err)
		}
		groups[name] = g
		s.logger.Warn("group is adopted", "group", name, "from", from)
	}
	view.Groups = groups
	return view, nil
}
