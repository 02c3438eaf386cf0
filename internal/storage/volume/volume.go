// Package volume is one file system that a shard owns: its superblock (identity, generation), its lock, its room and
// what the kernel says about it.
package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Why a volume cannot be opened or written. Test with errors.Is; the messages name the folder and say what to do.
var (
	ErrLocked        = errors.New("volume is locked by another process")
	ErrNoVolume      = errors.New("no volume here")
	ErrNotEmpty      = errors.New("folder is not empty and holds no volume")
	ErrForeign       = errors.New("volume belongs to another store")
	ErrOtherShard    = errors.New("volume belongs to another shard")
	ErrFormatVersion = errors.New("volume has a newer format than this program")
	ErrDamaged       = errors.New("superblock is damaged")
	ErrFull          = errors.New("volume is full")
	ErrRoom          = errors.New("the file system does not tell how much room it has")
	ErrClosed        = errors.New("volume is closed")
	ErrChanged       = errors.New("the device does not hold what was written to it")
)

// Names in the folder of a volume.
const (
	lockName           = "lock"
	superblockName     = "superblock"
	superblockTempName = "superblock.tmp"
	groupsName         = "groups"
	trashName          = "trash"
	lostFoundName      = "lost+found" // made by mkfs.ext4 in every new file system
)

// ShardNameBytesMax is the longest name of a shard that a superblock holds.
const ShardNameBytesMax = 253

// Superblock identifies a volume. Two copies in one file, each with a CRC; replaced atomically.
type Superblock struct {
	Store      uuid.UUID
	Volume     uuid.UUID
	Generation uint64 // raised, durably, at every Open; 1 at the first
	Created    int64  // Unix ns
	Shard      string // name of the shard that owns it, 1 to ShardNameBytesMax bytes
	Journal    bool   // there is a journal, which may hold what stands nowhere else yet
	// Step tells this state of the volume from all earlier ones: another one at every Open, and now and then while the
	// volume is written to (Volume.NextStep). Zero: no program that knows steps has opened it.
	Step Step
	// Registered is the last step of which the volume knows that etcd held it. Zero: of none.
	Registered Step
}

// Step is one of the states that a volume was in, one after the other.
type Step struct {
	Number uint64 // 1 at the first, raised by one
	// Nonce is random: two copies of one volume that go on, each by itself, have other ones under one number.
	Nonce uuid.UUID
}

// next is the step behind this one.
func (s Step) next() Step { return Step{Number: s.Number + 1, Nonce: uuid.New()} }

// Options of Open.
type Options struct {
	FS     vfs.FS
	Dir    string
	Store  uuid.UUID // must match an existing superblock; zero: take what is there. Needed to create one
	Shard  string    // must match too; empty: take what is there. Needed to create one
	Create bool      // make a superblock where the folder is absent or empty (but for lost+found)
	Adopt  bool      // where the volume is of another shard of the store, make it this one's
	// Renew gives an existing volume another UUID, as Volume.Renew does, in the one write in which its generation would
	// be raised.
	Renew bool
	// Registered is the step that etcd holds of the volume; zero: etcd holds none.
	Registered Step
	// ReserveBytes kept free for compaction, deletes and consensus; 0: the smaller of 5 % and 1 GiB, at least 16 MiB.
	ReserveBytes int64
	Logger       *slog.Logger // nil: discards
}

// Volume is an open, locked volume. Layout of its folder: superblock, lock, groups/<group uuid>/..., trash/.
// Safe for concurrent use.
type Volume struct {
	fs           vfs.FS
	dir          string
	superblock   Superblock // as of this start
	reserveBytes int64      // of Options; 0: by the size of the file system
	logger       *slog.Logger
	now          func() time.Time

	writing longlock.Mutex // of the superblock; guards what follows
	written Superblock     // on disk
	tried   Superblock     // what was to be written last; on disk, perhaps, where that failed

	mu   longlock.Mutex // guards what follows
	lock io.Closer      // nil: closed
	room room
}

