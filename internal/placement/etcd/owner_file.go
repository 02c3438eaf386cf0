package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"sheaf.dev/sheaf/internal/base/units"
)

// ownerFileName is the name of a file next to etcd's own folder. The file names the member that owns that folder. It
// is needed because etcd no longer checks the cluster token once it has data.
const (
	ownerFileName    = "sheaf-etcd.json"
	ownerFileVersion = 1

	lostFoundName = "lost+found" // mkfs.ext4 creates this folder in every new file system
	tempSuffix    = ".tmp"
	namesShown    = 5 // maximum number of file names in an error
)

// ownerFile is the JSON content of the file ownerFileName.
type ownerFile struct {
	Format int    `json:"format"`
	Name   string `json:"name"`
	Token  string `json:"token"`
}

// hasData reports whether etcd has stored anything in the member's folder.
func (c *MemberConfig) hasData() bool {
	names, err := os.ReadDir(filepath.Join(c.Dir, "member", "wal"))
	return err == nil && len(names) > 0
}

// refuseForeign returns an error if the disk contains something that does not belong to this member. Without this
// check, a member without data would create its folder, or join the others as a new member, next to somebody else's
// files. refuseForeign writes nothing. It accepts a member that already has data, even if other files were added
// later.
func (c *MemberConfig) refuseForeign() error {
	aside, err := filepath.Glob(filepath.Join(c.Dir, asidePrefix+"*"))
	if err != nil || len(aside) > 0 || c.hasData() {
		return err // if there is data, takeFolder checks whom it belongs to
	}
	if c.Mount != "" {
		known := []string{lostFoundName, filepath.Base(c.Dir)}
		if filepath.Dir(filepath.Clean(c.Snapshots.Dir)) == filepath.Clean(c.Mount) {
			known = append(known, filepath.Base(c.Snapshots.Dir))
		}
		if err := refuseOthers(c.Mount, known); err != nil {
			return err
		}
	}
	if _, err = os.Lstat(filepath.Join(c.Dir, ownerFileName)); !errors.Is(err, fs.ErrNotExist) {
		return nil // A member has already taken the folder. takeFolder reads its owner file.
	}
	// If a member was interrupted while it took an empty folder, the temporary owner file is left over.
	if err := refuseOthers(c.Dir, []string{lostFoundName, ownerFileName + tempSuffix}); err != nil {
		return err
	}
	if c.Mount != "" && c.Snapshots.Dir != "" {
		return refuseOthers(c.Snapshots.Dir, nil) // old snapshots may be the only copy of an earlier etcd's data
	}
	return nil
}

// refuseOthers returns an error if a folder contains files other than those in known. The error lists these files. If
// the folder does not exist, refuseOthers returns nil.
func refuseOthers(dir string, known []string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look at the disk before it is written to: %w", err)
	}
	var others []string
	for _, e := range entries {
		if !slices.Contains(known, e.Name()) {
			others = append(others, strconv.Quote(e.Name()))
		}
	}
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s holds %s. Nothing was written. Move them elsewhere where somebody needs them, "+
		"wipe the disk where nobody does, or give this member another disk", ErrForeign, dir, units.Some(others, namesShown))
}

// takeFolder marks an empty folder as this member's own, and returns an error if the folder belongs to another
// cluster or another member.
func (c *MemberConfig) takeFolder() error {
	if err := c.refuseForeign(); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return err
	}
	file := filepath.Join(c.Dir, ownerFileName)
	content, err := readSmall(file)
	if errors.Is(err, fs.ErrNotExist) {
		if c.hasData() {
			return fmt.Errorf("%w: %s has data of an etcd, but no file %s: give an empty folder", ErrOtherCluster, c.Dir,
				ownerFileName)
		}
		if c.Existing && len(c.Cluster) == 1 {
			return c.emptyExisting("there is no other member")
		}
		return writeSynced(c.Dir, ownerFileName, ownerFile{Format: ownerFileVersion, Name: c.Name, Token: c.Token})
	}
	if err != nil {
		return err
	}
	var there ownerFile
	if err := json.Unmarshal(content, &there); err != nil {
		return fmt.Errorf("%s cannot be read: %w: bring it back from a copy", file, err)
	}
	if there.Format > ownerFileVersion {
		return fmt.Errorf("%s has format %d, known is %d: use the program that wrote it or a newer one", file, there.Format,
			ownerFileVersion)
	}
	if there.Token != c.Token || there.Name != c.Name {
		return fmt.Errorf(
			"%w: %s is of member %q of cluster %q, this is member %q of cluster %q: mount this member's own folder, or an "+
				"empty one. "+
				"Where the folder is of an earlier store of this name: adopt that store (adoptStoreUID), or delete the claims of "+
				"its etcd",
			ErrOtherCluster, c.Dir, there.Name, there.Token, c.Name, c.Token)
	}
	if c.Existing && len(c.Cluster) == 1 && !c.hasData() {
		return c.emptyExisting("there is no other member")
	}
	return nil
}

// smallFileMax is the maximum size, in bytes, of a file that this package writes. A larger file must be damaged.
const smallFileMax = 64 << 10

// readSmall reads a file that was written by writeSynced.
func readSmall(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, smallFileMax+1))
	if err == nil && len(content) > smallFileMax {
		err = fmt.Errorf("%s has more than %d bytes: bring it back from a copy", name, smallFileMax)
	}
	return content, errors.Join(err, f.Close())
}

// writeSynced replaces a small JSON file durably. It writes a temporary file, syncs it, renames it and then syncs the
// folder.
func writeSynced(dir, name string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return writeAside(dir, name, func(f *os.File) error {
		_, err := f.Write(append(content, '\n'))
		return err
	})
}

// writeAside replaces a file durably with the content that the function write produces. If write fails, the previous
// file is kept.
func writeAside(dir, name string, write func(*os.File) error) (err error) {
	temp := filepath.Join(dir, name+tempSuffix)
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return syncFolder(dir)
}
