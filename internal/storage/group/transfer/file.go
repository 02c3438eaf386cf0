package transfer

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"path"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/replay"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// InstallFile is a file that is being received. The receiver calls Commit at the end of the file. Commit checks every
// byte (checksums, identity, order) and makes the file durable. If the file is bad, Commit returns ErrCorrupt and
// removes the file, so that all of it is missing again. Close without Commit keeps the bytes written so far for the
// next attempt. An error caused by a full disk is an ErrNoSpace.
type InstallFile interface {
	io.Writer
	Commit() error
	io.Closer
}

// File returns a writer for a missing file, which receives the bytes from offset Have on.
func (i *Install) File(f File) (InstallFile, error) {
	w, err := i.open(f)
	if err != nil {
		return nil, fmt.Errorf("install group %s: %s: %w", i.opts.Identity.Name, f.Name, format.MarkShortage(err))
	}
	return w, nil
}

func (i *Install) open(f File) (*installFile, error) {
	i.mu.Lock()
	in := i.find(f.Name)
	switch {
	case in == nil:
		i.mu.Unlock()
		return nil, ErrNotWanted
	case in.whole, in.busy:
		i.mu.Unlock()
		return nil, fmt.Errorf("%w: it is there, or being received", iofs.ErrExist)
	}
	in.busy = true
	w := &installFile{install: i, in: in, at: in.Have, started: in.Have, written: in.Have, dropped: in.Have,
		name: path.Join(i.incoming, in.name())}
	i.mu.Unlock()
	if in.Kind == BlobFile {
		w.name += format.TmpSuffix
	}
	if err := w.begin(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// find returns a file by its name in the export. The caller holds mu.
func (i *Install) find(name string) *incomingFile {
	if id, ok := format.ParseBlobName(name); ok {
		return i.blobs[id]
	}
	for _, f := range i.segments {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// installFile implements InstallFile.
type installFile struct {
	install *Install
	in      *incomingFile
	name    string
	file    vfs.File
	at      int64
	err     error

	arrivals *arrivals // checks the bytes as they arrive; nil if only few bytes are missing
	started  int64     // the kernel was told to write the bytes up to here
	written  int64     // the kernel has written the bytes up to here
	dropped  int64     // the kernel was told to drop the bytes up to here from the page cache
	// unwritten says that the device has failed to write, so that the page cache differs from the disk.
	unwritten bool
}

// While more bytes arrive, the kernel is told in small steps to write the bytes received so far. So little is left for
// the sync, and other writers to the device wait for one step instead of a whole file. The amount of unwritten bytes is
// limited, so that the source has to wait for a slow device. Bytes that are written and checked are dropped from the
// page cache, which other files need: a log is read past the cache.
const (
	writeOutBytes    = 1 << 20
	writeBehindBytes = 8 << 20
)

// begin opens the file, and truncates its unusable part.
func (w *installFile) begin() (err error) {
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

func (w *installFile) Write(p []byte) (int, error) {
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

// writeOut keeps the device busy. The bytes before offset read have been checked.
func (w *installFile) writeOut(read int64) error {
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

func (w *installFile) failed(err error) error {
	return fmt.Errorf("install group %s: %s: %w", w.install.opts.Identity.Name, w.in.Name, err)
}

// Commit implements InstallFile.
func (w *installFile) Commit() error {
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

// discard empties the file: it is unknown which of its bytes are right, so all have to be received again.
func (w *installFile) discard() error {
	w.at, w.unwritten = 0, false
	return errors.Join(w.file.Truncate(0), w.file.Sync())
}

// commit checks the file, which it reads from the page cache as far as the file is still cached. Then it makes the
// file durable, and marks it as complete.
func (w *installFile) commit() error {
	i := w.install
	hint, err := w.checked()
	if err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		// The bytes that the device could not write can still be read, and another sync would succeed.
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

// checked checks the file, or waits for the check that has followed the arriving data. If the file is a segment, it
// returns the hint.
func (w *installFile) checked() (*format.Hint, error) {
	if w.arrivals == nil {
		return w.check(w.file)
	}
	return w.arrivals.end()
}

// checkSegment reads a sealed segment and makes its hint. It returns ErrCorrupt if the segment differs from its
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

// Close implements InstallFile.
func (w *installFile) Close() error {
	i := w.install
	if w.arrivals != nil {
		_, _ = w.arrivals.end() // Commit has used the result already, or the result is not needed
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
