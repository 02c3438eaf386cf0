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
// A step is its number, 8 bytes, and its nonce, 16 bytes. Bit 0 of the flags says that the volume has a journal that
// may hold data that is stored nowhere else yet (internal/storage/journal).
//
// This program also reads format versions 1 and 2, but does not write them. They have zeros in place of flags and
// steps. A volume with a journal had version 2, and a volume without a journal had version 1.
//
// A copy is valid if and only if the CRC32C of its bytes 0 to 4091 is the one stored, the magic is right, the format
// version is known, the shard's name has 1 to 253 bytes without a zero, no unknown flag is set, and all bytes called
// zero are zero. Magic, format version and CRC remain at their places in all future formats. docs/format-volume.md
// also describes this.
const (
	// FormatVersion is the greatest superblock version that this program can read, and the one that it writes.
	FormatVersion = 3
	// oldJournalVersion was the version of volumes with a journal.
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

// encode returns the bytes of one copy.
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

// decode decodes one copy; b may hold any bytes. It returns ErrFormatVersion only if the CRC is right: a flipped bit in
// the version is damage, not a newer format.
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

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// numberMax is above all generations and steps that a volume can reach. A greater number in a superblock is damage: a
// start adds to that number, and the sum could overflow.
const numberMax = 1 << 62

// copies is the content of the superblock file.
type copies struct {
	// superblock is that of the valid copy; if both copies are valid, that of the copy with the later generation and
	// step.
	superblock Superblock
	bad        []badCopy // the copies that are damaged
	older      int       // the copy that is damaged or older; the last copy if both are equal
}

// badCopy is a damaged copy.
type badCopy struct {
	copy int // 0 or 1
	err  error
}

// VerifySuperblock reads the superblock of a volume without locking it. One valid copy is enough. damages has one
// error, with file and offset, for each damaged copy, even if the other copy is valid. It returns ErrNoVolume,
// ErrDamaged or ErrFormatVersion, or the error of a read.
func VerifySuperblock(fsys vfs.FS, dir string) (sb Superblock, damages []error, err error) {
	state, err := readCopies(fsys, dir)
	if err != nil {
		return Superblock{}, nil, fmt.Errorf("read volume %s: %w", dir, err)
	}
	for _, bad := range state.bad {
		damages = append(damages, fmt.Errorf("%s offset %d: copy %d of the superblock %w: the next start heals it",
			path.Join(dir, superblockName), bad.copy*copyBytes, bad.copy, bad.err))
	}
	return state.superblock, damages, nil
}

// readCopies reads and checks both copies.
func readCopies(fsys vfs.FS, dir string) (copies, error) { return copiesFrom(dir, fsys.Open) }

// copiesFrom does what readCopies does, with another function to open the file.
func copiesFrom(dir string, open func(name string) (vfs.File, error)) (copies, error) {
	name := path.Join(dir, superblockName)
	blocks, err := readBlocks(name, open)
	if errors.Is(err, fs.ErrNotExist) {
		return copies{}, fmt.Errorf("%w: there is no file %s: is the disk mounted, is the path right?", ErrNoVolume, name)
	}
	if err != nil {
		return copies{}, err
	}
	var state copies
	var valid []Superblock
	for i, block := range blocks {
		sb, err := decode(block.content)
		if block.err != nil {
			err = block.err
		}
		if errors.Is(err, ErrFormatVersion) {
			return copies{}, fmt.Errorf("%s: %w", name, err)
		}
		if err != nil {
			state.bad = append(state.bad, badCopy{i, err})
			continue
		}
		valid = append(valid, sb)
	}
	state.older = copyCount - 1
	switch len(valid) {
	case 0:
		return copies{}, fmt.Errorf("%w: %s: copy 0 %w, copy 1 %w: restore this file from a backup, or give the shard "+
			"an empty disk and let it rejoin", ErrDamaged, name, state.bad[0].err, state.bad[1].err)
	case 1:
		state.superblock, state.older = valid[0], state.bad[0].copy
		return state, nil
	}
	a, b := valid[0], valid[1]
	if a.Store != b.Store || a.Volume != b.Volume || a.Shard != b.Shard {
		return copies{}, fmt.Errorf(
			"%w: %s: its two copies are valid but of different volumes (%s and %s): restore this file "+
				"from a backup", ErrDamaged, name, a.Volume, b.Volume)
	}
	state.superblock = a
	if b.Generation > a.Generation || b.Generation == a.Generation && b.Step.Number > a.Step.Number {
		state.superblock, state.older = b, 0
	}
	return state, nil
}

// block is the content of one copy, as it was read.
type block struct {
	content []byte
	err     error // why the block could not be read
}

// readBlocks reads the copies separately, so that an unreadable sector affects only its own copy.
func readBlocks(name string, open func(name string) (vfs.File, error)) (blocks [copyCount]block, err error) {
	f, err := open(name)
	if err != nil {
		return blocks, err
	}
	for i := range blocks {
		content := vfs.AlignedBytes(copyBytes)
		n, err := f.ReadAt(content, int64(i)*copyBytes)
		blocks[i].content = content[:n]
		if err != nil && !errors.Is(err, io.EOF) {
			blocks[i].err = fmt.Errorf("cannot be read: %w", err)
		}
	}
	return blocks, f.Close()
}

// replaceSuperblock makes the superblock durable: it writes a new file, syncs and renames it, and syncs the folder. If
// the disk has no space for a new file, it overwrites the existing file: first the older or damaged copy, then, after a
// sync, the other copy. A full disk must not keep a shard from reading. The caller holds the mutex writing, or no other
// goroutine knows the volume yet.
func (v *Volume) replaceSuperblock(old copies, next Superblock) (err error) {
	v.tried = next
	defer func() {
		if err == nil {
			v.written = next
		}
	}()
	one := next.encode()
	temp, name := path.Join(v.dir, superblockTempName), path.Join(v.dir, superblockName)
	if err := v.fs.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = v.writeAside(temp, bytes.Repeat(one, copyCount))
	if err == nil {
		err = v.fs.Rename(temp, name)
	}
	if err == nil {
		return v.fs.SyncDir(v.dir)
	}
	if errRemove := v.fs.Remove(temp); errRemove != nil && !errors.Is(errRemove, fs.ErrNotExist) {
		v.logger.Warn("a file that is not needed could not be removed", "file", temp, "error", errRemove)
	}
	if !errors.Is(err, syscall.ENOSPC) || old.superblock.Generation == 0 {
		return err
	}
	v.logger.Warn("no space to write the superblock aside, it is written in place", "volume", v.dir, "error", err)
	return v.writeInPlace(name, one, old.older)
}

// writeAside makes a new file with the content. The content is durable on return, but the name is not.
func (v *Volume) writeAside(name string, content []byte) error {
	f, err := v.fs.Create(name)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// writeInPlace writes one copy after the other into the existing file.
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
