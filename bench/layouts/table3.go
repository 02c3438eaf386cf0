package layouts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

const lifeBytes = 1 << 10 // size of a record in table 3

// table3 is Wheeler's table. It measures how long it takes to create a file system, to fill it, to iterate over its
// files, to repair it, and to remove the files.
func table3(fs *fileSystem, s *scale) []cell {
	n := fs.limitRecords(s.lifeRecords)
	folders := max(1, s.lifeFolders*n/s.lifeRecords)
	files := &fileLayout{title: fmt.Sprintf("%d folders", folders), folder: sequentialFolders(folders)}
	base := cell{table: 3, fs: fs, variant: fmt.Sprintf("%s of 1 KB", countWords(n))}
	return []cell{
		base.withLayout("files in "+files.title, needOf(n, lifeBytes, false), func(ctx context.Context, s *site) error {
			return life(ctx, s, files, newSet(n, n, lifeBytes), iterateFiles, func(ctx context.Context) error {
				if s.check == nil {
					return nil
				}
				took, err := s.check(ctx)
				s.Set("check", took)
				return err
			})
		}),
		base.withLayout(oursTitle, needOne(n, lifeBytes), func(ctx context.Context, s *site) error {
			l := &sheafLayout{residency: group.Index}
			return life(ctx, s, l, newSet(n, n, lifeBytes), iterateOurs, func(ctx context.Context) error {
				return verifyOurs(ctx, s, n)
			})
		}),
	}
}

func life(ctx context.Context, s *site, l layout, set *recordSet,
	iterate func(context.Context, string) (int64, error), check func(context.Context) error) error {
	if s.mkfsSeconds > 0 {
		s.Set("mkfs", s.mkfsSeconds)
	}
	if err := fill(ctx, s, l, set, false); err != nil {
		return err
	}
	if err := s.cold(ctx); err != nil {
		return err
	}
	begin := time.Now()
	n, err := iterate(ctx, s.dir)
	if err != nil {
		return fmt.Errorf("iterate: %w", err)
	}
	s.Set("iterate", since(begin))
	if n != int64(set.live) {
		return fmt.Errorf("iterate: %d records were found, %d are stored", n, set.live)
	}
	if err := check(ctx); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	if err := s.cold(ctx); err != nil {
		return err
	}
	begin = time.Now()
	if err := os.RemoveAll(s.dir); err != nil {
		return err
	}
	if err := syncFS(filepath.Dir(s.dir)); err != nil {
		return err
	}
	s.Set("remove", since(begin))
	return nil
}

// iterateFiles reads the name and size of each file.
func iterateFiles(ctx context.Context, dir string) (n int64, err error) {
	err = walkFiles(dir, func(path string) error {
		n++
		if err := stopped(ctx, int(n)); err != nil {
			return err
		}
		var s unix.Stat_t
		return unix.Lstat(path, &s)
	})
	return n, err
}

// iterateOurs reads the id and size of each record.
func iterateOurs(ctx context.Context, dir string) (_ int64, err error) {
	log, err := (&sheafLayout{residency: group.Index}).load(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, log.Close(false)) }()
	var n atomic.Int64
	err = scan(ctx, log, true, func(*group.Record) error {
		n.Add(1)
		return nil
	})
	return n.Load(), err
}

// verifyOurs measures what `sheaf verify` does with a group, and a raw read of the same files without the page cache.
func verifyOurs(ctx context.Context, s *site, records int) error {
	dir := filepath.Join(s.dir, groupDir)
	names, err := filepath.Glob(filepath.Join(dir, "segment-*"))
	if err != nil {
		return err
	}
	if err := s.cold(ctx); err != nil {
		return err
	}
	rate, ok, err := RawRate(names)
	if err != nil {
		return err
	}
	if ok {
		s.Set("rawrate", rate)
	}
	if err := s.cold(ctx); err != nil {
		return err
	}
	begin := time.Now()
	report, err := fsck.VerifyDir(ctx, vfs.OS{}, dir, nil)
	if err != nil {
		return err
	}
	took := since(begin)
	if len(report.Damages) > 0 || report.Entries != int64(records) {
		return fmt.Errorf("verify: %d entries, %d were written; damage: %v", report.Entries, records, report.Damages)
	}
	s.Set("check", took)
	s.Set("checkrate", float64(report.Bytes)/took)
	return nil
}
