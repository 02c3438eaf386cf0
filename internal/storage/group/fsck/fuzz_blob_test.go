package fsck

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"path/filepath"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/test/grouptest"
)

// repair corrects the checksum in b, so that the fuzzer reaches the checks that follow it.
func repair(b []byte) []byte {
	const head = 16 // magic, version, and the checksum of everything else
	if len(b) < head {
		return b
	}
	b = bytes.Clone(b)
	table := crc32.MakeTable(crc32.Castagnoli)
	binary.LittleEndian.PutUint32(b[12:], crc32.Update(crc32.Checksum(b[:12], table), table, b[head:]))
	return b
}

func FuzzBlob(f *testing.F) {
	grouptest.AddGolden(f, filepath.Join("..", "testdata", "v1"), format.BlobPrefix, func(b []byte) { f.Add(b, true) })
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= format.BlobHeaderBytes {
			b = append(repair(b[:format.BlobHeaderBytes]), b[format.BlobHeaderBytes:]...)
		}
		buffer := segio.FrameBuffer()
		grouptest.Bounded(t, len(b), func() {
			if _, err := segio.CheckBlob(grouptest.AlignedReader{Image: b}, int64(len(b)), nil, buffer); err != nil {
				t.Skip(err)
			}
		})
	})
}
