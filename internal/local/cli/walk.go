package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Item is a file, link or folder of a tree.
type Item struct {
	Path string      // relative to the root, slash-separated, bytes as in the file system
	Type fs.FileMode // type bits; 0 for a regular file
	Err  error       // why the folder could not be read; nil if the folder is empty
}

// Walk visits all files and links below root, and the folders that are empty or cannot be read. It follows no symbolic
// link, even if a folder is replaced by a link during the walk. If sorted is true, Walk visits one item at a time,
// folder by folder in the order of the names. Otherwise several goroutines call visit() concurrently, and folders are
// read in pieces. The first error of visit() ends the walk.
func Walk(ctx context.Context, root string, workers int, sorted bool, visit func(Item) error) error {
	at, err := openFolder(root)
	if err != nil {
		return fmt.Errorf("reading the tree: %w", err)
	}
	defer at.close()
	if sorted {
		return walkSorted(ctx, at, "", visit)
	}
	w := &walker{root: at, visit: visit}
	w.folders, ctx = errgroup.WithContext(ctx)
	w.folders.SetLimit(max(workers, 1))
	w.folders.Go(func() error { return w.walk(ctx, "") })
	return w.folders.Wait()
}

// walker walks a tree with several goroutines.
type walker struct {
	root    folder
	visit   func(Item) error
	folders *errgroup.Group // each goroutine reads a folder, and those of its subfolders for which no goroutine is free
}

func (w *walker) walk(ctx context.Context, dir string) error {
	folders, err := w.readDir(ctx, dir)
	for _, folder := range folders {
		if err != nil {
			break
		}
		if !w.folders.TryGo(func() error { return w.walk(ctx, folder) }) {
			err = w.walk(ctx, folder)
		}
	}
	return err
}

// readDir visits the entries of a folder except subfolders, and returns the subfolders. It closes the folder before it
// returns, so that a deep tree needs few file descriptors.
func (w *walker) readDir(ctx context.Context, dir string) (folders []string, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	f, err := w.root.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, w.visit(Item{Path: dir, Type: fs.ModeDir, Err: err})
	}
	defer f.Close() //nolint:errcheck // only read from
	const piece = 1024
	for empty := dir != ""; ctx.Err() == nil; {
		entries, err := f.ReadDir(piece)
		empty = empty && len(entries) == 0
		for _, entry := range entries {
			path := join(dir, entry.Name())
			if entry.IsDir() {
				folders = append(folders, path)
			} else if err := w.visit(Item{Path: path, Type: entry.Type()}); err != nil {
				return nil, err
			}
		}
		switch {
		case errors.Is(err, io.EOF) && empty:
			return nil, w.visit(Item{Path: dir, Type: fs.ModeDir})
		case errors.Is(err, io.EOF):
			return folders, nil
		case err != nil:
			return folders, w.visit(Item{Path: dir, Type: fs.ModeDir, Err: err})
		}
	}
	return nil, context.Cause(ctx)
}

func walkSorted(ctx context.Context, root folder, dir string, visit func(Item) error) error {
	entries, err := root.list(dir)
	for _, entry := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		path := join(dir, entry.Name())
		if entry.IsDir() {
			if err := walkSorted(ctx, root, path, visit); err != nil {
				return err
			}
			continue
		}
		if err := visit(Item{Path: path, Type: entry.Type()}); err != nil {
			return err
		}
	}
	if err != nil || len(entries) == 0 && dir != "" {
		return visit(Item{Path: dir, Type: fs.ModeDir, Err: err})
	}
	return nil
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}
