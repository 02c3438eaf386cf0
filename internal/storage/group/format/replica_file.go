package format

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	iofs "io/fs"
	"path"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// A replica file consists of two copies of this block:
//
//	0       8         12    16        24            40           56           72      73
//	├ magic ┼ version ┼ CRC ┼ Raft id ┼ volume UUID ┼ store UUID ┼ group UUID ┼ state ┼ zeros to 4096 ┤
const (
	ReplicaMagic = "SHEAFREP"

	replicaJoining        = 1
	replicaMember         = 2
	replicaFounderJoining = 3
	replicaFounder        = 4

	// ReplicaFileBytes is the size of the replica file. It has two blocks, so that the two copies never share a sector.
	ReplicaFileBytes = 2 * BlockBytes
)

// ReplicaFile identifies the incarnation of a replica in a group's folder.
type ReplicaFile struct {
	RaftID uint64 // never zero, and never used again for another incarnation
	// Volume is the volume on which the file was created. If the file is found on another volume, it is a copy, and the
	// replica in its folder must not run.
	Volume uuid.UUID
	Store  uuid.UUID
	Group  uuid.UUID
	// Joining means that the folder holds no valid data yet. An Install makes the replica a member.
	Joining bool
	// Founder means that the replica is installed from the source of a restore, and that no shard is known to have
	// reported the group to etcd. The replica is the only voter of its own membership, and has not served any call. If
	// another shard has reported the group, the replica is not a member, whatever its own membership says.
	Founder bool
}

// state returns the value of the state byte.
func (f ReplicaFile) state() byte {
	switch {
	case f.Founder && f.Joining:
		return replicaFounderJoining
	case f.Founder:
		return replicaFounder
	case f.Joining:
		return replicaJoining
	}
	return replicaMember
}

// NewRaftID returns a random Raft id for a new incarnation. The id is odd, and therefore never zero.
func NewRaftID() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // rand.Read never returns an error
	return binary.LittleEndian.Uint64(b[:]) | 1
}

// Encode returns the content of the replica file.
func (f ReplicaFile) Encode() ([]byte, error) {
	if f.RaftID == 0 {
		return nil, fmt.Errorf("%w: replica file without a Raft id", ErrCorrupt)
	}
	b := make([]byte, BlockBytes, ReplicaFileBytes)
	binary.LittleEndian.PutUint64(b[16:], f.RaftID)
	copy(b[24:], f.Volume[:])
	copy(b[40:], f.Store[:])
	copy(b[56:], f.Group[:])
	b[72] = f.state()
	putHead(b, ReplicaMagic)
	return append(b, b...), nil
}

// DecodeReplicaFile is the inverse of Encode. The result bad says why each copy is invalid. Both of its elements are
// nil if the file is intact. The error is ErrCorrupt or ErrFormatVersion.
func DecodeReplicaFile(b []byte) (f ReplicaFile, bad [2]error, err error) {
	var copies [2]ReplicaFile
	for i := range copies {
		if len(b) < (i+1)*BlockBytes {
			bad[i] = fmt.Errorf("%w: the file ends before", ErrCorrupt)
			continue
		}
		copies[i], bad[i] = decodeReplicaCopy(b[i*BlockBytes : (i+1)*BlockBytes])
	}
	if len(b) > ReplicaFileBytes && bad[1] == nil {
		bad[1] = fmt.Errorf("%w: the file has %d bytes, not %d", ErrCorrupt, len(b), ReplicaFileBytes)
	}
	switch {
	case bad[0] != nil && bad[1] != nil:
		return ReplicaFile{}, bad, fmt.Errorf("no copy of the replica file can be used: %w; %w", bad[0], bad[1])
	case bad[0] != nil:
		return copies[1], bad, nil //nolint:nilerr // bad holds the error of the first copy
	case bad[1] == nil && copies[0] != copies[1]:
		// The file is always replaced as a whole with two equal copies. If the copies differ, neither can be trusted.
		err := fmt.Errorf("%w: the copies of the replica file differ", ErrCorrupt)
		return ReplicaFile{}, [2]error{err, err}, err
	}
	return copies[0], bad, nil
}

func decodeReplicaCopy(b []byte) (ReplicaFile, error) {
	if err := checkHead(b, ReplicaMagic); err != nil {
		return ReplicaFile{}, err
	}
	state := b[72]
	f := ReplicaFile{RaftID: binary.LittleEndian.Uint64(b[16:]),
		Joining: state == replicaJoining || state == replicaFounderJoining,
		Founder: state == replicaFounder || state == replicaFounderJoining}
	copy(f.Volume[:], b[24:])
	copy(f.Store[:], b[40:])
	copy(f.Group[:], b[56:])
	if f.RaftID == 0 || state < replicaJoining || state > replicaFounder || !IsZero(b[73:]) {
		return ReplicaFile{}, fmt.Errorf("%w: Raft id, state or reserved bytes", ErrCorrupt)
	}
	return f, nil
}

// ReadReplicaFile reads the replica file of a group's folder. The result found is false if there is no such file.
// This is the case in all folders that were created before groups could have several replicas. The replica is then
// the manifest's sole voter. If the file says that the replica is joining, but the folder has a manifest, the replica
// counts as a member, because a crash happened between writing the two files. ReadReplicaFile ignores a damaged copy
// if the other one is valid, because VerifyDir reports it. It returns ErrCorrupt, ErrFormatVersion, or an error from
// reading the file.
func ReadReplicaFile(fs vfs.FS, dir string) (f ReplicaFile, found bool, err error) {
	b, err := ReadAll(fs, path.Join(dir, ReplicaName), 2*ReplicaFileBytes)
	if errors.Is(err, iofs.ErrNotExist) {
		return ReplicaFile{}, false, nil
	}
	if err == nil {
		f, _, err = DecodeReplicaFile(b)
	}
	if err != nil {
		return ReplicaFile{}, false, fmt.Errorf("%s: %w", path.Join(dir, ReplicaName), err)
	}
	if f.Joining {
		_, err := fs.Stat(path.Join(dir, ManifestName))
		if err != nil && !errors.Is(err, iofs.ErrNotExist) {
			return ReplicaFile{}, false, err
		}
		f.Joining = err != nil
	}
	return f, true, nil
}

// WriteReplicaFile durably creates or replaces the replica file. If the file already has this content, only the folder
// is synced.
func WriteReplicaFile(fs vfs.FS, dir string, f ReplicaFile) error {
	b, err := f.Encode()
	if err != nil {
		return fmt.Errorf("%s: %w", path.Join(dir, ReplicaName), err)
	}
	if err := fs.MkdirAll(dir); err != nil {
		return fmt.Errorf("%s: %w", path.Join(dir, ReplicaName), MarkShortage(err))
	}
	if old, err := ReadAll(fs, path.Join(dir, ReplicaName), 2*ReplicaFileBytes); err == nil && bytes.Equal(old, b) {
		return fs.SyncDir(dir) // the file's name may not be durable yet
	}
	if err := WriteReplace(fs, dir, ReplicaName, b); err != nil {
		return fmt.Errorf("%s: %w", path.Join(dir, ReplicaName), err)
	}
	return nil
}
