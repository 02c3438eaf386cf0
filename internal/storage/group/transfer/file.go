package transfer

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"path"
	"slices"
	"sync"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// File returns a writer for one of the missing files. The writer expects the file's bytes from offset Have on.
func (i *Install) File(f File) (*InstallFile, error) {
	in, err := i.reserve(f.Name)
	if err == nil {
		w := &InstallFile{install: i, in: in, at: in.Have, started: in.Have, written: in.Have, dropped: in.Have,
			name: path.Join(i.incoming, in.name())}
		if in.Kind == BlobFile {
			w.name += format.TmpSuffix
		}
		if err = w.begin(); err == nil {
			return w, nil
		}
		err = errors.Join(err, w.Close())
	}
	return nil, fmt.Errorf("install group %s: %s: %w", i.opts.Identity.Name, f.Name, format.MarkShortage(err))
}

// reserve marks a missing file as being received, so that only one caller writes it. The argument name is the file's
// name in the export.
func (i *Install) reserve(name string) (*incomingFile, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, in := range slices.Concat(i.segments, i.blobs) {
		switch {
		case in.Name != name:
		case in.whole, in.busy:
			return nil, fmt.Errorf("%w: it is there, or being received", iofs.ErrExist)
		default:
			in.busy = true
			return in, nil
		}
	}
	return nil, ErrNotWanted
}

// InstallFile is a file that is being received. The receiver calls Commit when all bytes were written. Close without
// Commit keeps the bytes that were written, for the next attempt. If the disk is full, its methods return an
// ErrNoSpace. An InstallFile is not safe for concurrent use.
type InstallFile struct {
	install *Install
	in      *incomingFile
	name    string   // path of the file in the incoming folder
	file    vfs.File // nil after Close
	at      int64    // number of bytes in the file
	err     error    // the first error of Write or Commit, which later calls return

	arrivals *arrivals // checks the bytes while further bytes arrive; nil if only few bytes are missing
	started  int64     // offset up to which the kernel was asked to write the bytes
	written  int64     // offset up to which the kernel has written the bytes
	dropped  int64     // offset up to which the kernel was asked to drop the bytes from the page cache
	// unwritten means that the device has failed to write, so that the page cache differs from the disk.
	unwritten bool
}

// While more bytes arrive, the kernel is asked in small steps to write the received bytes. This leaves little to do
// for the final sync, and other writers to the device have to wait only for one step, and not for a whole file. The
// number of unwritten bytes is limited, so that the sender has to wait if the device is slow. Bytes that are written
// and checked are dropped from the page cache, because other files need the cache, and reads of logs bypass it.
const (
	writeOutBytes    = 1 << 20
	writeBehindBytes = 8 << 20
)

// begin opens the file and truncates it to the usable bytes of earlier attempts.
func (w *InstallFile) begin() (err error) {
	fs := w.install.opts.FS
	if err := w.install.checkSpace(w.in.Bytes - w.at); err != nil {
		return err
	}
	w.file, err = fs.OpenWrite(w.name)
	if errors.Is(err, iofs.ErrNotExist) && w.at == 0 {
		w.file, err = fs.Create(w.name)
	}
	if err != nil {
		return err
	}
	if err := w.file.Truncate(w.at); err != nil {
		return err
	}
	if w.in.Bytes-w.at >= FollowBytesMin {
		w.arrivals = w.follow()
	}
	return nil
}

// Write appends bytes to the file. It returns ErrCorrupt if the file would become larger than the manifest says.
func (w *InstallFile) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	if w.file == nil {
		return 0, format.ErrClosed
	}
	if int64(len(p)) > w.in.Bytes-w.at {
		w.err = w.failed(fmt.Errorf("%w: more than its %d bytes were sent", format.ErrCorrupt, w.in.Bytes))
		return 0, w.err
	}
	n, err := w.file.WriteAt(p, w.at)
	w.at += int64(n)
	if err == nil && w.arrivals != nil {
		err = w.writeOut(w.arrivals.advance(w.at))
	}
	if err != nil {
		w.err = w.failed(format.MarkShortage(err))
	}
	return n, w.err
}

