package volume

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"syscall"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// The superblock file has two copies of one block, little-endian:
//
//	offset  0        8       12       16      32       48           56        64      66      319     320    344        368   4092     4096
//	       +--------+--------+--------+-------+--------+------------+---------+-------+-------+-------+------+----------+-----+--------+
//	       | magic  | format | flags  | store | volume | generation | created | shard | shard | zero  | step |registered| zero| CRC32C |
//	       |        | version|        | UUID  | UUID   |            | Unix ns | bytes | name  |       |      |   step   |     |        |
//	       +--------+--------+--------+-------+--------+------------+---------+-------+-------+-------+------+----------+-----+--------+
//
// A step consists of its number (8 bytes) and its nonce (16 bytes). Bit 0 of the flags says that the volume has a
// journal (internal/storage/journal), which may hold data that is not stored anywhere else yet.
//
// This program also reads format versions 1 and 2, but does not write them. In these versions, there are zeros in place
// of the flags and steps. Version 2 means that the volume has a journal, and version 1 that it has none.
//
// A copy is valid if and only if the CRC32C of its bytes 0 to 4091 is the one stored, the magic is right, the format
// version is known, the shard's name has 1 to 253 bytes without a zero, no unknown flag is set, and all bytes called
// zero are zero. Magic, format version and CRC remain at their places in all future formats. docs/format-volume.md also
// describes this.
const (
	// FormatVersion is the newest superblock version that this program can read, and the version that it writes.
	FormatVersion = 3
	// oldJournalVersion is the old superblock version of volumes with a journal.
	oldJournalVersion = 2

	flagJournal = 1

	copyBytes  = 4096
	copyCount  = 2
	fileBytes  = copyCount * copyBytes
	magic      = "SHEAFVOL"
	versionAt  = 8
	flagsAt    = 12
	storeAt    = 16
	volumeAt   = 32
	generateAt = 48
	createdAt  = 56
	shardLenAt = 64
	shardAt    = 66
	stepAt     = 320
	registerAt = stepAt + stepBytes
	stepBytes  = 8 + 16
	crcAt      = copyBytes - 4
)

// encode returns the bytes of one copy of the superblock.
func (s *Superblock) encode() []byte {
	b := make([]byte, copyBytes)
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[versionAt:], FormatVersion)
	if s.Journal {
		binary.LittleEndian.PutUint32(b[flagsAt:], flagJournal)
	}
	copy(b[storeAt:], s.Store[:])
	copy(b[volumeAt:], s.Volume[:])
	binary.LittleEndian.PutUint64(b[generateAt:], s.Generation)
	binary.LittleEndian.PutUint64(b[createdAt:], uint64(s.Created))
	binary.LittleEndian.PutUint16(b[shardLenAt:], uint16(len(s.Shard)))
	copy(b[shardAt:shardAt+ShardNameBytesMax], s.Shard)
	s.Step.encode(b[stepAt:])
	s.Registered.encode(b[registerAt:])
	binary.LittleEndian.PutUint32(b[crcAt:], crc32c.Of(b[:crcAt]))
	return b
}

