package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	rateReadBytes    = 1 << 20
	rateReaders      = 2
	rateFilesMax     = 64      // at most this many of the largest files are read
	rateBytesMinimum = 8 << 20 // less data says nothing about the speed of a disk
)

// MeasureReadRate reads a sample past the page cache (O_DIRECT, 1 MiB, 2 readers) from the largest files of the
// volume, at most limitBytes, and returns bytes per second. It returns 0 if there is too little to read (less than 8
// MiB) or the file system cannot bypass the page cache. It does not read space that was reserved but not written,
// because such reads do not reach the device.
func (v *Volume) MeasureReadRate(limitBytes int64) (float64, error) {
	rate, err := v.measure(limitBytes)
	if err != nil {
		return 0, fmt.Errorf("measure the read rate of volume %s: %w", v.dir, err)
	}
	return rate, nil
}

func (v *Volume) measure(limitBytes int64) (rate float64, err error) {
	names, err := v.largestFiles()
	if err != nil {
		return 0, err
	}
	var open []vfs.File
	defer func() {
		for _, f := range open {
			err = errors.Join(err, f.Close())
		}
	}()
	var parts []part
	for _, name := range names {
		if int64(len(parts)+1)*rateReadBytes > limitBytes {
			break
		}
		f, err := v.fs.OpenDirect(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // compaction removed it meanwhile
		}
		if err != nil {
			return 0, err
		}
		open = append(open, f)
		if !f.Direct() {
			return 0, nil
		}
		more, err := dataParts(f, limitBytes-int64(len(parts))*rateReadBytes)
		if err != nil {
			return 0, err
		}
		parts = append(parts, more...)
	}
	if len(parts)*rateReadBytes < rateBytesMinimum {
		return 0, nil
	}
	return readParts(parts)
}

// part is a piece of a file, rateReadBytes long.
type part struct {
	file   vfs.File
	offset int64
}

// largestFiles returns the names of the largest files of all groups, the largest first.
func (v *Volume) largestFiles() ([]string, error) {
	groups, err := v.Groups()
	if err != nil {
		return nil, err
	}
	type sized struct {
		name string
		size int64
	}
	var files []sized
	for _, group := range groups {
		names, err := v.fs.List(v.GroupDir(group))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, name := range names {
			name = path.Join(v.GroupDir(group), name)
			info, err := v.fs.Stat(name)
			if err == nil && info.Mode().IsRegular() && info.Size() >= rateReadBytes {
				files = append(files, sized{name, info.Size()})
			}
		}
	}
	slices.SortStableFunc(files, func(a, b sized) int { return int(min(max(b.size-a.size, -1), 1)) })
	files = files[:min(len(files), rateFilesMax)]
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.name
	}
	return names, nil
}

// dataParts returns the whole parts of a file that hold data, at most limitBytes in total.
func dataParts(f vfs.File, limitBytes int64) ([]part, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	var parts []part
	for offset := int64(0); offset+rateReadBytes <= size; {
		begin, end := dataRange(f, offset, size)
		begin = (begin + rateReadBytes - 1) / rateReadBytes * rateReadBytes
		for ; begin+rateReadBytes <= end; begin += rateReadBytes {
			if int64(len(parts)+1)*rateReadBytes > limitBytes {
				return parts, nil
			}
			parts = append(parts, part{f, begin})
		}
		offset = max(end, offset+1)
	}
	return parts, nil
}

// dataRange returns the next range of data at or after offset. It returns the rest of the file if the file system
// cannot say where data is, and (size, size) if there is no more data.
func dataRange(f vfs.File, offset, size int64) (begin, end int64) {
	fd, ok := f.Fd()
	if !ok {
		return offset, size
	}
	begin, err := unix.Seek(int(fd), offset, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size
	}
	if err != nil {
		return offset, size
	}
	end, err = unix.Seek(int(fd), begin, unix.SEEK_HOLE)
	if err != nil {
		return begin, size
	}
	return begin, end
}

// readParts reads all parts in order, by two readers, and returns bytes per second.
func readParts(parts []part) (float64, error) {
	var next atomic.Int64
	var group errgroup.Group
	buffers := [rateReaders][]byte{}
	for i := range buffers {
		buffers[i] = vfs.AlignedBytes(rateReadBytes)
		clear(buffers[i]) // touched here, so that the page faults of fresh memory do not count as time of the disk
	}
	start := time.Now()
	for _, buf := range buffers {
		group.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(parts) {
					return nil
				}
				if _, err := parts[i].file.ReadAt(buf, parts[i].offset); err != nil && !errors.Is(err, io.EOF) {
					return err
				}
			}
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	seconds := max(time.Since(start), time.Microsecond).Seconds()
	return float64(len(parts)) * rateReadBytes / seconds, nil
}
