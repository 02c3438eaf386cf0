package shard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"syscall"

	"github.com/google/uuid"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/vfs"
	"sheaf.dev/sheaf/internal/volume"
)

// Wanted is what is asked of a volume before it is touched. A zero field asks nothing.
type Wanted struct {
	FileSystem   string   // its type, as Mount.FileSystem
	MountOptions []string // that must be in force
	Store        uuid.UUID
	// Volume is the one that was here before: a blank or another one is then never initialised and never served.
	Volume uuid.UUID
	// Adopt takes over a volume of the store that is of another shard, and its groups where that shard is not registered.
	Adopt bool
}

// heldError says why a volume is not served, and which state that is.
type heldError struct {
	state recordv1.ShardState
	err   error
}

func (e *heldError) Error() string { return e.err.Error() }
func (e *heldError) Unwrap() error { return e.err }

func hold(state recordv1.ShardState, format string, args ...any) *heldError {
	return &heldError{state: state, err: fmt.Errorf(format, args...)}
}

// inspected is what was seen of a folder without writing to it.
type inspected struct {
	superblock volume.Superblock // zero: blank
	mount      volume.Mount
}

// inspect looks at the folder of a volume, and says why it must not be served. Nothing is written.
func inspect(cfg *Config) (seen inspected, held *heldError) {
	w := cfg.Wanted
	mount, err := volume.MountOf(cfg.FS, cfg.Dir)
	if err != nil {
		return seen, classify(expecting(w.Volume, err))
	}
	seen.mount = mount
	if err := mount.Check(w.FileSystem, w.MountOptions); err != nil {
		return seen, hold(recordv1.ShardState_SHARD_STATE_FILE_SYSTEM_MISMATCH, "volume %s: %w", cfg.Dir, err)
	}
	blank, err := volume.Blank(cfg.FS, cfg.Dir)
	switch {
	case err != nil:
		return seen, classify(expecting(w.Volume, err))
	case blank && w.Volume != uuid.Nil:
		return seen, hold(recordv1.ShardState_SHARD_STATE_DISK_LOST, "volume %s is blank, expected is volume %s: bring the disk back, or "+
			"give it up: then the shard may make a new volume", cfg.Dir, w.Volume)
	case blank:
		return seen, nil
	}
	sb, err := volume.FreshSuperblock(cfg.FS, cfg.Dir)
	if err != nil {
		return seen, classify(expecting(w.Volume, err))
	}
	seen.superblock = sb
	return seen, admitVolume(cfg, sb)
}

// expecting names the volume that should have been there.
func expecting(id uuid.UUID, err error) error {
	if id == uuid.Nil {
		return err
	}
	return fmt.Errorf("%w (expected is volume %s)", err, id)
}

// admitVolume refuses a volume that is not the one that is asked for.
func admitVolume(cfg *Config, sb volume.Superblock) *heldError {
	w := cfg.Wanted
	const foreign = recordv1.ShardState_SHARD_STATE_FOREIGN
	switch {
	case w.Store != uuid.Nil && sb.Store != w.Store:
		return hold(foreign, "volume %s: %w: it is volume %s of shard %q of store %s, wanted is store %s: give the shard its own disk",
			cfg.Dir, volume.ErrForeign, sb.Volume, sb.Shard, sb.Store, w.Store)
	case w.Volume != uuid.Nil && sb.Volume != w.Volume:
		return hold(foreign, "volume %s: it is volume %s of shard %q, expected is volume %s: are two disks swapped?",
			cfg.Dir, sb.Volume, sb.Shard, w.Volume)
	case sb.Shard != cfg.Name && !w.Adopt:
		return hold(foreign, "volume %s: %w: it is of shard %q (volume %s), this is shard %q: are two disks swapped? To take it over, "+
			"adopt it", cfg.Dir, volume.ErrOtherShard, sb.Shard, sb.Volume, cfg.Name)
	}
	return nil
}

