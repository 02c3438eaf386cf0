package layouts

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/internal/vfs"
)

const (
	rawReaders   = 4
	rawReadBytes = 1 << 20
)

// rawRate reads files past the page cache, large pieces and several at a time, and gives bytes per second: what the device gives at
// most. ok: the file system allows it.
func rawRate(names []string) (rate float64, ok bool, err error) {
	type piece struct {
		file   vfs.File
		offset int64
	}
	var pieces []piece
	for _, name := range names {
		f, err := vfs.OS{}.OpenDirect(name)
		if err != nil {
			return 0, false, err
		}
		defer f.Close() //nolint:errcheck // only read from
		size, err := f.Size()
		if err != nil || !f.Direct() {
			return 0, false, err
		}
		for at := int64(0); at < size; at += rawReadBytes {
			pieces = append(pieces, piece{f, at})
		}
	}
	var next, bytes atomic.Int64
	var g errgroup.Group
	begin := time.Now()
	for range rawReaders {
		g.Go(func() error {
			buffer := aligned(rawReadBytes)
			for i := next.Add(1) - 1; i < int64(len(pieces)); i = next.Add(1) - 1 {
				n, err := pieces[i].file.ReadAt(buffer, pieces[i].offset)
				if err != nil && !errors.Is(err, io.EOF) {
					return fmt.Errorf("%s: %w", pieces[i].file.Name(), err)
				}
				bytes.Add(int64(n))
			}
			return nil
		})
	}
	err = g.Wait()
	return float64(bytes.Load()) / since(begin), len(pieces) > 0, err
}

// aligned gives memory as reads past the page cache need it.
func aligned(bytes int) []byte {
	b := make([]byte, bytes+vfs.DirectAlign)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (vfs.DirectAlign - 1)
	return b[skip : skip+bytes : skip+bytes]
}
