package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// claimName is the file beside etcd's own folder that names its owner: etcd ignores its token once it has data.
const (
	claimName    = "sheaf-etcd.json"
	claimVersion = 1
)

// claimed is the content of the file.
type claimed struct {
	Format int    `json:"format"`
	Name   string `json:"name"`
	Token  string `json:"token"`
}

// hasData reports whether etcd has stored anything here.
func (c *MemberConfig) hasData() bool {
	names, err := os.ReadDir(filepath.Join(c.Dir, "member", "wal"))
	return err == nil && len(names) > 0
}

// claim rejects the folder of another cluster or member, and marks an empty folder as this member's.
func (c *MemberConfig) claim() error {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return err
	}
	file := filepath.Join(c.Dir, claimName)
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		if c.hasData() {
			return fmt.Errorf("%w: %s has data of an etcd, but no file %s: give an empty folder", ErrOtherCluster, c.Dir,
				claimName)
		}
		if c.Existing && len(c.Cluster) == 1 {
			return c.emptyExisting("there is no other member")
		}
		return writeSynced(c.Dir, claimName, claimed{Format: claimVersion, Name: c.Name, Token: c.Token})
	}
	if err != nil {
		return err
	}
	var there claimed
	if err := json.Unmarshal(content, &there); err != nil {
		return fmt.Errorf("%s cannot be read: %w: bring it back from a copy", file, err)
	}
	if there.Format > claimVersion {
		return fmt.Errorf("%s has format %d, known is %d: use the program that wrote it or a newer one", file, there.Format,
			claimVersion)
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

// writeSynced writes a small JSON file under a temporary name, syncs and renames it, and syncs the folder.
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

// writeAside writes a file durably under its name, or not at all.
func writeAside(dir, name string, write func(*os.File) error) (err error) {
	temp := filepath.Join(dir, name+".tmp")
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
