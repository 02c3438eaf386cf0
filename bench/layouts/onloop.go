package layouts

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// ErrNotHere says that a file system cannot be had on this machine, and why.
var ErrNotHere = errors.New("it cannot be had here")

// OnLoop makes a file system, one of FileSystemNames, with room for so many files, on a loop device of so many bytes,
// whose image is in a folder, and calls use with an empty folder on it. cold writes all out and has the kernel forget
// it: unmounted, caches dropped, mounted again. Needs root.
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