// decode decodes one copy of the superblock. The argument b may hold any bytes. If the CRC is wrong, decode never
// returns ErrFormatVersion, because a flipped bit in the version is damage and not a newer format.
func decode(b []byte) (Superblock, error) {
	if len(b) != copyBytes {
		return Superblock{}, fmt.Errorf("has %d of %d bytes", len(b), copyBytes)
	}
	if string(b[:len(magic)]) != magic {
		return Superblock{}, fmt.Errorf("begins with %q instead of %q", b[:len(magic)], magic)
	}
	version := binary.LittleEndian.Uint32(b[versionAt:])
	stored, computed := binary.LittleEndian.Uint32(b[crcAt:]), crc32c.Of(b[:crcAt])
	if stored != computed {
		return Superblock{}, fmt.Errorf("has CRC32C %08x instead of %08x (format version %d)", computed, stored, version)
	}
	if version == 0 {
		return Superblock{}, errors.New("has format version 0, which never was")
	}
	if version > FormatVersion {
		return Superblock{}, fmt.Errorf("%w: format version %d, known is %d: use the program that wrote it or a newer one",
			ErrFormatVersion, version, FormatVersion)
	}
	for _, at := range []int{generateAt, stepAt, registerAt} {
		if n := binary.LittleEndian.Uint64(b[at:]); n > numberMax && (version == FormatVersion || at == generateAt) {
			return Superblock{}, fmt.Errorf("has generation or step %d, which no volume reaches", n)
		}
	}
	length := int(binary.LittleEndian.Uint16(b[shardLenAt:]))
	if length == 0 || length > ShardNameBytesMax || bytes.IndexByte(b[shardAt:shardAt+length], 0) >= 0 {
		return Superblock{}, fmt.Errorf("has a shard's name of %d bytes or with a zero in it", length)
	}
	flags, storedTo := binary.LittleEndian.Uint32(b[flagsAt:]), shardAt+length
	journal := flags&flagJournal != 0
	if version < FormatVersion {
		journal = version == oldJournalVersion
	} else {
		flags &^= flagJournal
		storedTo = registerAt + stepBytes
	}
	if flags != 0 || !allZero(b[shardAt+length:stepAt]) || !allZero(b[storedTo:crcAt]) {
		return Superblock{}, errors.New("has bytes that are not zero where nothing is stored")
	}
	return Superblock{
		Store:      uuid.UUID(b[storeAt:volumeAt]),
		Volume:     uuid.UUID(b[volumeAt:generateAt]),
		Generation: binary.LittleEndian.Uint64(b[generateAt:]),
		Created:    int64(binary.LittleEndian.Uint64(b[createdAt:])),
		Shard:      string(b[shardAt : shardAt+length]),
		Journal:    journal,
		Step:       decodeStep(b[stepAt:]),
		Registered: decodeStep(b[registerAt:]),
	}, nil
}

func (s Step) encode(b []byte) {
	binary.LittleEndian.PutUint64(b, s.Number)
	copy(b[8:stepBytes], s.Nonce[:])
}

func decodeStep(b []byte) Step {
	return Step{Number: binary.LittleEndian.Uint64(b), Nonce: uuid.UUID(b[8:stepBytes])}
}

func allZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// numberMax is larger than any generation or step that a volume can reach. A greater number in a superblock counts as
// damage. Otherwise a start, which adds to the number, could make it overflow.
const numberMax = 1 << 62

// copies is the content of the superblock file.
type copies struct {
	// superblock is the content of the valid copy. If both copies are valid, it is the content of the one with the
	// higher generation or, if the generations are equal, with the higher step.
	superblock Superblock
	bad        [copyCount]error // for each copy, the reason why it is damaged, or nil if it is valid
	// older is the number of the copy that must be overwritten first: the damaged copy or, if both are valid, the older
	// one. If both are equal, it is the number of the last copy.
	older int
}

// VerifySuperblock reads the superblock of a volume without locking it. One valid copy is enough. The result damages
// has one error, with file and offset, for each damaged copy, even if the other copy is valid. VerifySuperblock returns
// ErrNoVolume, ErrDamaged, ErrFormatVersion, or an error from reading the file.
func VerifySuperblock(fsys vfs.FS, dir string) (sb Superblock, damages []error, err error) {
	state, err := readCopies(dir, fsys.Open)
	if err != nil {
		return Superblock{}, nil, fmt.Errorf("read volume %s: %w", dir, err)
	}
	for i, bad := range state.bad {
		if bad != nil {
			damages = append(damages, fmt.Errorf("%s offset %d: copy %d of the superblock %w: the next start heals it",
				path.Join(dir, superblockName), i*copyBytes, i, bad))
		}
	}
	return state.superblock, damages, nil
}