// Open locks the volume and raises its generation. Errors say what is there and what to do: locked by another
// process; a foreign store; another shard's; not empty and no superblock; a newer format.
func Open(opts Options) (*Volume, error) {
	if err := validate(opts); err != nil {
		return nil, err
	}
	v := &Volume{
		fs: opts.FS, dir: opts.Dir, reserveBytes: opts.ReserveBytes, logger: opts.Logger, now: time.Now,
	}
	if v.logger == nil {
		v.logger = slog.New(slog.DiscardHandler)
	}
	// Looked at before the lock too: the lock file must not appear in a folder that is not ours.
	if _, err := v.exists(opts.Create); err != nil {
		return nil, err
	}
	lock, err := takeLock(opts.FS, opts.Dir)
	if err != nil {
		return nil, err
	}
	if err := v.start(opts); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	v.lock = lock
	return v, nil
}

// validate refuses options that cannot work.
func validate(opts Options) error {
	switch {
	case opts.FS == nil:
		return errors.New("open volume: no file system given")
	case opts.Dir == "":
		return errors.New("open volume: no folder given")
	case len(opts.Shard) > ShardNameBytesMax:
		return fmt.Errorf("open volume %s: the shard's name has %d bytes: at most %d are possible, use a shorter one",
			opts.Dir, len(opts.Shard), ShardNameBytesMax)
	case strings.ContainsRune(opts.Shard, 0):
		return fmt.Errorf("open volume %s: the shard's name %q holds a zero byte: use another name", opts.Dir, opts.Shard)
	case opts.ReserveBytes < 0:
		return fmt.Errorf("open volume %s: a reserve of %d bytes: give 0 (by the size of the disk) or more",
			opts.Dir, opts.ReserveBytes)
	case opts.Create && opts.Store == uuid.Nil:
		return fmt.Errorf("open volume %s: creating a volume needs the UUID of its store", opts.Dir)
	case opts.Create && opts.Shard == "":
		return fmt.Errorf("open volume %s: creating a volume needs the name of its shard", opts.Dir)
	}
	return nil
}

// exists tells whether the folder holds a superblock, and refuses the folder where it holds none and none may be made.
func (v *Volume) exists(create bool) (bool, error) {
	if create {
		if err := v.fs.MkdirAll(v.dir); err != nil {
			return false, fmt.Errorf("open volume %s: make its folder: %w", v.dir, err)
		}
	}
	names, err := v.fs.List(v.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("open volume %s: %w: the folder does not exist: is the disk mounted, is the path right?",
			v.dir, ErrNoVolume)
	}
	if err != nil {
		return false, fmt.Errorf("open volume %s: list its folder: %w", v.dir, err)
	}
	if slices.Contains(names, superblockName) {
		return true, nil
	}
	if !create {
		return false, fmt.Errorf("open volume %s: %w: the folder has no file %s: is the disk mounted, is the path right? "+
			"A new volume is made only where that is asked for", v.dir, ErrNoVolume, superblockName)
	}
	return false, v.refuseForeign(names)
}

// refuseForeign refuses a folder without a superblock where a new volume must not be made.
func (v *Volume) refuseForeign(names []string) error {
	// What a start that was interrupted before its first superblock leaves is ours.
	foreign := slices.DeleteFunc(names, func(name string) bool {
		return name == lostFoundName || name == lockName || name == superblockTempName
	})
	if len(foreign) > 0 {
		return fmt.Errorf("open volume %s: %w: it holds %d names, such as %q: use an empty folder, or the one of "+
			"an earlier run with its file %s", v.dir, ErrNotEmpty, len(foreign), foreign[0], superblockName)
	}
	return nil
}