// writeOut asks the kernel to write the received bytes. The comment on writeOutBytes says why. The argument read is
// the offset up to which the bytes have been checked.
func (w *InstallFile) writeOut(read int64) error {
	if w.at-w.started < writeOutBytes {
		return nil
	}
	vfs.StartWriting(w.file, w.started, w.at-w.started)
	w.started = w.at
	if behind := w.at - writeBehindBytes; behind > w.written {
		if err := vfs.AwaitWriting(w.file, w.written, behind-w.written); err != nil {
			w.unwritten = true
			return err
		}
		w.written = behind
	}
	if done := min(read, w.written); done > w.dropped {
		vfs.Forget(w.file, w.dropped, done-w.dropped)
		w.dropped = done
	}
	return nil
}

func (w *InstallFile) failed(err error) error {
	return fmt.Errorf("install group %s: %s: %w", w.install.opts.Identity.Name, w.in.Name, err)
}

// Commit checks every byte (checksums, identity, order) and makes the file durable. If the file is bad, Commit returns
// ErrCorrupt and empties the file, so that all of its bytes are missing.
func (w *InstallFile) Commit() error {
	if w.err == nil && w.file == nil {
		w.err = format.ErrClosed
	}
	if w.err == nil && w.at != w.in.Bytes {
		w.err = w.failed(fmt.Errorf("%d of its %d bytes were sent: %w", w.at, w.in.Bytes, io.ErrUnexpectedEOF))
	}
	if w.err != nil {
		return w.err
	}
	err := w.commit()
	if err != nil {
		w.err = w.failed(format.MarkShortage(err))
		if errors.Is(err, format.ErrCorrupt) || w.unwritten {
			w.err = errors.Join(w.err, w.discard())
		}
		return w.err
	}
	i := w.install
	i.mu.Lock()
	defer i.mu.Unlock()
	w.in.whole = true
	if err := i.learnBlobs(); err != nil {
		w.in.whole = false
		w.err = w.failed(err)
	}
	return w.err
}

// discard empties the file, because it is not known which of its bytes are right.
func (w *InstallFile) discard() error {
	w.at, w.unwritten = 0, false
	return errors.Join(w.file.Truncate(0), w.file.Sync())
}

// commit checks the file, makes it durable, and marks it as complete. The check reads the file through the page
// cache, which may still hold a part of it.
func (w *InstallFile) commit() error {
	i := w.install
	var hint *format.Hint
	var err error
	if w.arrivals != nil {
		hint, err = w.arrivals.end()
	} else {
		hint, err = w.check(w.file)
	}
	if err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		// After this error, the page cache still returns the bytes that the device could not write, and another sync would
		// succeed without having written them.
		w.unwritten = true
		return err
	}
	if w.arrivals != nil {
		vfs.Forget(w.file, 0, w.at)
	}
	if w.in.Kind == BlobFile {
		if err := i.opts.FS.Rename(w.name, path.Join(i.incoming, w.in.name())); err != nil {
			return err
		}
		return i.opts.FS.SyncDir(i.incoming)
	}
	if err := i.opts.FS.SyncDir(i.incoming); err != nil {
		return err
	}
	return format.WriteHint(i.opts.FS, i.incoming, w.in.segment.Number, hint)
}

// check reads a complete file. It returns an error if the file is bad, and the hint if the file is a segment.
func (w *InstallFile) check(f io.ReaderAt) (*format.Hint, error) {
	if w.in.Kind == SegmentFile {
		return checkSegment(f, w.install.opts.Identity, w.in.segment)
	}
	bad, err := checkBlob(f, w.in.Bytes, w.in.ref)
	if len(bad) > 0 {
		return nil, fmt.Errorf("%w: %d bytes at offset %d: %s", format.ErrCorrupt, bad[0].Length, bad[0].Offset, bad[0].What)
	}
	return nil, err
}

