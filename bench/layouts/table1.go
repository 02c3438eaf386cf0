package layouts

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"sync/atomic"
	"time"

	"sheaf.dev/sheaf/internal/storage/group"
)

// These names are used in several tables.
const (
	flatTitle      = "flat"
	oneFolderTitle = "one folder"
	manyReaders    = 8 // number of readers in the measurements with several readers
)

// These names identify the parts of table 1.
const (
	partSizes      = "sizes"
	partSync       = "sync"
	partSuperseded = "superseded"
)

// table1 is Vorontsov's table: separate files compared with composite files.
func table1(fs *fileSystem, s *scale) []cell {
	var cells []cell
	for _, c := range s.sizes {
		n := fs.limitRecords(c.records)
		base := cell{table: 1, part: partSizes, fs: fs, x: float64(c.size)}
		base.variant = fmt.Sprintf("%s x %s", countWords(n), sizeWords(c.size))
		set := func() *recordSet { return newSet(n, n, c.size) }
		add := func(l layout, needs need, readers ...int) {
			cells = append(cells, base.withLayout(l.name(), needs, func(ctx context.Context, s *site) error {
				return fillAndRead(ctx, s, l, set(), readers...)
			}))
		}
		add(&fileLayout{title: flatTitle, folder: flatFolder}, needOf(n, c.size, true), 1, manyReaders)
		add(&fileLayout{title: "2 levels of 16 folders", folder: nestedFolders(1, 1)},
			needOf(n, c.size, true), 1, manyReaders)
		add(&composite{}, needOne(n, c.size), 1)
		needs := needOne(n, c.size)
		needs.disk *= 2 // the raw write needs as much space as the records themselves
		l := &sheafLayout{residency: group.Resident}
		cells = append(cells, base.withLayout(l.name(), needs, func(ctx context.Context, s *site) error {
			if err := fillAndRead(ctx, s, l, set(), 1); err != nil {
				return err
			}
			return rawFill(s, int64(n)*int64(c.size))
		}))
	}
	n := fs.limitRecords(s.syncEach)
	last := s.sizes[len(s.sizes)-1]
	for _, c := range s.sizes {
		if c.size == 20<<10 {
			last = c
		}
	}
	base := cell{table: 1, part: partSync, fs: fs, x: float64(last.size)}
	base.variant = fmt.Sprintf("%s x %s, a sync each", countWords(n), sizeWords(last.size))
	for _, l := range []layout{&fileLayout{title: flatTitle, folder: flatFolder},
		&sheafLayout{residency: group.Resident}} {
		cells = append(cells, base.withLayout(l.name(), needOf(n, last.size, false),
			func(ctx context.Context, s *site) error {
				return fill(ctx, s, l, newSet(n, n, last.size), true)
			}))
	}
	return append(cells, table1Superseded(fs, s)...)
}

// table1Superseded returns the measurements with record sets in which some versions are superseded by newer ones.
func table1Superseded(fs *fileSystem, s *scale) []cell {
	cells := make([]cell, 0, 4*len(s.superseded))
	total, size := fs.limitRecords(s.supersededTotal.records), s.supersededTotal.size
	for _, percent := range s.superseded {
		live := max(1, total*(100-percent)/100)
		base := cell{table: 1, part: partSuperseded, fs: fs, x: float64(percent)}
		base.variant = fmt.Sprintf("%s versions of %s, %d %% superseded", countWords(total), sizeWords(size), percent)
		for _, l := range []layout{
			&composite{}, &composite{flags: flagInPlace}, &composite{flags: flagBitmap}, &sheafLayout{residency: group.Resident},
		} {
			cells = append(cells, base.withLayout(l.name(), needOne(total, size), func(ctx context.Context, s *site) error {
				return fillAndParse(ctx, s, l, newSet(live, total, size))
			}))
		}
	}
	return cells
}

// limitRecords limits a number of records to what a file system can handle in reasonable time.
func (f *fileSystem) limitRecords(records int) int {
	if f.filesMax > 0 && !inKernel(f.driver) {
		return min(records, f.filesMax)
	}
	return records
}

// cost returns the estimate for this file system. It increases the time if a FUSE program serves the file system.
func (f *fileSystem) cost(n need) need {
	if len(f.fuse) == 0 || inKernel(f.driver) {
		return n
	}
	per := secondsPerFileFUSE
	if f.name == "fat32" {
		per = secondsPerFileFusefat
	}
	n.seconds += float64(n.files) * per
	return n
}

// preparer is implemented by layouts that create something, such as folders, before the measured time begins.
type preparer interface {
	prepare(ctx context.Context, dir string, set *recordSet) error
}

// ender is implemented by layouts that keep the data in memory after a read, as a program does after its start. The
// method end frees the data, and is not part of the measured time.
type ender interface{ end() error }

func fill(ctx context.Context, s *site, l layout, set *recordSet, syncEach bool) error {
	before, err := usedBytes(s.dir)
	if err != nil {
		return err
	}
	if p, ok := l.(preparer); ok {
		if err := p.prepare(ctx, s.dir, set); err != nil {
			return err
		}
	}
	begin := time.Now()
	if err := l.fill(ctx, s.dir, set, syncEach); err != nil {
		return err
	}
	took := since(begin)
	if err := syncFS(s.dir); err != nil {
		return err
	}
	s.Set("fill", took)
	s.Set("durable", since(begin))
	s.Set("rate", float64(set.total)/took)
	after, err := usedBytes(s.dir)
	if err != nil {
		return err
	}
	s.Set("disk", float64(max(0, after-before)))
	return nil
}

// readCold drops the caches, reads all records, and counts them.
func readCold(ctx context.Context, s *site, l layout, set *recordSet, readers int, visit visitor) (seconds float64,
	err error) {
	if err := s.cold(ctx); err != nil {
		return 0, err
	}
	begin := time.Now()
	n, err := l.read(ctx, s.dir, set, readers, visit)
	took := since(begin)
	if e, ok := l.(ender); ok {
		err = errors.Join(err, e.end())
	}
	if err == nil && n != int64(set.live) {
		err = fmt.Errorf("%s: %d records were read, %d are stored in %s", l.name(), n, set.live, filepath.Base(s.dir))
	}
	return took, err
}

func fillAndRead(ctx context.Context, s *site, l layout, set *recordSet, readers ...int) error {
	if err := fill(ctx, s, l, set, false); err != nil {
		return err
	}
	for _, n := range readers {
		took, err := readCold(ctx, s, l, set, n, nil)
		if err != nil {
			return err
		}
		s.Set(map[bool]string{true: "read", false: "read8"}[n == 1], took)
	}
	return nil
}

// rawFill measures the limit for a fill. It writes the same number of bytes sequentially, without the page cache, and
// syncs them.
func rawFill(s *site, bytes int64) error {
	took, ok, err := rawWrite(s.dir, bytes)
	if ok {
		s.Set("rawfill", took)
	}
	return err
}

// fillAndParse measures a read with a visitor that reads every byte of each record, as a parser would.
func fillAndParse(ctx context.Context, s *site, l layout, set *recordSet) error {
	if err := fill(ctx, s, l, set, false); err != nil {
		return err
	}
	var sum atomic.Uint64
	took, err := readCold(ctx, s, l, set, 1, func(_ int64, data []byte) error {
		h := fnv.New64a()
		_, _ = h.Write(data) // Write never returns an error
		sum.Add(h.Sum64())
		return nil
	})
	s.Set("load", took)
	return err
}