// start reads or makes the superblock, under the lock, and makes the layout.
func (v *Volume) start(opts Options) error {
	there, err := v.exists(opts.Create)
	if err != nil {
		return err
	}
	state := copies{}
	if there {
		if state, err = readCopies(v.fs, v.dir); err != nil {
			return fmt.Errorf("open volume %s: %w", v.dir, err)
		}
		v.superblock = state.superblock
		if err := v.admitIdentity(opts); err != nil {
			return err
		}
		for _, bad := range state.bad {
			v.logger.Warn("one copy of the superblock was damaged and is healed from the other",
				"volume", v.dir, "copy", bad.copy, "cause", bad.err)
		}
	} else {
		v.superblock = Superblock{Store: opts.Store, Volume: uuid.New(), Created: v.now().UnixNano(), Shard: opts.Shard}
	}
	if opts.Renew && there {
		v.logger.Warn("the volume has another UUID from now on", "volume", v.dir, "before", v.superblock.Volume)
		v.superblock.renew(v.now())
		v.superblock.Generation = 0
		opts.Registered = Step{}
	}
	v.superblock.Generation++
	v.superblock.Step, v.superblock.Registered = v.superblock.Step.next(), opts.Registered
	if err := v.replaceSuperblock(state, v.superblock); err != nil {
		return fmt.Errorf("open volume %s: raise its generation to %d: %w", v.dir, v.superblock.Generation, err)
	}
	for _, name := range []string{groupsName, trashName} {
		if err := v.fs.MkdirAll(path.Join(v.dir, name)); err != nil {
			return fmt.Errorf("open volume %s: make its layout: %w", v.dir, err)
		}
	}
	// A process killed between making a name and syncing it leaves a name that a power cut can still take.
	if err := errors.Join(v.fs.SyncDir(v.dir), v.fs.SyncDir(path.Join(v.dir, groupsName))); err != nil {
		return fmt.Errorf("open volume %s: sync its folders: %w", v.dir, err)
	}
	return nil
}

// admitIdentity refuses a volume of another store or shard.
func (v *Volume) admitIdentity(opts Options) error {
	sb := v.superblock
	if opts.Store != uuid.Nil && opts.Store != sb.Store {
		return fmt.Errorf("open volume %s: %w: it holds store %s (shard %q, volume %s), this process serves store %s: "+
			"give it the folder of its own store, or serve the store that is there",
			v.dir, ErrForeign, sb.Store, sb.Shard, sb.Volume, opts.Store)
	}
	if opts.Shard != "" && opts.Shard != sb.Shard && opts.Adopt && opts.Store != uuid.Nil {
		v.logger.Warn("the volume is adopted from another shard", "volume", v.dir, "uuid", sb.Volume, "from", sb.Shard, "by",
			opts.Shard)
		v.superblock.Shard = opts.Shard
		return nil
	}
	if opts.Shard != "" && opts.Shard != sb.Shard {
		return fmt.Errorf("open volume %s: %w: it is of shard %q (volume %s), this process is shard %q: "+
			"are two disks swapped? Give each shard its own folder", v.dir, ErrOtherShard, sb.Shard, sb.Volume, opts.Shard)
	}
	return nil
}

// Renew gives the volume another UUID, durably: it was set back to an earlier state, so that it is not what others
// think that the old UUID is. The files stay. It is called before the volume is used.
func (v *Volume) Renew() error {
	before := v.superblock
	next := before
	next.renew(v.now())
	err := v.rewrite(func(sb *Superblock) { journal := sb.Journal; *sb = next; sb.Journal = journal })
	if err != nil {
		return fmt.Errorf("volume %s: give it another UUID: %w", v.dir, err)
	}
	v.superblock = next
	v.logger.Warn("the volume has another UUID from now on", "volume", v.dir, "before", before.Volume, "now",
		v.superblock.Volume)
	return nil
}

// renew makes the superblock that of another volume, which nobody has heard of.
func (s *Superblock) renew(now time.Time) {
	s.Volume, s.Generation, s.Created = uuid.New(), 1, now.UnixNano()
	s.Step, s.Registered = Step{}.next(), Step{}
}

// NextStep takes the volume to its next step, durably, and gives that. registered is the step of which etcd is known to
// hold it by now. The next step is to be told to etcd before there is another one: an image of the volume from before
// this call is told from the volume then.
func (v *Volume) NextStep(registered Step) (next Step, err error) {
	err = v.rewrite(func(sb *Superblock) {
		sb.Step, sb.Registered = sb.Step.next(), registered
		next = sb.Step
	})
	if err != nil {
		return Step{}, fmt.Errorf("volume %s: note its next step in the superblock: %w", v.dir, err)
	}
	return next, nil
}

// Step that the volume is in now.
func (v *Volume) Step() Step {
	v.writing.Lock()
	defer v.writing.Unlock()
	return v.written.Step
}