// FreshSuperblock reads the superblock from the device, bypassing the page cache if the file system supports that, so
// that the result does not come from an earlier read. It returns the same errors as VerifySuperblock.
func FreshSuperblock(fsys vfs.FS, dir string) (Superblock, error) {
	state, err := readCopies(dir, fsys.OpenDirect)
	if err != nil {
		return Superblock{}, fmt.Errorf("read volume %s: %w", dir, err)
	}
	return state.superblock, nil
}

// readCopies reads and checks both copies. It calls open to open the file.
func readCopies(dir string, open func(name string) (vfs.File, error)) (copies, error) {
	name := path.Join(dir, superblockName)
	f, err := open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return copies{}, fmt.Errorf("%w: there is no file %s: is the disk mounted, is the path right?", ErrNoVolume, name)
	}
	if err != nil {
		return copies{}, err
	}
	var each [copyCount]Superblock
	var bad [copyCount]error
	for i := range each {
		each[i], bad[i] = readCopy(f, i)
	}
	if err := f.Close(); err != nil {
		return copies{}, err
	}
	a, b := each[0], each[1] // a damaged copy is read as the zero Superblock
	isLater := b.Generation > a.Generation || b.Generation == a.Generation && b.Step.Number > a.Step.Number
	switch {
	case errors.Is(bad[0], ErrFormatVersion):
		return copies{}, fmt.Errorf("%s: %w", name, bad[0])
	case errors.Is(bad[1], ErrFormatVersion):
		return copies{}, fmt.Errorf("%s: %w", name, bad[1])
	case bad[0] != nil && bad[1] != nil:
		return copies{}, fmt.Errorf("%w: %s: copy 0 %w, copy 1 %w: restore this file from a backup, or give the shard "+
			"an empty disk and let it rejoin", ErrDamaged, name, bad[0], bad[1])
	case bad[0] == nil && bad[1] == nil && (a.Store != b.Store || a.Volume != b.Volume || a.Shard != b.Shard):
		return copies{}, fmt.Errorf(
			"%w: %s: its two copies are valid but of different volumes (%s and %s): restore this file "+
				"from a backup", ErrDamaged, name, a.Volume, b.Volume)
	case bad[0] != nil || isLater:
		return copies{superblock: b, bad: bad, older: 0}, nil //nolint:nilerr // one valid copy is enough
	default:
		return copies{superblock: a, bad: bad, older: 1}, nil
	}
}

// readCopy reads one copy in a separate read, so that an unreadable sector affects only one copy.
func readCopy(f vfs.File, number int) (Superblock, error) {
	content := vfs.AlignedBytes(copyBytes)
	n, err := f.ReadAt(content, int64(number)*copyBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return Superblock{}, fmt.Errorf("cannot be read: %w", err)
	}
	return decode(content[:n])
}

// replaceSuperblock durably replaces the superblock. It writes a new file, syncs and renames it, and syncs the
// folder. If the disk has no space for a new file, it overwrites the existing file, because a full disk must not keep
// a shard from serving reads. It then overwrites the older or damaged copy first and, after a sync, the other copy.
// The caller holds v.writing, or no other goroutine has access to the volume yet.
func (v *Volume) replaceSuperblock(old copies, next Superblock) (err error) {
	v.tried = next
	defer func() {
		if err == nil {
			v.written = next
		}
	}()
	one := next.encode()
	name := path.Join(v.dir, superblockName)
	if err = vfs.WriteAside(v.fs, name, bytes.Repeat(one, copyCount)); err == nil {
		return v.fs.SyncDir(v.dir)
	}
	if !errors.Is(err, syscall.ENOSPC) || old.superblock.Generation == 0 {
		return err
	}
	v.logger.Warn("no space to write the superblock aside, it is written in place", "volume", v.dir, "error", err)
	return v.writeInPlace(name, one, old.older)
}

// writeInPlace overwrites both copies in the existing file, and syncs after each of them. It begins with the copy whose
// number is passed as first.
func (v *Volume) writeInPlace(name string, one []byte, first int) (err error) {
	f, err := v.fs.OpenWrite(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, i := range [copyCount]int{first, copyCount - 1 - first} {
		if _, err := f.WriteAt(one, int64(i)*copyBytes); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return nil
}
