package volume

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	rateReadBytes    = 1 << 20
	rateReaders      = 2
	rateFilesMax     = 64      // maximum number of files that are read, largest first
	rateBytesMinimum = 8 << 20 // with less data, the rate would not describe the disk
)

// MeasureReadRate reads a sample of at most limitBytes from the largest files of the volume, and returns the rate in
// bytes per second. Two goroutines read 1 MiB at a time, bypassing the page cache (O_DIRECT). MeasureReadRate returns 0
// if there are less than 8 MiB to read, or if the file system does not support O_DIRECT. It does not read space that
// was reserved but not written, because such reads do not reach the device.
func (v *Volume) MeasureReadRate(limitBytes int64) (rate float64, err error) {
	var open []vfs.File
	defer func() {
		for _, f := range open {
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			rate, err = 0, fmt.Errorf("measure the read rate of volume %s: %w", v.dir, err)
		}
	}()
	files, err := v.largestFiles()
	if err != nil {
		return 0, err
	}
	var parts []part
	for _, file := range files {
		if int64(len(parts)+1)*rateReadBytes > limitBytes {
			break
		}
		f, err := v.fs.OpenDirect(file.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // compaction has removed the file in the meantime
		}
		if err != nil {
			return 0, err
		}
		open = append(open, f)
		if !f.Direct() {
			return 0, nil
		}
		end, err := f.DataEnd(0)
		if err != nil {
			return 0, err
		}
		end = min(end, limitBytes-int64(len(parts))*rateReadBytes)
		for offset := int64(0); offset+rateReadBytes <= end; offset += rateReadBytes {
			parts = append(parts, part{f, offset})
		}
	}
	if len(parts)*rateReadBytes < rateBytesMinimum {
		return 0, nil
	}
	return readParts(parts)
}

// part is a piece of a file. It has rateReadBytes bytes.
type part struct {
	file   vfs.File
	offset int64
}

// groupFile is a file in the folder of a group.
type groupFile struct {
	name string // name with the path of the folder
	size int64
}

// largestFiles returns the largest files of all groups, largest first.
func (v *Volume) largestFiles() ([]groupFile, error) {
	groups, err := v.Groups()
	if err != nil {
		return nil, err
	}
	var files []groupFile
	for _, group := range groups {
		names, err := v.fs.List(v.GroupDir(group))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, name := range names {
			name = path.Join(v.GroupDir(group), name)
			info, err := v.fs.Stat(name)
			if err == nil && info.Mode().IsRegular() && info.Size() >= rateReadBytes {
				files = append(files, groupFile{name, info.Size()})
			}
		}
	}
	slices.SortStableFunc(files, func(a, b groupFile) int { return cmp.Compare(b.size, a.size) })
	return files[:min(len(files), rateFilesMax)], nil
}

// readParts reads all parts in order with two goroutines, and returns the rate in bytes per second.
func readParts(parts []part) (float64, error) {
	var next atomic.Int64
	var group errgroup.Group
	buffers := [rateReaders][]byte{}
	for i := range buffers {
		buffers[i] = vfs.AlignedBytes(rateReadBytes)
		clear(buffers[i]) // touches the new memory, so that its page faults do not count in the measured time
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
