package layouts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// layout stores a set of records in a folder.
type layout interface {
	name() string
	// fill writes all versions in order. If syncEach is true, each version is durable before the next one is written.
	fill(ctx context.Context, dir string, set *recordSet, syncEach bool) error
	// read reads the data of every record into memory and returns the number of records. It uses several readers if the
	// layout can be read in parts. If visit is not nil, read calls visit() for each record.
	read(ctx context.Context, dir string, set *recordSet, readers int, visit visitor) (int64, error)
}

// fileLayout stores each record in its own file.
type fileLayout struct {
	title  string
	folder func(set *recordSet, i int, name string) string // relative folder of record number i; may be empty
	made   bool                                            // the folders are created before the measurement begins
}

func flatFolder(*recordSet, int, string) string { return "" }

// nestedFolders puts files into nested folders. Each argument stands for one level: the folders of that level are named
// after the next digits of the file's name, and the argument is the number of these digits.
func nestedFolders(digits ...int) func(*recordSet, int, string) string {
	return func(_ *recordSet, _ int, name string) string {
		folder := ""
		for _, n := range digits {
			folder, name = filepath.Join(folder, name[:n]), name[n:]
		}
		return folder
	}
}

// sequentialFolders fills the given number of folders one after another.
func sequentialFolders(folders int) func(*recordSet, int, string) string {
	return func(set *recordSet, i int, _ string) string { return strconv.Itoa(i * folders / set.live) }
}

// stripedFolders puts consecutive files into different folders, in rotation.
func stripedFolders(folders int) func(*recordSet, int, string) string {
	return func(_ *recordSet, i int, _ string) string { return strconv.Itoa(i % folders) }
}

func (l *fileLayout) name() string { return l.title }

// path returns the folder and the path of record number i.
func (l *fileLayout) path(dir string, set *recordSet, i int) (folder, path string) {
	name := fileName(set.id(i))
	folder = filepath.Join(dir, l.folder(set, i, name))
	return folder, folder + "/" + name
}

// prepare creates the folders before the measured time begins.
func (l *fileLayout) prepare(ctx context.Context, dir string, set *recordSet) error {
	if !l.made {
		return nil
	}
	made := folders{}
	for i := range set.live {
		if err := stopped(ctx, i); err != nil {
			return err
		}
		folder, _ := l.path(dir, set, i)
		if err := made.need(folder); err != nil {
			return err
		}
	}
	return nil
}

// folders holds the folders that are known to exist.
type folders map[string]struct{}

func (f folders) need(folder string) error {
	if _, ok := f[folder]; ok {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	f[folder] = struct{}{}
	return nil
}

func (l *fileLayout) fill(ctx context.Context, dir string, set *recordSet, syncEach bool) error {
	known := folders{dir: {}}
	for i := range set.live {
		if err := stopped(ctx, i); err != nil {
			return err
		}
		if err := l.create(dir, set, i, known, syncEach); err != nil {
			return fmt.Errorf("file number %d: %w", i+1, err)
		}
	}
	return nil
}

// create creates the file for record number i.
func (l *fileLayout) create(dir string, set *recordSet, i int, known folders, syncEach bool) error {
	folder, path := l.path(dir, set, i)
	if !l.made {
		if err := known.need(folder); err != nil {
			return err
		}
	}
	return writeFile(path, set.data(i), syncEach)
}

func (l *fileLayout) read(ctx context.Context, dir string, set *recordSet, readers int, visit visitor) (int64, error) {
	memory, err := newArena(int64(set.live) * int64(set.size))
	if err != nil {
		return 0, err
	}
	defer memory.release()
	var count atomic.Int64
	one := func(path string) error {
		n := count.Add(1)
		if err := stopped(ctx, int(n)); err != nil {
			return err
		}
		buffer, err := memory.take(set.size)
		if err != nil {
			return err
		}
		if err := readFile(path, buffer); err != nil || visit == nil {
			return err
		}
		id, err := fileID(filepath.Base(path))
		if err != nil {
			return err
		}
		return visit(id, buffer)
	}
	if readers <= 1 {
		err := walkFiles(dir, one)
		return count.Load(), err
	}
	paths := make(chan string, readers*64)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(paths)
		return walkFiles(dir, func(path string) error {
			select {
			case paths <- path:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	})
	for range readers {
		g.Go(func() error {
			for path := range paths {
				if err := one(path); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = g.Wait()
	return count.Load(), err
}

// walkFiles calls each() with the path of every file below a folder, in the order in which the file system returns the
// names.
func walkFiles(dir string, each func(path string) error) (err error) {
	const namesAtOnce = 1024
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for {
		entries, err := f.ReadDir(namesAtOnce)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			path := dir + "/" + e.Name()
			if e.IsDir() {
				err = walkFiles(path, each)
			} else {
				err = each(path)
			}
			if err != nil {
				return err
			}
		}
	}
}

// open opens a file with the plain system call. The overhead of Go's os.File would put files at a disadvantage.
func open(path string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, mode)
		if errors.Is(err, unix.EINTR) { // FUSE returns EINTR when a signal of Go's scheduler arrives
			continue
		}
		if err != nil {
			return 0, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
}

func writeFile(path string, data []byte, sync bool) error {
	fd, err := open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	for len(data) > 0 && err == nil {
		var n int
		if n, err = unix.Write(fd, data); errors.Is(err, unix.EINTR) {
			err = nil
			continue
		}
		data = data[max(n, 0):]
	}
	if err == nil && sync {
		err = unix.Fsync(fd)
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// readFile fills b from a file that has exactly len(b) bytes.
func readFile(path string, b []byte) error {
	fd, err := open(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	for got := 0; got < len(b) && err == nil; {
		var n int
		n, err = unix.Read(fd, b[got:])
		switch {
		case errors.Is(err, unix.EINTR):
			err = nil
		case err == nil && n == 0:
			err = io.ErrUnexpectedEOF
		default:
			got += max(n, 0)
		}
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}
