package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	// damagedPrefix and a number name a file that was set aside, as something of it cannot be read.
	damagedPrefix = "journal-damaged-"
	// keptPrefix and a group's UUID name a file with what could not be written to the files of the group.
	keptPrefix = "journal-kept-"
	// replaysMax is how many groups are written and synced at a time: each waits for the device.
	replaysMax = 16
	// keptRecordBytes is what a record of a kept file has at most, unless one range is longer.
	keptRecordBytes = 8 << 20
)

// IsName tells whether a file's name is that of a journal, or of what was kept of one.
func IsName(name string) bool {
	return name == names[0] || name == names[1] || strings.HasPrefix(name, damagedPrefix) ||
		strings.HasPrefix(name, keptPrefix)
}

// Target is what a journal is written back to.
type Target struct {
	// Groups lists all groups of the volume: those may have lost something that were in a record which cannot be read.
	Groups func() ([]uuid.UUID, error)
	// Apply makes durable in the files of a group what is found for it, and notes there what is lost. nil where the
	// group has no files any more. It is called for several groups at a time.
	Apply func(group uuid.UUID, share Share) error
}

// Replay gives each group what the files of a volume hold for it, and then removes the files. Files of which something
// cannot be read are set aside instead, as journal-damaged-N. What cannot be written to a group's files is kept in a
// file of its own, journal-kept-GROUP, until Join or a later Replay can write it: the other groups go on without that
// one. An error: nothing was removed, and the files are to be replayed again.
func Replay(fsys vfs.FS, dir string, to Target) (Found, error) {
	found, err := Read(fsys, dir)
	if err != nil {
		return Found{}, fmt.Errorf(
			"%w: what it holds was acknowledged and may stand nowhere else: see to the disk, then start again", err)
	}
	groups := found.groups()
	if found.Doubtful() {
		if groups, err = to.Groups(); err != nil {
			return Found{}, fmt.Errorf("journal in %s is damaged, and the groups that it may have hit cannot be listed: %w", dir,
				err)
		}
	}
	if err := applyAllKept(fsys, dir, to.Apply); err != nil {
		return Found{}, err
	}
	var all errgroup.Group
	all.SetLimit(replaysMax)
	var mu sync.Mutex
	for _, group := range groups {
		all.Go(func() error {
			share := found.Share(group)
			failed := to.Apply(group, share)
			if failed == nil || errors.Is(failed, vfs.ErrCrashed) {
				return failed
			}
			mu.Lock()
			defer mu.Unlock()
			if err := keep(fsys, dir, group, share); err != nil {
				return fmt.Errorf(
					"journal in %s: what it holds of group %s can be written neither to the group's segment nor aside: %w", dir, group,
					errors.Join(failed, err))
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return Found{}, err
	}
	if len(found.Bad) > 0 {
		return found, setAside(fsys, dir)
	}
	return found, Remove(fsys, dir)
}

// Left are the names of the files of a volume that were set aside or kept.
func Left(fsys vfs.FS, dir string) (damaged, kept []string, err error) {
	all, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("journal: %w", err)
	}
	for _, name := range all {
		switch {
		case strings.HasSuffix(name, tmpSuffix):
		case strings.HasPrefix(name, damagedPrefix):
			damaged = append(damaged, name)
		case strings.HasPrefix(name, keptPrefix):
			kept = append(kept, name)
		}
	}
	return damaged, kept, nil
}

// setAside gives the files names under which nobody uses them, durably.
func setAside(fsys vfs.FS, dir string) error {
	damaged, _, err := Left(fsys, dir)
	if err != nil {
		return err
	}
	number := 0
	for _, name := range damaged {
		if n, err := strconv.Atoi(strings.TrimPrefix(name, damagedPrefix)); err == nil {
			number = max(number, n)
		}
	}
	for _, name := range names {
		err := fsys.Rename(path.Join(dir, name), path.Join(dir, damagedPrefix+strconv.Itoa(number+1)))
		switch {
		case err == nil:
			number++
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("journal: %w", err)
		}
	}
	return fsys.SyncDir(dir)
}

// Remove removes the files, durably.
func Remove(fsys vfs.FS, dir string) error { return remove(fsys, dir, names[:]...) }

func remove(fsys vfs.FS, dir string, files ...string) error {
	removed := false
	for _, name := range files {
		err := fsys.Remove(path.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("journal: %w", err)
		}
		removed = removed || err == nil
	}
	if !removed {
		return nil
	}
	return fsys.SyncDir(dir)
}

const tmpSuffix = ".tmp"

// keep writes the share of a group into a file of its own, durably, behind what was kept before: records as in a
// journal, of which the first one has what is lost. The doubt is a range of segment 0, which no group has.
func keep(fsys vfs.FS, dir string, group uuid.UUID, share Share) error {
	name := path.Join(dir, keptPrefix+group.String())
	earlier, err := readKept(fsys, name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ranges, before := slices.Concat(earlier.Ranges, share.Ranges), slices.Concat(earlier.Lost, share.Lost)
	if doubt := earlier.Doubt + share.Doubt; doubt > 0 {
		before = append(before, Range{Group: group, Before: doubt})
	}
	err = fsys.Remove(name + tmpSuffix) // of a start that was cut off
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := fsys.Create(name + tmpSuffix)
	if err != nil {
		return err
	}
	at := int64(0)
	for sequence := uint64(0); err == nil && (sequence == 0 || len(ranges) > 0); sequence++ {
		n, bytes := 0, 0
		for ; n < len(ranges) && (n == 0 || bytes+len(ranges[n].Bytes) <= keptRecordBytes); n++ {
			bytes += len(ranges[n].Bytes)
		}
		b := encode(nil, 1, sequence, before, ranges[:n])
		_, err = f.WriteAt(b, at)
		at += int64(len(b))
		before, ranges = nil, ranges[n:]
	}
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(name+tmpSuffix, name); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// readKept reads what keep wrote.
func readKept(fsys vfs.FS, name string) (share Share, err error) {
	c, err := readFile(fsys, name)
	if err != nil {
		return Share{}, err
	}
	u := c.scan()
	if len(u.bad) > 0 || len(u.records) == 0 {
		return Share{}, errors.Join(append(u.bad, errRecord)...)
	}
	for _, r := range u.records {
		share.Ranges = append(share.Ranges, r.ranges...)
		for _, lost := range r.before {
			if lost.Number == 0 {
				share.Doubt += lost.Before
			} else {
				share.Lost = append(share.Lost, lost)
			}
		}
	}
	return share, nil
}

// applyKept applies what was kept for a group, and forgets it then.
func applyKept(fsys vfs.FS, dir string, group uuid.UUID, apply func(Share) error) error {
	name := keptPrefix + group.String()
	share, err := readKept(fsys, path.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = apply(share)
	}
	if err != nil {
		return fmt.Errorf("what %s holds, which was acknowledged, cannot be written to the group's segment: %w",
			path.Join(dir, name), err)
	}
	return remove(fsys, dir, name)
}

// applyAllKept applies what was kept for groups that can be written now. What cannot stays.
func applyAllKept(fsys vfs.FS, dir string, apply func(uuid.UUID, Share) error) error {
	_, kept, err := Left(fsys, dir)
	if err != nil {
		return err
	}
	for _, name := range kept {
		group, err := uuid.Parse(strings.TrimPrefix(name, keptPrefix))
		if err != nil {
			continue
		}
		if err := applyKept(fsys, dir, group, func(s Share) error {
			return apply(group, s)
		}); errors.Is(err, vfs.ErrCrashed) {
			return err
		}
	}
	return nil
}