// rewrite changes the superblock on disk.
func (v *Volume) rewrite(change func(*Superblock)) error {
	v.writing.Lock()
	defer v.writing.Unlock()
	v.mu.Lock()
	open := v.lock != nil
	v.mu.Unlock()
	next := v.written
	if change(&next); next == v.written {
		return nil
	}
	if !open {
		return ErrClosed
	}
	if err := v.checkWritten(); err != nil {
		return err
	}
	return v.replaceSuperblock(copies{superblock: v.written}, next)
}

// checkWritten tells that the device does not hold what was written to it last. It must not be written again then: a
// device that was zeroed or exchanged under the file system would look like the one that was opened. Called with
// writing held.
func (v *Volume) checkWritten() error {
	now, err := FreshSuperblock(v.fs, v.dir)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	if now != v.written && now != v.tried {
		return fmt.Errorf("%w: generation %d, step %d of volume %s was written, generation %d, step %d of volume %s is there",
			ErrChanged, v.written.Generation,
			v.written.Step.Number, v.written.Volume, now.Generation, now.Step.Number, now.Volume)
	}
	return nil
}

// Superblock as of this start; its step, too.
func (v *Volume) Superblock() Superblock { return v.superblock }

// SetJournal notes, durably, whether there is a journal: before its first file is made, and after its files were
// removed.
func (v *Volume) SetJournal(there bool) error {
	if err := v.rewrite(func(sb *Superblock) { sb.Journal = there }); err != nil {
		return fmt.Errorf("volume %s: note in its superblock whether there is a journal: %w", v.dir, err)
	}
	return nil
}

// Dir is the folder of the volume.
func (v *Volume) Dir() string { return v.dir }

// GroupDir is the folder for a group.
func (v *Volume) GroupDir(group uuid.UUID) string {
	return GroupDirIn(v.dir, group)
}

// GroupDirIn is Volume.GroupDir of a volume that is not open.
func GroupDirIn(dir string, group uuid.UUID) string {
	return path.Join(dir, groupsName, group.String())
}

// TrashDir is the folder for what is to be deleted later.
func (v *Volume) TrashDir() string { return path.Join(v.dir, trashName) }

// Groups lists the groups that have a folder, in order of their UUIDs. Names that are no UUID are logged and left out.
func (v *Volume) Groups() ([]uuid.UUID, error) {
	return groupsIn(v.fs, v.dir, v.logger)
}

// GroupsIn is Volume.Groups of a volume that is not open.
func GroupsIn(fsys vfs.FS, dir string) ([]uuid.UUID, error) {
	return groupsIn(fsys, dir, slog.New(slog.DiscardHandler))
}

func groupsIn(fsys vfs.FS, volumeDir string, logger *slog.Logger) ([]uuid.UUID, error) {
	dir := path.Join(volumeDir, groupsName)
	names, err := fsys.List(dir)
	if err != nil {
		return nil, fmt.Errorf("list the groups of volume %s: %w", volumeDir, err)
	}
	groups := make([]uuid.UUID, 0, len(names))
	for _, name := range names {
		// uuid.Parse takes other spellings too, but only this one is where GroupDir points.
		group, err := uuid.Parse(name)
		if err != nil || group.String() != name {
			logger.Warn("a name that is no group is ignored", "folder", dir, "name", name)
			continue
		}
		groups = append(groups, group)
	}
	return groups, nil
}

// Close releases the lock. Again: nothing.
func (v *Volume) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.lock == nil {
		return nil
	}
	lock := v.lock
	v.lock = nil
	if err := lock.Close(); err != nil {
		return fmt.Errorf("close volume %s: release its lock: %w", v.dir, err)
	}
	return nil
}

// InUse says which process is in the way where another one has the volume open; nil: none has. Nothing is written to a
// volume.
func InUse(fsys vfs.FS, dir string) error {
	lock, err := takeLock(fsys, dir)
	if err != nil {
		return err
	}
	return lock.Close()
}

func takeLock(fsys vfs.FS, dir string) (io.Closer, error) {
	lock, err := fsys.Lock(path.Join(dir, lockName))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("open volume %s: %w: stop the other process first (fuser %s names it), or use another folder",
			dir, ErrLocked, path.Join(dir, lockName))
	}
	if err != nil {
		return nil, fmt.Errorf("open volume %s: take its lock: %w: the folder must be writable for this user", dir, err)
	}
	return lock, nil
}
