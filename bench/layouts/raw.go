package layouts

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	rawReaders   = 4
	rawReadBytes = 1 << 20
)

// RawRate reads files without the page cache, in large pieces and several at a time. It returns the bytes per second,
// which is the maximum rate of the device. The result ok is false if the file system does not allow such reads, or if
// there is nothing to read.
func RawRate(names []string) (rate float64, ok bool, err error) {
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
		defer f.Close() //nolint:errcheck // a file that was only read loses nothing if Close fails
		size, err := f.Size()
		if err != nil || !f.Direct() {
			return 0, false, err
		}
		for at := int64(0); at < size; at += rawReadBytes {
			pieces = append(pieces, piece{f, at})
		}
	}
	var bytes atomic.Int64
	var buffers [rawReaders][]byte
	for i := range buffers {
		buffers[i] = vfs.AlignedBytes(rawReadBytes)
	}
	begin := time.Now()
	err = drive.Shared(rawReaders, int64(len(pieces)), func(reader int, i int64) error {
		n, err := pieces[i].file.ReadAt(buffers[reader], pieces[i].offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: %w", pieces[i].file.Name(), err)
		}
		bytes.Add(int64(n))
		return nil
	})
	return float64(bytes.Load()) / since(begin), len(pieces) > 0, err
}

// rawWrite finds the maximum rate of the device. It writes the given number of bytes to a new file without the page
// cache, in large pieces and several at a time, syncs the file and removes it. The result ok is false if the file
// system does not allow such writes.
func rawWrite(dir string, bytes int64) (seconds float64, ok bool, err error) {
	name := filepath.Join(dir, "raw-write")
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_DIRECT, 0o644)
	if errors.Is(err, unix.EINVAL) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(name)) }()
	bytes = (bytes + rawReadBytes - 1) / rawReadBytes * rawReadBytes
	begin := time.Now()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, bytes); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return 0, false, fmt.Errorf("%s: %w", name, err)
	}
	buffer := vfs.AlignedBytes(rawReadBytes)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(buffer) // Read never returns an error
	err = drive.Shared(rawReaders, bytes/rawReadBytes, func(_ int, i int64) error {
		_, err := f.WriteAt(buffer, i*rawReadBytes)
		return err
	})
	err = errors.Join(err, f.Sync())
	if errors.Is(err, unix.EINVAL) { // some FUSE programs refuse the write and not the open
		return 0, false, nil
	}
	return since(begin), err == nil, err
}
