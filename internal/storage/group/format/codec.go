package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"sheaf.dev/sheaf/internal/base/crc32c"
)

// FormatVersion is the version of all files that this program writes, except segments with segmentVersionRequests and
// manifests with manifestVersionHistory.
const FormatVersion = 1

// These are sizes in bytes.
const (
	SegmentHeaderBytes = 128 // the offset at which frames begin
	FrameHeaderBytes   = 80

	MagicBytes = 8
	BlockBytes = 4096 // copies of a structure that is stored twice never share a block of this size
)

// These are the decoding errors. errFrameHeader means that a frame's marker, lengths or header are bad, for example
// because of a hole, or a torn or stale block. ErrFrameContent means that a frame's attributes, data or padding are
// bad, while its header is valid, so that id, index and length are known. ErrCorrupt means that any other structure
// differs from what was written.
var (
	errFrameHeader  = errors.New("frame header is bad")
	ErrFrameContent = errors.New("entry content is bad")
	ErrCorrupt      = errors.New("stored bytes are bad")
)

// These are the errors of reading and decoding files. Callers test for them with errors.Is, and for damage with
// errors.As and a *DamageError.
var (
	ErrNoSpace = errors.New("no free space on the volume")
	// ErrShortage means that the system lacked file descriptors or memory, so that a file could not be opened, created
	// or renamed. Nothing was written.
	ErrShortage      = errors.New("the system lacks file descriptors or memory for now")
	ErrFormatVersion = errors.New("format version is newer than this program")
	ErrForeign       = errors.New("file belongs to another store or group")
	// ErrClosed means that a log, or a blob's reader or writer, is closed.
	ErrClosed = errors.New("log is closed")
)

var slicing = makeSlicing()

// Checksum returns the CRC-32C of b, like crc32c.Of.
func Checksum(b []byte) uint32 { return crc32.Update(0, crc32c.Table, b) }

// makeSlicing creates the eight tables for the slicing-by-8 method (Kounavis and Berry, 2005).
func makeSlicing() *[8]crc32.Table {
	var t [8]crc32.Table
	t[0] = *crc32c.Table
	for i := range 256 {
		c := t[0][i]
		for k := 1; k < 8; k++ {
			c = t[0][c&0xff] ^ c>>8
			t[k][i] = c
		}
	}
	return &t
}

// checksumWord continues a CRC with the 8 bytes of a little-endian number. It takes a number instead of a slice because
// package crc32 would make a slice of a local array escape to the heap, once for each frame.
func checksumWord(crc uint32, word uint64) uint32 {
	w := word ^ uint64(^crc)
	return ^(slicing[7][w&0xff] ^ slicing[6][w>>8&0xff] ^ slicing[5][w>>16&0xff] ^ slicing[4][w>>24&0xff] ^
		slicing[3][w>>32&0xff] ^ slicing[2][w>>40&0xff] ^ slicing[1][w>>48&0xff] ^ slicing[0][w>>56])
}

// headBytes is the length of the head with which manifest, mark, hint and blob begin: magic (8 bytes), version (4) and
// CRC (4). The CRC covers bytes 0 to 11, and all bytes from 16 on.
const headBytes = 16

func putHead(b []byte, magic string) { putHeadOf(b, magic, FormatVersion) }

func putHeadOf(b []byte, magic string, version uint32) {
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], version)
	binary.LittleEndian.PutUint32(b[12:], headChecksum(b))
}

func headChecksum(b []byte) uint32 {
	return crc32.Update(Checksum(b[:12]), crc32c.Table, b[headBytes:])
}

// checkHead checks the magic, the CRC and the version, in this order, of a structure that fills b.
func checkHead(b []byte, magic string) error {
	_, err := checkHeadOf(b, magic, FormatVersion)
	return err
}

// checkHeadOf is like checkHead, for a structure whose versions up to known are readable. It returns the structure's
// version.
func checkHeadOf(b []byte, magic string, known uint32) (version uint32, err error) {
	if len(b) < headBytes {
		return 0, fmt.Errorf("%w: %d bytes are too few", ErrCorrupt, len(b))
	}
	if string(b[:MagicBytes]) != magic {
		return 0, fmt.Errorf("%w: magic is %q, not %q", ErrCorrupt, b[:MagicBytes], magic)
	}
	if binary.LittleEndian.Uint32(b[12:]) != headChecksum(b) {
		return 0, fmt.Errorf("%w: checksum", ErrCorrupt)
	}
	version = binary.LittleEndian.Uint32(b[8:])
	return version, checkVersion(version, known)
}

// checkVersion returns ErrFormatVersion for a version above known, the newest version that this code can read. It
// must be called only if the checksum is right, because otherwise a wrong version would mean damage. Version 0 is
// never valid.
func checkVersion(version, known uint32) error {
	switch {
	case version > known:
		return fmt.Errorf("%w: it is %d, this program knows %d: use a newer program", ErrFormatVersion, version, known)
	case version == 0:
		return fmt.Errorf("%w: version %d was never written", ErrCorrupt, version)
	}
	return nil
}

// IsZero reports whether all bytes are zero.
func IsZero(b []byte) bool {
	for len(b) >= 32 {
		w := binary.LittleEndian.Uint64(b) | binary.LittleEndian.Uint64(b[8:]) |
			binary.LittleEndian.Uint64(b[16:]) | binary.LittleEndian.Uint64(b[24:])
		if w != 0 {
			return false
		}
		b = b[32:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
