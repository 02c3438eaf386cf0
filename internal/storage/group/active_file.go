package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"path"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// activeFile describes the active segment's file before a start reads it. It holds the file's size, and the offset at
// which its data ends.
type activeFile struct {
	mark foundMark
	file vfs.File // nil if there is no active segment, or its file is missing
	size int64    // size of the file
	// end is the offset at which the data ends. The bytes between end and size were allocated, but never written, and
	// read as zeros.
	end    int64
	synced chan error // receives the result of syncing the file; nil if no sync is running
}

// openActiveFile opens a group's active segment for writing, and starts to make its content durable. Nothing in the
// file is valid before awaitSync has returned (rule 3). The preallocated space at the end is not read, because it can
// be as large as the rest of the file.
func openActiveFile(opts Options, m *format.Manifest) (*activeFile, error) {
	a, err := findActiveFile(opts, m, opts.FS.OpenWrite)
	if err == nil && a.file != nil {
		file := a.file
		a.synced = make(chan error, 1)
		go func() { // concurrent with reads, because a sync takes time even if there is nothing to write
			if opts.Durable != nil && opts.Durable() == nil {
				a.synced <- nil
				return
			}
			a.synced <- file.Sync()
		}()
	}
	return a, err
}

// foundMark is the result of reading the mark file. It has the newer one of the valid slots, or the zero Mark if no
// slot is valid.
type foundMark struct {
	format.Mark
	bad [format.MarkSlots]error // why each slot is invalid; nil for a valid slot
}

// findActiveFile opens the active segment, and finds the offset at which its data ends. It also reads the mark file,
// unless the plan already has the mark.
func findActiveFile(opts Options, m *format.Manifest, open func(name string) (vfs.File, error)) (a *activeFile,
	err error) {
	a = new(activeFile)
	if opts.Plan != nil && opts.Plan.mark != nil {
		a.mark = *opts.Plan.mark
	} else if a.mark.Mark, _, a.mark.bad, err = format.ReadMark(opts.FS, opts.Dir); err != nil {
		return nil, err
	}
	s, ok := m.ActiveSegment()
	if !ok {
		return a, nil
	}
	name := path.Join(opts.Dir, format.SegmentName(s.Number))
	a.file, err = open(name)
	if errors.Is(err, iofs.ErrNotExist) {
		return a, nil
	}
	if err != nil {
		return nil, err
	}
	if a.size, a.end, err = dataEnd(a.file, a.mark.Below(s)); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: where its data ends: %w", name, err), a.close())
	}
	return a, nil
}

// awaitSync waits until the content that the file had when it was opened is durable.
func (a *activeFile) awaitSync() error {
	if a.synced == nil {
		return nil
	}
	err := <-a.synced
	a.synced = nil
	return err
}

// dataEnd returns a file's size, and the offset at which its data ends. It searches for the end only after the offset
// that is passed as from.
func dataEnd(f vfs.File, from int64) (size, end int64, err error) {
	if size, err = f.Size(); err != nil || from >= size {
		return size, size, err
	}
	end, err = f.DataEnd(from)
	return size, end, err
}

// take returns the file, which the caller then owns. Later calls return nil.
func (a *activeFile) take() vfs.File {
	f := a.file
	a.file = nil
	return f
}

// close waits for the sync and ignores its result. It closes the file unless take has returned it.
func (a *activeFile) close() error {
	_ = a.awaitSync()
	if f := a.take(); f != nil {
		return f.Close()
	}
	return nil
}
