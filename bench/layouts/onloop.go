package layouts

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// ErrNotHere means that a file system is not available on this machine. The error that wraps it gives the reason.
var ErrNotHere = errors.New("it cannot be had here")

// OnLoop creates a file system with space for the given number of files. name is one of FileSystemNames. The file
// system is on a loop device of the given size, with an image in dir. It calls use() with an empty folder on that file
// system, and with a function cold. cold writes all data to the device and then empties the caches, by unmounting the
// file system, dropping the caches and mounting the file system again. OnLoop needs root.
func OnLoop(ctx context.Context, name, dir string, bytes int64, files int,
	use func(dir string, cold func(context.Context) error) error) (err error) {
	fs := findFileSystem(name)
	if fs == nil {
		return fmt.Errorf("%q: there is no such file system", name)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s: %w: mounting needs root, and this is user %d", name, ErrNotHere, os.Geteuid())
	}
	if why, _ := fs.missing(ctx); why != "" {
		return fmt.Errorf("%s: %w: %s", name, ErrNotHere, why)
	}
	p, err := newLoopPlace(ctx, dir, bytes, bytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	s, err := p.begin(ctx, fs, files)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.end(s)) }()
	return use(s.dir, s.cold)
}
