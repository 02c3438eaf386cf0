package group

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"path"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// activeFile is the file of the active segment at a start, before anything of it is read: which bytes of it can hold
// frames.
type activeFile struct {
	mark    format.Mark // the newer whole slot of the mark file; the zero Mark where there is none
	badMark [format.MarkSlots]error
	file    vfs.File // nil: there is no active segment, or its file is gone
	size    int64    // of the file
	// end is where the data ends: what is behind, up to size, is room that was never written and reads as zero.
	end    int64
	synced chan error // gives the outcome of its sync; nil: none is under way
}

// openActiveFile opens the active segment of a group for writing, and begins to make durable what it holds: nothing
// of it counts before awaitSync (rule 3). The room at its end is not read: it can be as large as all the rest.
func openActiveFile(opts Options, m *format.Manifest) (*activeFile, error) {
	a, err := findActiveFile(opts, m, opts.FS.OpenWrite)
	if err == nil && a.file != nil {
		file := a.file
		a.synced = make(chan error, 1)
		go func() { // beside the reading: a device takes its time for it, also where nothing is to be written
			if opts.Durable != nil && opts.Durable() == nil {
				a.synced <- nil
				return
			}
			a.synced <- file.Sync()
		}()
	}
	return a, err
}

// lookAtActiveFile is openActiveFile for a plan: nothing is made durable, and no file stays open.
func lookAtActiveFile(opts Options, m *format.Manifest) (*activeFile, error) {
	a, err := findActiveFile(opts, m, opts.FS.Open)
	if err != nil {
		return nil, err
	}
	return a, a.close()
}

func findActiveFile(opts Options, m *format.Manifest, open func(name string) (vfs.File, error)) (a *activeFile,
	err error) {
	a = new(activeFile)
	if a.mark, _, a.badMark, err = format.ReadMark(opts.FS, opts.Dir); err != nil {
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

// awaitSync returns when what the file held at the start is durable.
func (a *activeFile) awaitSync() error {
	if a.synced == nil {
		return nil
	}
	err := <-a.synced
	a.synced = nil
	return err
}

// dataEnd tells the size of a file, and where its data ends, which is not below from.
func dataEnd(f vfs.File, from int64) (size, end int64, err error) {
	if size, err = f.Size(); err != nil || from >= size {
		return size, size, err
	}
	end, err = f.DataEnd(from)
	return size, end, err
}

// take hands the file on; nil the next time.
func (a *activeFile) take() vfs.File {
	f := a.file
	a.file = nil
	return f
}

// close waits for the sync, whose outcome does not matter any more, and closes the file, unless it was handed on.
func (a *activeFile) close() error {
	_ = a.awaitSync()
	if f := a.take(); f != nil {
		return f.Close()
	}
	return nil
}
