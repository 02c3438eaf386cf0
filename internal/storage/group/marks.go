package group

import (
	"fmt"
	"path"
	"sync"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// markFile writes the mark file.
type markFile struct {
	fs  vfs.FS
	dir string

	mu       sync.Mutex // guards the fields below
	file     vfs.File   // nil: not open
	broken   bool       // a write or sync failed: the file must be made anew
	sequence uint64
	last     format.Mark // as written last
}

// Tick makes durable that everything synced so far was: the mark on disk is up to date when it returns. The volume
// calls it within 100 ms of a group's last sync; while a group is busy, its state records carry the mark. The room that
// the process before has allocated in the active segment, and this one has not filled by then, is given back.
func (l *Log) Tick() error {
	l.w.mu.Lock() // before enter: Close has it while it waits for those that are in
	if !l.closed.Load() {
		l.w.giveBackRoom()
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

// giveBackRoom gives back the room behind the end that the load has found there, as the next write may be far away.
// The load does not do it: to free blocks takes its time. The caller holds mu.
func (w *writer) giveBackRoom() {
	if !w.allocation.inherited || w.suspect != nil {
		return
	}
	w.allocation.inherited = false
	if err := w.allocation.giveBack(w.active.file.Load(), w.end); err != nil {
		w.folder.logger.Warn("the room behind the end of the log stays allocated", "group", w.folder.identity.Name, "file",
			w.active.path, "error", err)
	}
}

// follow makes durable the mark of what is synced, unless it is the last one, or nothing is.
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

// write makes a mark durable, unless it is the last one.
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

// open opens the file, or makes it anew after a failure: what a failed sync left in it is not to be trusted.
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
		_ = f.file.Close() // what was written is synced, or given up
		f.file = nil
	}
}

func (f *markFile) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closeFile()
}
