package bucket

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"time"
)

// RemoveLeftovers removes what Creates of killed processes have left behind, if they began before a time: parts of
// objects that have no name and cost money or space. It returns the number of Creates whose parts are gone now. A
// Create of a living process that began before that time fails, and can be made again. Buckets that remove such parts
// themselves have nothing to do.
func RemoveLeftovers(ctx context.Context, b Bucket, before time.Time) (removed int, err error) {
	if l, ok := b.(interface {
		RemoveLeftovers(ctx context.Context, before time.Time) (int, error)
	}); ok {
		return l.RemoveLeftovers(ctx, before)
	}
	return 0, nil
}

// RemoveLeftovers removes the files aside that were last written before a time.
func (f *Folder) RemoveLeftovers(ctx context.Context, before time.Time) (removed int, err error) {
	names, err := f.fs.List(path.Join(f.root, pending))
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if err := context.Cause(ctx); err != nil {
			return removed, err
		}
		aside := path.Join(f.root, pending, name)
		info, err := f.fs.Stat(aside)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its Create has ended
		}
		if err != nil {
			return removed, err
		}
		if info.IsDir() || !info.ModTime().Before(before) {
			continue
		}
		if err := f.fs.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, err
		}
		removed++
	}
	return removed, nil
}
