package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Item is an entry of a tree.
type Item struct {
	Path string      // relative to the root, slash-separated, bytes as in the file system
	Type fs.FileMode // type bits; 0 for a regular file
	Err  error       // if set, the folder could not be read; a folder without Err is empty
}

// Walk visits everything below root except folders that hold something and can be read. It follows no symbolic link,
// even if somebody replaces a folder by a link meanwhile. If sorted is true, Walk visits sequentially in the order of
// the names, folder by folder. Otherwise several goroutines call visit() concurrently, and folders are read in pieces.
// The first error of visit() ends the walk.
func Walk(ctx context.Context, root string, workers int, sorted bool, visit func(Item) error) error {
	at, err := openFolder(root)
	if err != nil {
		return fmt.Errorf("reading the tree: %w", err)
	}
	defer at.close()
	if sorted {
		return walkSorted(ctx, at, "", visit)
	}
	w := &walker{root: at, visit: visit, pending: []string{""}}
	w.changed.L = &w.mu
	parent := ctx
	g, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stopped = true
		w.changed.Broadcast()
	})
	defer stop()
	for range max(workers, 1) {
		g.Go(func() error { return w.work(ctx) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if !w.through {
		return context.Cause(parent)
	}
	return nil
}

type walker struct {
	root  folder
	visit func(Item) error

	mu      sync.Mutex // guards the fields below
	changed sync.Cond
	pending []string // folders to read; the last one is read first, which keeps the list short
	busy    int      // workers that are reading a folder and may add more
	stopped bool
	through bool
}

func (w *walker) work(ctx context.Context) error {
	for {
		dir, ok := w.next()
		if !ok {
			return nil
		}
		err := w.readDir(ctx, dir)
		w.mu.Lock()
		w.busy--
		w.changed.Broadcast()
		w.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

func (w *walker) next() (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.pending) == 0 && w.busy > 0 && !w.stopped {
		w.changed.Wait()
	}
	if w.stopped || len(w.pending) == 0 {
		w.through = w.through || !w.stopped
		return "", false
	}
	dir := w.pending[len(w.pending)-1]
	w.pending = w.pending[:len(w.pending)-1]
	w.busy++
	return dir, true
}

func (w *walker) readDir(ctx context.Context, dir string) error {
	f, err := w.root.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return w.visit(Item{Path: dir, Type: fs.ModeDir, Err: err})
	}
	defer f.Close() //nolint:errcheck // only read from
	const piece = 1024
	for empty := dir != ""; ctx.Err() == nil; {
		entries, err := f.ReadDir(piece)
		empty = empty && len(entries) == 0
		for _, entry := range entries {
			path := join(dir, entry.Name())
			if entry.IsDir() {
				w.mu.Lock()
				w.pending = append(w.pending, path)
				w.changed.Signal()
				w.mu.Unlock()
				continue
			}
			if err := w.visit(Item{Path: path, Type: entry.Type()}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			if empty {
				return w.visit(Item{Path: dir, Type: fs.ModeDir})
			}
			return nil
		}
		if err != nil {
			return w.visit(Item{Path: dir, Type: fs.ModeDir, Err: err})
		}
	}
	return context.Cause(ctx)
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
