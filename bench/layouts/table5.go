package layouts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/storage/group"
)

const deepBytes = 32 // size of a record in table 5

// These names identify the parts of table 5.
const (
	partDeep  = "deep"
	partLimit = "limit"
)

// table5 is the table that compares deep directories with flat ones.
func table5(fs *fileSystem, s *scale) []cell {
	n := fs.limitRecords(s.deep)
	base := cell{table: 5, part: partDeep, fs: fs, variant: fmt.Sprintf("%s of %d B", countWords(n), deepBytes)}
	var cells []cell
	add := func(l layout, needs need) {
		cells = append(cells, base.withLayout(l.name(), needs, func(ctx context.Context, s *site) error {
			return fillAndRead(ctx, s, l, newSet(n, n, deepBytes), 1)
		}))
	}
	files := needOf(n, deepBytes, true)
	add(&fileLayout{title: flatTitle, folder: flatFolder}, files)
	for depth := 1; depth <= 4; depth++ {
		l := &fileLayout{title: fmt.Sprintf("%d deep, 16 folders each", depth),
			folder: nestedFolders(slices.Repeat([]int{1}, depth)...)}
		needs := files
		needs.files += min(1<<(4*depth), n)
		add(l, needs)
	}
	two := files
	two.files += min(256*256+256, 2*n)
	two.disk += int64(two.files-n) * blockBytes
	add(&fileLayout{title: "two-level tree of 256 x 256", folder: nestedFolders(2, 2)}, two)
	add(&fileLayout{title: "two-level tree of 256 x 256, folders made before", folder: nestedFolders(2, 2),
		made: true}, two)
	add(&sheafLayout{residency: group.Resident}, needOne(n, deepBytes))
	if s.limitShow && fs.name == "ext4" {
		cells = append(cells, limitCells()...)
	}
	return cells
}

// smallIndex is an ext4 file system with blocks of 1 KiB, which limits the size of a folder's index. With names of
// 255 bytes, the index is full after about ten thousand names. With blocks of 4 KiB and short names, it would be full
// after about ten million.
var smallIndex = &fileSystem{name: "ext4, blocks of 1 KiB", driver: "ext4", options: "noinit_itable",
	mkfs:   []string{"mke2fs", "-q", "-F", "-t", "ext4", "-b", "1024", "-I", "128", "-O", "^large_dir", "-E", "nodiscard"},
	inodes: "-N", debian: "e2fsprogs"}

const (
	limitRecords   = 100000 // maximum number of file names that the test of the limit tries
	limitNameBytes = 255
)

// limitCells returns the measurements that show what happens when a flat folder is full, and that a group has no such
// limit.
func limitCells() []cell {
	base := cell{table: 5, part: partLimit, fs: smallIndex}
	base.variant = fmt.Sprintf("until it is full, at most %s, names of %d B", countWords(limitRecords), limitNameBytes)
	needs := needOf(limitRecords, 0, false)
	return []cell{
		base.withLayout(flatTitle, needs, fillFolder),
		base.withLayout(oursTitle, needs, func(ctx context.Context, s *site) error {
			// The data of a record is as long as a file name in the other layout.
			set := newSet(limitRecords, limitRecords, limitNameBytes)
			l := &sheafLayout{residency: group.Index}
			if err := l.fill(ctx, s.dir, set, false); err != nil {
				return err
			}
			n, err := l.read(ctx, s.dir, set, 1, nil)
			err = errors.Join(err, l.end())
			s.Set("names", float64(n))
			s.Text[resultText] = "not full"
			return err
		}),
	}
}

// fillFolder creates files in one folder until the file system refuses.
func fillFolder(ctx context.Context, s *site) error {
	names := 0
	for ; names < limitRecords; names++ {
		if err := stopped(ctx, names); err != nil {
			return err
		}
		name := fileName(int64(names + 1))
		name += strings.Repeat("x", limitNameBytes-len(name))
		err := writeFile(s.dir+"/"+name, nil, false)
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		if err != nil {
			return err
		}
	}
	s.Set("names", float64(names))
	if names == limitRecords {
		s.Text[resultText] = "not full"
		return nil
	}
	var free unix.Statfs_t
	if err := unix.Statfs(s.dir, &free); err != nil {
		return &os.PathError{Op: "statfs", Path: s.dir, Err: err}
	}
	s.Text[resultText] = fmt.Sprintf("full: no space left on device, with %d MiB and %d inodes free",
		int64(free.Bfree)*free.Bsize>>20, free.Ffree)
	return nil
}
