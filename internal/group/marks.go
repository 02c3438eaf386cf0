package group

import (
	"fmt"
	"path"
	"sync"

	"sheaf.dev/sheaf/internal/vfs"
)

// markFile writes the mark file.
type markFile struct {
	fs  vfs.FS
	dir string

	mu       sync.Mutex // guards the fields below
	file     vfs.File   // nil: not open
	broken   bool       // a write or sync failed: the file must be made anew
	sequence uint64
	last     Mark // as written last
}

// Tick makes durable that everything synced so far was: the mark on disk is up to date when it returns. The volume calls
// it within 100 ms of a group's last sync; while a group is busy, its state records carry the mark.
func (l *Log) Tick() error {
	if err := l.enter(); err != nil {
		return err
	}
	defer l.leave()
	l.mu.Lock()
	st := &l.state
	st.tail.release()
	mark := Mark{Offset: st.syncedEnd, Index: st.syncedLast}
	if n := len(st.segments); n > 0 {
		mark.Segment = st.segments[n-1].id
	}
	l.mu.Unlock()
	if mark.Offset <= SegmentHeaderBytes {
		return nil
	}
	if err := l.marks.write(mark); err != nil {
		return fmt.Errorf("group %s: synced mark: %w", l.opts.Identity.Name, err)
	}
	return nil
}

// write makes a mark durable, unless it is the last one.
func (f *markFile) write(mark Mark) error {
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
	if err := WriteMark(f.file, mark); err != nil {
		f.broken = true
		return err
	}
	f.last = mark
	return nil
}

// open opens the file, or makes it anew after a failure: what a failed sync left in it is not to be trusted.
func (f *markFile) open() error {
	f.closeFile()
	name := path.Join(f.dir, MarkName)
	_, err := f.fs.Stat(name)
	if f.broken || err != nil {
		if err := CreateMark(f.fs, f.dir); err != nil {
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