// classify finds the state for an error of looking at a volume or opening it.
func classify(err error) *heldError {
	var held *heldError
	if errors.As(err, &held) {
		return held
	}
	state := recordv1.ShardState_SHARD_STATE_PENDING
	for _, c := range []struct {
		is    error
		state recordv1.ShardState
	}{
		{volume.ErrMount, recordv1.ShardState_SHARD_STATE_FILE_SYSTEM_MISMATCH},
		{volume.ErrForeign, recordv1.ShardState_SHARD_STATE_FOREIGN},
		{volume.ErrOtherShard, recordv1.ShardState_SHARD_STATE_FOREIGN},
		{volume.ErrNotEmpty, recordv1.ShardState_SHARD_STATE_FOREIGN},
		{volume.ErrFormatVersion, recordv1.ShardState_SHARD_STATE_FOREIGN},
		{placement.ErrNameTaken, recordv1.ShardState_SHARD_STATE_FOREIGN},
		{placement.ErrRolledBack, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{volume.ErrDamaged, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{syscall.EIO, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{syscall.ENODEV, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{syscall.ENXIO, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{syscall.EUCLEAN, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{syscall.EBADMSG, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{syscall.ESTALE, recordv1.ShardState_SHARD_STATE_DISK_LOST},
	} {
		if errors.Is(err, c.is) {
			state = c.state
			break
		}
	}
	return &heldError{state: state, err: err}
}

// openVolume opens the volume, where etcd says that it may be registered. Before that nothing is written to it: an open raises its
// generation, and a copy that is refused again and again, or a volume that was set back, would come to have a later one than the true one.
func (s *Shard) openVolume(ctx context.Context) error {
	opts := volume.Options{
		FS: s.cfg.FS, Dir: s.cfg.Dir, Store: s.store, Shard: s.cfg.Name, Create: s.cfg.Wanted.Volume == uuid.Nil,
		Adopt: s.cfg.Wanted.Adopt, ReserveBytes: s.cfg.ReserveBytes, Logger: s.logger,
	}
	sb, err := volume.FreshSuperblock(s.cfg.FS, s.cfg.Dir)
	switch {
	case err == nil && sb.Store == s.store: // one of another store is refused by the open
		registered, err := mayRegister(ctx, &s.cfg, s.address, sb)
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

// mayRegister asks etcd whether a volume may be registered once it is opened, and which step of it is registered now.
// The folder's lock is looked at first: a second process on it is no copy.
func mayRegister(ctx context.Context, cfg *Config, address string, sb volume.Superblock) (registered placement.Step, err error) {
	if err := volume.InUse(cfg.FS, cfg.Dir); err != nil {
		return placement.Step{}, err
	}
	sb.Generation++
	return cfg.Placement.MayRegister(ctx, shardOn(cfg, address, sb))
}

// shardOn is a shard as etcd is told of it, on a volume as it is.
func shardOn(cfg *Config, address string, sb volume.Superblock) placement.Shard {
	return placement.Shard{
		Name: cfg.Name, Address: address, VolumeUUID: sb.Volume, Generation: sb.Generation, Step: placement.Step(sb.Step),
		Registered: placement.Step(sb.Registered), Domain: cfg.Domain, Node: cfg.Node, Zone: cfg.Zone,
	}
}

// isRenewed tells that a volume was set back, and is to be taken for another one.
func isRenewed(cfg *Config, err error) bool {
	return errors.Is(err, placement.ErrRolledBack) && cfg.Wanted.Volume == uuid.Nil
}

// isRolledBack is isRenewed, and says so.
func (s *Shard) isRolledBack(err error) bool {
	if !isRenewed(&s.cfg, err) {
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

// stillSame says why a volume in use is not what it was when it was opened; nil: it is.
func stillSame(fsys vfs.FS, dir string, opened volume.Superblock) error {
	now, err := volume.FreshSuperblock(fsys, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, volume.ErrNoVolume):
		return fmt.Errorf("volume %s (%s) is gone from under the shard: %w", dir, opened.Volume, err)
	case err != nil:
		return fmt.Errorf("volume %s (%s) cannot be read any more: %w", dir, opened.Volume, err)
	case now.Store != opened.Store || now.Volume != opened.Volume || now.Generation != opened.Generation:
		return fmt.Errorf("volume %s was %s of store %s, generation %d, and is now %s of store %s, generation %d", dir, opened.Volume,
			opened.Store, opened.Generation, now.Volume, now.Store, now.Generation)
	}
	return nil
}

// adoptMembers takes over the groups that etcd gives to another shard, which is not there, on just this volume. It returns
// the view as it is then.
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
