// Package volume manages one file system that a shard owns. It manages the superblock (identity, generation), the lock
// and the free space, and reads the mount that the kernel reports.
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

// These are the errors of opening and writing a volume. Callers test for them with errors.Is. The messages name the
// folder and say what to do.
var (
	ErrLocked           = errors.New("volume is locked by another process")
	ErrNoVolume         = errors.New("no volume here")
	ErrNotEmpty         = errors.New("folder is not empty and holds no volume")
	ErrForeign          = errors.New("volume belongs to another store")
	ErrOtherShard       = errors.New("volume belongs to another shard")
	ErrFormatVersion    = errors.New("volume has a newer format than this program")
	ErrDamaged          = errors.New("superblock is damaged")
	ErrFull             = errors.New("volume is full")
	ErrFreeSpaceUnknown = errors.New("the file system does not report its free space")
	ErrClosed           = errors.New("volume is closed")
	ErrChanged          = errors.New("the device does not hold what was written to it")
)

// These are the names of the files and folders in a volume's folder.
const (
	lockName       = "lock"
	superblockName = "superblock"
	groupsName     = "groups"
	trashName      = "trash"
	lostFoundName  = "lost+found" // mkfs.ext4 creates this folder in every new file system
)

// ShardNameBytesMax is the length, in bytes, of the longest shard name that a superblock can hold.
const ShardNameBytesMax = 253

// Superblock identifies a volume. Its file has two copies, each with a CRC, and is replaced atomically.
type Superblock struct {
	Store      uuid.UUID
	Volume     uuid.UUID
	Generation uint64 // 1 after the first Open; each Open durably adds 1
	Created    int64  // Unix time in ns
	Shard      string // name of the shard that owns the volume, 1 to ShardNameBytesMax bytes
	Journal    bool   // whether the volume has a journal, which may hold data that is not stored anywhere else yet
	// Step distinguishes this state of the volume from all earlier ones. It changes at every Open, and from time to
	// time while the volume is in use (Volume.NextStep). It is zero if the volume was opened only by versions of Sheaf
	// that do not support steps.
	Step Step
	// Registered is the last step that etcd is known to have stored. It is zero if no such step is known.
	Registered Step
}

// Step identifies a state of a volume. The states of a volume form a sequence.
type Step struct {
	Number uint64 // 1 for the first step; each further step adds 1
	// Nonce is random. If two copies of one volume are used independently, their steps with the same number have different
	// nonces.
	Nonce uuid.UUID
}

// next returns the step after s.
func (s Step) next() Step { return Step{Number: s.Number + 1, Nonce: uuid.New()} }

// Options configures Open.
type Options struct {
	FS  vfs.FS
	Dir string
	// Store is the store to which the volume must belong. If it is zero, Open accepts a volume of any store. It is
	// required if Open has to create the superblock.
	Store uuid.UUID
	// Shard is the shard to which the volume must belong. If it is empty, Open accepts a volume of any shard. It is
	// required if Open has to create the superblock.
	Shard string
	// Create lets Open create a superblock if the folder does not exist or contains nothing but lost+found.
	Create bool
	// Adopt lets this shard take over a volume that belongs to another shard of the store.
	Adopt bool
	// Renew gives an existing volume a new UUID, as Volume.Renew does, in the same write that raises its generation.
	Renew bool
	// Registered is the step that etcd stores for the volume. It is zero if etcd stores none.
	Registered Step
	// ReserveBytes is the number of bytes that are kept free for compaction, deletes and consensus. 0 means the smaller of
	// 5 % of the file system and 1 GiB, but at least 16 MiB.
	ReserveBytes int64
	Logger       *slog.Logger // if nil, messages are discarded
}

// Volume is an open, locked volume. Its folder contains superblock, lock, groups/<group uuid>/... and trash/. A Volume
// is safe for concurrent use.
type Volume struct {
	fs           vfs.FS
	dir          string
	superblock   Superblock // the superblock that Open has written
	reserveBytes int64      // value of the option; if 0, the reserve depends on the size of the file system
	logger       *slog.Logger
	now          func() time.Time

	writing longlock.Mutex // held while the superblock is written; guards the next two fields
	written Superblock     // the superblock that is on the disk
	// tried is the last superblock that the volume tried to write. If that write has failed, tried may or may not be on
	// the disk.
	tried Superblock

	mu        longlock.Mutex // guards the fields below
	lock      io.Closer      // nil after Close
	freeSpace freeSpace
}

// Open locks the volume and raises its generation. It returns an error if another process holds the lock, if the
// volume belongs to another store or shard, if the folder has no superblock and is not empty, or if the superblock
// has a newer format. The error names the problem and the remedy.
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
	// The folder is also checked before it is locked, because no lock file may be created in a folder that does not
	// belong to a volume.
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

// validate returns an error for invalid options and for invalid combinations of options.
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

// exists reports whether the folder holds a superblock. It returns an error if it holds none and no new one may be
// created.
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

// refuseForeign is called for a folder without a superblock. It returns an error if the folder holds files that do
// not belong to a new volume.
func (v *Volume) refuseForeign(names []string) error {
	// Files that an interrupted first start creates before the superblock do not count as foreign.
	foreign := slices.DeleteFunc(names, func(name string) bool {
		return name == lostFoundName || name == lockName || name == superblockName+vfs.TempSuffix
	})
	if len(foreign) > 0 {
		return fmt.Errorf("open volume %s: %w: it holds %d names, such as %q: use an empty folder, or the one of "+
			"an earlier run with its file %s", v.dir, ErrNotEmpty, len(foreign), foreign[0], superblockName)
	}
	return nil
}

