package bucket

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"time"
)

// RemoveLeftovers removes the incomplete objects that killed processes have left behind, if the calls of Create began
// before the given time. Such objects have no names, but they use space or cost money. RemoveLeftovers returns the
// number of objects that it has removed. If a running process began a Create before that time, the Create fails and
// can be repeated. Some buckets remove such objects themselves; for these, RemoveLeftovers does nothing.
func RemoveLeftovers(ctx context.Context, b Bucket, before time.Time) (removed int, err error) {
	if l, ok := b.(interface {
		RemoveLeftovers(ctx context.Context, before time.Time) (int, error)
	}); ok {
		return l.RemoveLeftovers(ctx, before)
	}
	return 0, nil
}

// RemoveLeftovers removes the temporary files that were last written before the given time.
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
			continue // the Create of this file has finished meanwhile
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