// checkSegment reads a sealed segment and creates its hint. It returns ErrCorrupt if the segment differs from its
// description in the manifest.
func checkSegment(f io.ReaderAt, identity format.Identity, m format.ManifestSegment) (*format.Hint, error) {
	header := make([]byte, format.SegmentHeaderBytes)
	if err := format.ReadFull(f, header, 0); err != nil {
		return nil, err
	}
	if err := format.CheckSegmentHeader(header, identity, m); errors.Is(err, format.ErrFormatVersion) {
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", format.ErrCorrupt, err)
	}
	space := segio.FrameBuffers.Get().(*[]byte)
	defer segio.FrameBuffers.Put(space)
	r := segio.NewFrameReader(f, m.ID, format.SegmentHeaderBytes, m.Bytes)
	r.UseBuffer(*space)
	w, err := replay.Segment(r, m.FirstIndex, m.Bytes, true)
	if err == nil {
		err = w.Whole(m.Bytes)
	}
	if err != nil {
		return nil, err
	}
	if w.Last > m.LastIndex {
		return nil, fmt.Errorf("%w: it ends with index %d, the manifest says %d", format.ErrCorrupt, w.Last, m.LastIndex)
	}
	hint := w.Rows.Hint(m, w.Terms)
	if err := hint.Check(); err != nil {
		return nil, err
	}
	return hint, nil
}

// Close stops writing. It keeps the bytes of a file that was not committed, unless the device failed to write them.
func (w *InstallFile) Close() error {
	i := w.install
	if w.arrivals != nil {
		// Either Commit has already taken the result, or the result is not needed.
		_, _ = w.arrivals.end()
	}
	var err error
	if w.unwritten {
		err = w.discard()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if w.in.busy {
		w.in.busy, w.in.Have = false, w.at
	}
	if w.file == nil {
		return err
	}
	f := w.file
	w.file = nil
	return errors.Join(err, f.Close())
}

// FollowBytesMin is the minimum number of missing bytes for which a file is checked while it arrives. The check of a
// large file is then almost finished when its last byte arrives, and its CPU time is spread over the transfer. A file
// with fewer missing bytes is checked when it is complete.
const FollowBytesMin = 4 << 20

// arrivals lets one goroutine read a file while another goroutine writes it. A read waits until its bytes are written.
type arrivals struct {
	file vfs.File
	size int64 // size of the whole file
	over chan struct{}
	// hint and err are the results of the check. They are set before over is closed.
	hint *format.Hint
	err  error

	mu    sync.Mutex
	come  sync.Cond
	at    int64 // number of bytes written; guarded by mu
	ended bool  // no further bytes will be written; guarded by mu
	read  int64 // offset up to which the file was read; guarded by mu
}

// follow starts to check a file while it is still being received.
func (w *InstallFile) follow() *arrivals {
	f := &arrivals{file: w.file, size: w.in.Bytes, at: w.at, over: make(chan struct{})}
	f.come.L = &f.mu
	go func() {
		defer close(f.over)
		f.hint, f.err = w.check(f)
	}()
	return f
}

// ReadAt implements io.ReaderAt.
func (f *arrivals) ReadAt(p []byte, offset int64) (int, error) {
	through := min(offset+int64(len(p)), f.size)
	f.mu.Lock()
	f.read = max(f.read, offset) // the check reads in order, so it has read all bytes before this offset
	for f.at < through && !f.ended {
		f.come.Wait()
	}
	short := f.at < through
	f.mu.Unlock()
	if short {
		return 0, segio.ErrStop
	}
	return f.file.ReadAt(p, offset)
}

// advance records that the file was written up to an offset. It returns the offset up to which the file was read.
func (f *arrivals) advance(at int64) (read int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = at
	f.come.Signal()
	return f.read
}

// end waits until the check has finished and returns its results. If the whole file was written, the check reads it to
// its end.
func (f *arrivals) end() (*format.Hint, error) {
	f.mu.Lock()
	f.ended = true
	f.come.Signal()
	f.mu.Unlock()
	<-f.over
	return f.hint, f.err
}