// Blank reports whether a new volume may be created in a folder. This is the case if the folder does not exist, or
// holds nothing except files that a new volume may have. If the folder holds other files, Blank returns ErrNotEmpty.
// If the folder cannot be listed, Blank returns that error.
func Blank(fsys vfs.FS, dir string) (bool, error) {
	v := Volume{fs: fsys, dir: dir}
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("volume %s: list its folder: %w", dir, err)
	}
	if slices.Contains(names, superblockName) {
		return false, nil
	}
	return true, v.refuseForeign(names)
}

// start reads or creates the superblock, and creates the folders of the volume. The caller holds the lock.
func (v *Volume) start(opts Options) error {
	there, err := v.exists(opts.Create)
	if err != nil {
		return err
	}
	state := copies{}
	if there {
		if state, err = readCopies(v.dir, v.fs.Open); err != nil {
			return fmt.Errorf("open volume %s: %w", v.dir, err)
		}
		v.superblock = state.superblock
		if err := v.admitIdentity(opts); err != nil {
			return err
		}
		for i, bad := range state.bad {
			if bad != nil {
				v.logger.Warn("one copy of the superblock was damaged and is healed from the other",
					"volume", v.dir, "copy", i, "cause", bad)
			}
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
	// An earlier process may have been killed after it had created these files and before it had synced the folders that
	// contain them. A power cut could then still remove the files.
	if err := errors.Join(v.fs.SyncDir(v.dir), v.fs.SyncDir(path.Join(v.dir, groupsName))); err != nil {
		return fmt.Errorf("open volume %s: sync its folders: %w", v.dir, err)
	}
	return nil
}

// admitIdentity returns an error if the volume belongs to another store or shard. If only the shard differs, and
// opts.Adopt and opts.Store are set, it changes the shard in the superblock instead.
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

// Renew durably gives the volume a new UUID. It is for a volume that was restored to an earlier state, which must
// therefore not be mistaken for the volume with the old UUID. Renew does not change other files. It must be called
// before the volume is used.
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

// renew turns the superblock into that of a new volume that is not registered anywhere.
func (s *Superblock) renew(now time.Time) {
	s.Volume, s.Generation, s.Created = uuid.New(), 1, now.UnixNano()
	s.Step, s.Registered = Step{}.next(), Step{}
}

// NextStep durably moves the volume to its next step and returns that step. The argument registered is the latest
// step that etcd is known to have stored. The caller must register the new step in etcd before it calls NextStep
// again. After that, a copy of the disk from before this call can be recognized as old.
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

// Step returns the current step of the volume.
func (v *Volume) Step() Step {
	v.writing.Lock()
	defer v.writing.Unlock()
	return v.written.Step
}

// rewrite changes the superblock on the disk.
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

// checkWritten checks that the device still holds a superblock that this process has written: the last one that was
// written successfully, or a later one whose write failed but may still have reached the device. Otherwise the device
// was zeroed or exchanged while the file system was mounted. Nothing may be written to such a device, because a new
// superblock would make it look like the volume that was opened. The caller holds v.writing.
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

// Superblock returns the superblock that Open has written, with the step that the volume had at that time.
func (v *Volume) Superblock() Superblock { return v.superblock }

// SetJournal durably records whether the volume has a journal. It must be called before the journal's first file is
// created, and after the journal's files have been removed.
func (v *Volume) SetJournal(there bool) error {
	if err := v.rewrite(func(sb *Superblock) { sb.Journal = there }); err != nil {
		return fmt.Errorf("volume %s: note in its superblock whether there is a journal: %w", v.dir, err)
	}
	return nil
}

// Dir returns the folder of the volume.
func (v *Volume) Dir() string { return v.dir }

// GroupDir returns the folder of a group.
func (v *Volume) GroupDir(group uuid.UUID) string {
	return GroupDirIn(v.dir, group)
}

// GroupDirIn is like Volume.GroupDir, for a volume that is not open.
func GroupDirIn(dir string, group uuid.UUID) string {
	return path.Join(dir, groupsName, group.String())
}

// TrashDir returns the folder for files that are deleted later.
func (v *Volume) TrashDir() string { return path.Join(v.dir, trashName) }

// Groups lists the groups that have a folder, sorted by UUID. Names that are not UUIDs are logged and skipped.
func (v *Volume) Groups() ([]uuid.UUID, error) {
	return groupsIn(v.fs, v.dir, v.logger)
}

// GroupsIn is like Volume.Groups, for a volume that is not open.
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
		// uuid.Parse also accepts other spellings of a UUID, but GroupDir uses only the canonical one.
		group, err := uuid.Parse(name)
		if err != nil || group.String() != name {
			logger.Warn("a name that is no group is ignored", "folder", dir, "name", name)
			continue
		}
		groups = append(groups, group)
	}
	return groups, nil
}

// Close releases the lock. Further calls have no effect.
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

// InUse returns ErrLocked if another process has the volume open. The error's message says how to find that process.
// InUse does not write to the volume.
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
