package segio

import (
	"path/filepath"
	"reflect"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/grouptest"
)

func FuzzFrameReader(f *testing.F) {
	grouptest.AddGolden(f, filepath.Join("..", "testdata", "v1"), format.SegmentPrefix, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < format.SegmentHeaderBytes || len(b) > 1<<20 {
			return
		}
		id := format.SegmentID{1, 0x5e}
		grouptest.Bounded(t, len(b)+4<<20, func() {
			end := int64(len(b))
			a := walk(t, NewFrameReaderBytes(b, id, format.SegmentHeaderBytes), format.SegmentHeaderBytes, end)
			c := walk(t, NewFrameReader(grouptest.AlignedReader{Image: b}, id, format.SegmentHeaderBytes, end),
				format.SegmentHeaderBytes, end)
			if !reflect.DeepEqual(a, c) {
				t.Fatal("memory and file differ")
			}
		})
	})
}
