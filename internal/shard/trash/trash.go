// Package trash keeps the folders of replicas for some time after the replicas have left their groups. The files are
// no longer needed, because a majority of the other members has committed the membership change that removed the
// replica from its group. If another copy of the group will take the replica's place on the volume, the folder stays
// until that copy is complete, unless free space is low.
package trash

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// every is the longest time between two checks for folders that are old enough to delete.
const every = 30 * time.Second

// Options holds everything that a Bin may use.
type Options struct {
	FS  vfs.FS
	Dir func() string // returns the folder of the trash
	// Delay is how long a folder is kept if there is free space.
	Delay time.Duration
	// Held reports whether nothing may be deleted at present.
	Held func() bool
	// Coming reports whether another copy of a group is about to be placed on this volume but is not complete yet.
	Coming func(group uuid.UUID) bool
	// Fuller is called after a folder was added to the trash. Freed is called after the deletion of folders has freed
	// space.
	Fuller, Freed func()
	Problem       func(what string, err error)
	Logger        *slog.Logger
}

// Bin is a volume's trash. It is safe for concurrent use.
type Bin struct {
	Options
	deleting longlock.Mutex // held while files are deleted
}

// Folder is the trashed folder of one replica.
type Folder struct {
	name   string
	since  time.Time
	coming bool // another copy of the group will come to this volume and is not complete yet
}

// Put renames the folder of a replica to UUID-RAFTID-SECONDS in the trash. It does nothing if there is no folder.
func (b *Bin) Put(dir string, group uuid.UUID, raftID uint64) error {
	trash := b.Dir()
	if err := b.FS.MkdirAll(trash); err != nil {
		return fmt.Errorf("making the trash: %w", err)
	}
	to := path.Join(trash, fmt.Sprintf("%s-%016x-%d", group, raftID, time.Now().Unix()))
	if err := b.FS.Rename(dir, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("moving it to the trash: %w", err)
	}
	for _, dir := range []string{path.Dir(dir), trash} {
		if err := b.FS.SyncDir(dir); err != nil {
			return fmt.Errorf("moving it to the trash: %w", err)
		}
	}
	b.Fuller()
	return nil
}

// Run deletes folders that have been in the trash for Delay, until ctx is done.
func (b *Bin) Run(ctx context.Context) {
	for more := true; more; more = backoff.Sleep(ctx, min(every, b.Delay/2+time.Millisecond)) {
		b.Problem("emptying the trash", b.Empty(time.Now()))
	}
}

// Empty deletes the folders that, at the given time, have been in the trash for Delay. It keeps the folders of groups
// whose new copy is not complete yet.
func (b *Bin) Empty(now time.Time) error {
	return b.Drop(func(f *Folder) bool { return now.Sub(f.since) >= b.Delay && !f.coming })
}

// Drop calls may for each folder, the oldest first, and deletes the folder if may returns true. Folders that wait for
// a new copy of their group come last. If Held returns true, Drop deletes nothing.
func (b *Bin) Drop(may func(f *Folder) bool) error {
	if b.Held() {
		return nil
	}
	b.deleting.Lock()
	defer b.deleting.Unlock()
	all, err := b.list()
	if err != nil {
		return err
	}
	deleted := false
	for i := range all {
		if !may(&all[i]) {
			continue
		}
		if err := RemoveAll(b.FS, path.Join(b.Dir(), all[i].name)); err != nil {
			return err
		}
		deleted = true
		b.Logger.Info("deleted from the trash", "name", all[i].name)
	}
	if deleted {
		b.Freed()
	}
	return nil
}

// list returns the folders that shards have put into the trash, in the order of deletion.
func (b *Bin) list() (all []Folder, err error) {
	names, err := b.FS.List(b.Dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if since, ok := trashedAt(name); ok {
			id, err := uuid.Parse(name[:36])
			all = append(all, Folder{name, since, err == nil && b.Coming(id)})
		}
	}
	slices.SortStableFunc(all, func(a, b Folder) int {
		if a.coming != b.coming {
			return map[bool]int{false: -1, true: 1}[a.coming]
		}
		return a.since.Compare(b.since)
	})
	return all, nil
}

// trashedAt returns the time when a shard put a folder into the trash. It returns false if the folder's name is not of
// the kind that shards use. In that case, somebody else has put the folder there, and is responsible for it.
func trashedAt(name string) (time.Time, bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 36+1+16 {
		return time.Time{}, false
	}
	seconds, err := strconv.ParseInt(name[i+1:], 10, 64)
	return time.Unix(seconds, 0), err == nil
}

// RemoveAll removes a folder and its content. If it is interrupted by a crash, it must be called again to remove the
// rest. The manifest is removed first, so that the remaining files are never mistaken for a complete group. The
// replica file is removed last, so that the rest can be identified.
func RemoveAll(fsys vfs.FS, dir string) error {
	if err := fsys.Remove(path.Join(dir, format.ManifestName)); err == nil {
		if err := fsys.SyncDir(dir); err != nil {
			return err
		}
	}
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == format.ReplicaName {
			continue
		}
		file := path.Join(dir, name)
		info, err := fsys.Stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && info.IsDir():
			err = RemoveAll(fsys, file)
		case err == nil:
			err = fsys.Remove(file)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if slices.Contains(names, format.ReplicaName) {
		if err := fsys.SyncDir(dir); err != nil {
			return err
		}
		if err := fsys.Remove(path.Join(dir, format.ReplicaName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := fsys.Remove(dir); err != nil {
		return err
	}
	return fsys.SyncDir(path.Dir(dir))
}
