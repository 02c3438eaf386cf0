package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"sheaf.dev/sheaf/internal/base/crc32c"
)

// FormatVersion is the version of all files that this program writes, except segments of segmentVersionRequests and
// manifests of manifestVersionHistory.
const FormatVersion = 1

// These are sizes in bytes.
const (
	SegmentHeaderBytes = 128 // frames begin here
	FrameHeaderBytes   = 80

	MagicBytes = 8
	BlockBytes = 4096 // a structure that is stored twice has each copy in blocks of its own
)

// errFrameHeader, ErrFrameContent and ErrCorrupt are the errors of decoding. errFrameHeader says that the marker, the
// lengths or the header of a frame are bad: there is a hole, or a torn or stale block. ErrFrameContent says that
// attributes, data or padding are bad; the header is whole, so id, index and length are known. ErrCorrupt says that
// any other structure is not as it was written.
var (
	errFrameHeader  = errors.New("frame header is bad")
	ErrFrameContent = errors.New("entry content is bad")
	ErrCorrupt      = errors.New("stored bytes are bad")
)

// These are the errors of files. Test for them with errors.Is, and for damage with errors.As on *DamageError.
var (
	ErrNoSpace = errors.New("no free space on the volume")
	// ErrShortage says that the system lacked file descriptors or memory, so that a file was not opened, created or
	// renamed. Nothing was written.
	ErrShortage      = errors.New("the system lacks file descriptors or memory for now")
	ErrFormatVersion = errors.New("format version is newer than this program")
	ErrForeign       = errors.New("file belongs to another store or group")
	// ErrClosed says that a log, or the reader or writer of a blob, is closed.
	ErrClosed = errors.New("log is closed")
)

var slicing = makeSlicing()

// Checksum returns the CRC-32C of b.
func Checksum(b []byte) uint32 { return crc32.Update(0, crc32c.Table, b) }

// makeSlicing makes the eight tables of the slicing-by-8 method (Kounavis and Berry, 2005).
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

// checksumWord continues a CRC with the 8 bytes of a little-endian number. It takes a number instead of a slice
// because package crc32 would move a slice of a local array to the heap, once for each frame.
func checksumWord(crc uint32, word uint64) uint32 {
	w := word ^ uint64(^crc)
	return ^(slicing[7][w&0xff] ^ slicing[6][w>>8&0xff] ^ slicing[5][w>>16&0xff] ^ slicing[4][w>>24&0xff] ^
		slicing[3][w>>32&0xff] ^ slicing[2][w>>40&0xff] ^ slicing[1][w>>48&0xff] ^ slicing[0][w>>56])
}

// headBytes is the length of the head that manifest, mark, hint and blob share: magic (8), version (4), CRC (4). The
// CRC covers bytes 0 to 12, and 16 to the end.
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

// checkHead checks magic, CRC and then the version of a structure that fills b.
func checkHead(b []byte, magic string) error {
	_, err := checkHeadOf(b, magic, FormatVersion)
	return err
}

// checkHeadOf does what checkHead does, for a structure of which this program knows the versions up to known. It
// returns the version of b.
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

// checkVersion is called only after the checksum was verified: an unknown version is then not damage, but really a
// different version. The argument known is the newest version that this program reads; the oldest one is 1.
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
