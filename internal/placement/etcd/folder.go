package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"google.golang.org/protobuf/proto"
)

const (
	memberFolder = "member"    // etcd's own data folder, inside the member's folder
	asidePrefix  = "replaced-" // prefix of the names of data folders that were set aside
	// behindName is the name of a file in memberFolder. The file exists if etcd has found out that the folder lacks
	// entries that it should have.
	behindName = "sheaf-behind.json"
)

// folder describes the data that a member's folder contains.
type folder struct {
	Empty     bool
	MemberID  uint64 // 0 if the data does not contain the id
	ClusterID uint64
	Behind    bool // whether the folder lacks entries that this member has acknowledged
}

// readFolder describes the content of the folder. If the data cannot be read, the result has no member id, and etcd
// itself reports the problem later.
func (c *MemberConfig) readFolder() folder {
	if !c.hasData() {
		return folder{Empty: true}
	}
	out := folder{}
	if meta, err := walMetadata(filepath.Join(c.Dir, memberFolder, "wal")); err == nil {
		out.MemberID, out.ClusterID = meta.GetNodeID(), meta.GetClusterID()
	}
	_, err := os.Stat(filepath.Join(c.Dir, memberFolder, behindName))
	out.Behind = err == nil
	return out
}

// walMetadata reads the metadata that etcd writes at the beginning of each file of its log.
func walMetadata(dir string) (*pb.Metadata, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(names) == 0 {
		return nil, errors.Join(err, fmt.Errorf("%s has no log", dir))
	}
	slices.Sort(names)
	f, err := os.Open(names[0])
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the file was only opened for reading
	decoder := wal.NewDecoder(fileutil.NewFileReader(f))
	for {
		var record walpb.Record
		if err := decoder.Decode(&record); err != nil {
			return nil, fmt.Errorf("%s: %w", names[0], err)
		}
		switch record.GetType() {
		case wal.CrcType:
			decoder.UpdateCRC(record.GetCrc())
		case wal.MetadataType:
			meta := &pb.Metadata{}
			return meta, proto.Unmarshal(record.GetData(), meta)
		default:
			return nil, fmt.Errorf("%s: no metadata before its entries", names[0])
		}
	}
}

// asideFreeBytes is the amount of free space that must remain when old data is set aside. etcd needs it for a new
// database, and for its log, which it writes in files of 64 MiB.
const asideFreeBytes = 512 << 20

// setAside renames the data of a member that is no longer in the cluster. It does so with a single rename, so that
// after a crash the folder contains either all of the data or none of it. If the disk is too small to keep the data,
// setAside deletes it instead. Nothing is lost, because a quorum of the other members has all committed data.
func (c *MemberConfig) setAside(f folder) error {
	name := fmt.Sprintf("%s%x-%s", asidePrefix, f.MemberID, time.Now().UTC().Format(snapshotTime))
	err := c.removeAside() // removes data that an earlier replacement has set aside
	if err == nil {
		err = os.Rename(filepath.Join(c.Dir, memberFolder), filepath.Join(c.Dir, name))
	}
	if err == nil {
		err = syncFolder(c.Dir)
	}
	var disk syscall.Statfs_t
	if err == nil {
		err = syscall.Statfs(c.Dir, &disk)
	}
	if err == nil && disk.Bavail*uint64(disk.Bsize) < asideFreeBytes { //nolint:gosec // the block size is never negative
		err = c.removeAside()
	}
	if err != nil {
		return fmt.Errorf("set the data of the former member aside: %w", err)
	}
	return nil
}

// removeAside deletes the data that was set aside. The caller calls it once this member votes, because all committed
// data is then on a quorum again.
func (c *MemberConfig) removeAside() error {
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), asidePrefix) {
			errs = append(errs, os.RemoveAll(filepath.Join(c.Dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// behind is the content of the file behindName, as JSON.
type behind struct {
	Time  time.Time `json:"time"`
	Words string    `json:"words"` // etcd's message
}

// markBehind stores the message in which etcd says that the folder lacks entries. It is called just before etcd gives
// up.
func (c *MemberConfig) markBehind(words string) error {
	return writeSynced(filepath.Join(c.Dir, memberFolder), behindName, behind{Time: time.Now().UTC(), Words: words})
}

// behindWords returns the message that markBehind stored.
func (c *MemberConfig) behindWords() string {
	content, err := readSmall(filepath.Join(c.Dir, memberFolder, behindName))
	var said behind
	if err != nil || json.Unmarshal(content, &said) != nil {
		return "its words are lost"
	}
	return said.Words
}

// syncFolder makes sure that renames in a folder survive a power cut.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
