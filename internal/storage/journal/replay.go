package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	// damagedPrefix is the beginning of the name of a journal file that was set aside because a part of it cannot be read.
	// The rest of the name is a number.
	damagedPrefix = "journal-damaged-"
	// keptPrefix is the beginning of the name of a file with data that could not be written to a group's files. The
	// rest of the name is the group's UUID.
	keptPrefix = "journal-kept-"
	// replaysMax is the maximum number of groups whose files are written and synced at the same time. Several groups at
	// once are faster, because each of them mostly waits for the device.
	replaysMax = 16
	// keptRecordBytes is the maximum size of a record in a kept file, unless a single range is larger.
	keptRecordBytes = 8 << 20
)

// IsName reports whether a file name belongs to a journal, or to data that was kept from a journal.
func IsName(name string) bool {
	return name == names[0] || name == names[1] || strings.HasPrefix(name, damagedPrefix) ||
		strings.HasPrefix(name, keptPrefix)
}

// Target provides the functions through which Replay passes a journal's content to the groups.
type Target struct {
	// Groups returns all groups on the volume. Replay needs all of them, because an unreadable record may have held
	// data of any group.
	Groups func() ([]uuid.UUID, error)
	// Apply durably writes the data that was found for a group to the group's files, and also records in them which data
	// is lost. If the group no longer has any files, Apply must return nil. Replay calls Apply for several groups at the
	// same time.
	Apply func(group uuid.UUID, share Share) error
}

// Replay passes to each group the data that the journal files of a volume hold for it, and then removes the files. A
// file with an unreadable part is set aside instead, as journal-damaged-N. Data that cannot be written to a group's
// files is kept in a separate file, journal-kept-GROUP, until Join or a later Replay can write it. This does not affect
// the other groups. If Replay returns an error, no file was removed, and the files have to be replayed again.
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
	if err := applyKept(fsys, dir, to.Apply); err != nil {
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

// Left returns the names of two kinds of files that earlier replays left on a volume: damaged journal files that were
// set aside, and files with data that could not be written to a group's files.
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
		case strings.HasSuffix(name, vfs.TempSuffix):
		case strings.HasPrefix(name, damagedPrefix):
			damaged = append(damaged, name)
		case strings.HasPrefix(name, keptPrefix):
			kept = append(kept, name)
		}
	}
	return damaged, kept, nil
}

// setAside durably renames the files to names that are not used yet.
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

// Remove durably removes the journal files of a volume.
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

// keep durably appends a group's share to a separate file, after the data that earlier calls have kept in it. Like a
// journal, the file consists of records. The first record lists the lost ranges. Share.Doubt is stored as a range in
// segment 0, because no real segment has this number.
func keep(fsys vfs.FS, dir string, group uuid.UUID, share Share) error {
	name := path.Join(dir, keptPrefix+group.String())
	earlier, err := readKept(fsys, name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	share = earlier.followedBy(share)
	ranges, before := share.Ranges, share.Lost
	if share.Doubt > 0 {
		before = append(before, Range{Group: group, Before: share.Doubt})
	}
	var content []byte
	for sequence := uint64(0); sequence == 0 || len(ranges) > 0; sequence++ {
		n, bytes := 0, 0
		for ; n < len(ranges) && (n == 0 || bytes+len(ranges[n].Bytes) <= keptRecordBytes); n++ {
			bytes += len(ranges[n].Bytes)
		}
		content = append(content, encode(nil, 1, sequence, before, ranges[:n])...)
		before, ranges = nil, ranges[n:]
	}
	if err := vfs.WriteAside(fsys, name, content); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// readKept reads a file that keep wrote.
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

// applyKept passes the data in the kept files to the function apply. If apply returns no error, the file is removed.
// Otherwise it is kept.
func applyKept(fsys vfs.FS, dir string, apply func(uuid.UUID, Share) error) error {
	_, kept, err := Left(fsys, dir)
	if err != nil {
		return err
	}
	for _, name := range kept {
		group, err := uuid.Parse(strings.TrimPrefix(name, keptPrefix))
		if err != nil {
			continue
		}
		share, err := readKept(fsys, path.Join(dir, name))
		if err == nil {
			err = apply(group, share)
		}
		if err == nil {
			err = remove(fsys, dir, name)
		}
		if errors.Is(err, vfs.ErrCrashed) {
			return err
		}
	}
	return nil
}
