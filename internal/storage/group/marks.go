package group

import (
	"fmt"
	"path"
	"sync"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// markFile writes a log's mark file, which records how far the log is synced.
type markFile struct {
	fs  vfs.FS
	dir string

	mu       sync.Mutex // guards the fields below
	file     vfs.File   // nil if the file is not open
	broken   bool       // a write or sync failed, so the file must be created again
	sequence uint64
	last     format.Mark // the mark that is in the file
}

// Tick makes the synced mark durable. When it returns, the mark on disk covers everything that was synced before the
// call. The replica calls Tick within 100 ms of a group's last sync. While a group is busy, its state records contain
// the mark. Tick also frees space in the active segment that the previous process has allocated and this process has
// not used.
func (l *Log) Tick() error {
	// The lock is taken before enter, because Close holds mu while it waits for the callers that have entered.
	l.w.mu.Lock()
	if !l.closed.Load() {
		l.w.releasePreallocated()
	}
	l.w.mu.Unlock()
	if err := l.enter(); err != nil {
		return err
	}
	defer l.leave()
	if err := l.marks.follow(&l.state); err != nil {
		return fmt.Errorf("group %s: %w", l.opts.Identity.Name, err)
	}
	return nil
}

// releasePreallocated frees the preallocated space that the load has found after the end of the log, because a long
// time may pass before the next write uses it. The load itself does not free that space, because freeing blocks takes
// time. The caller holds mu.
func (w *writer) releasePreallocated() {
	if !w.allocation.inherited || w.suspect != nil {
		return
	}
	w.allocation.inherited = false
	if err := w.allocation.giveBack(w.active.file.Load(), w.end); err != nil {
		w.folder.logger.Warn("the space behind the end of the log stays allocated",
			"file", w.active.path, "error", err)
	}
}

// follow makes the mark for the synced data durable. It does nothing if that mark has already been written, or if no
// data is synced.
func (f *markFile) follow(st *state) error {
	mark := st.syncedMark()
	if mark.Offset <= format.SegmentHeaderBytes {
		return nil
	}
	if err := f.write(mark); err != nil {
		return fmt.Errorf("synced mark: %w", err)
	}
	return nil
}

// write makes a mark durable, unless the mark written last has the same segment and offset.
func (f *markFile) write(mark format.Mark) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last.Segment == mark.Segment && f.last.Offset == mark.Offset {
		return nil
	}
	if f.file == nil || f.broken {
		if err := f.open(); err != nil {
			return err
		}
	}
	f.sequence++
	mark.Sequence = f.sequence
	if err := format.WriteMark(f.file, mark); err != nil {
		f.broken = true
		return err
	}
	f.last = mark
	return nil
}

// open opens the file. After a failure it creates the file again, because the content of a file cannot be trusted
// after a failed sync.
func (f *markFile) open() error {
	f.closeFile()
	name := path.Join(f.dir, format.MarkName)
	_, err := f.fs.Stat(name)
	if f.broken || err != nil {
		if err := format.CreateMark(f.fs, f.dir); err != nil {
			return err
		}
	}
	file, err := f.fs.OpenWrite(name)
	if err != nil {
		return err
	}
	f.file, f.broken = file, false
	return nil
}

func (f *markFile) closeFile() {
	if f.file != nil {
		// An error from Close does not matter, because the file's content is either synced already or not trusted anyway.
		_ = f.file.Close()
		f.file = nil
	}
}

func (f *markFile) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closeFile()
}
