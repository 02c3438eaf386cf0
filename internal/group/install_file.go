package group

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	iofs "io/fs"
	"path"

	"sheaf.dev/sheaf/internal/vfs"
)

// InstallFile is a file being received. Commit, which the receiver calls at the file's end, checks every byte (checksums,
// identity, order) and makes it durable; a bad one is removed, and missing again from its begin: ErrCorrupt. Close without
// Commit keeps what was written, for the next try. Errors of a full disk are ErrNoSpace.
type InstallFile interface {
	io.Writer
	Commit() error
	io.Closer
}

// File receives a missing file from its Have on.
func (i *Install) File(f ExportFile) (InstallFile, error) {
	w, err := i.open(f)
	if err != nil {
		return nil, fmt.Errorf("install group %s: %s: %w", i.opts.Identity.Name, f.Name, noSpace(err))
	}
	return w, nil
}

func (i *Install) open(f ExportFile) (*installFile, error) {
	i.mu.Lock()
	in := i.find(f.Name)
	switch {
	case in == nil:
		i.mu.Unlock()
		return nil, fmt.Errorf("%w: it is not wanted", ErrNotFound)
	case in.whole, in.busy:
		i.mu.Unlock()
		return nil, fmt.Errorf("%w: it is there, or being received", iofs.ErrExist)
	}
	in.busy = true
	w := &installFile{install: i, in: in, at: in.Have, started: in.Have, name: path.Join(i.incoming, in.name())}
	i.mu.Unlock()
	if in.Kind == BlobFile {
		w.name += TmpSuffix
	}
	if err := w.begin(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// find gives a file by its name in the export. The caller holds mu.
func (i *Install) find(name string) *incomingFile {
	if id, ok := ParseBlobName(name); ok {
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
	started int64 // up to here the kernel was told to write
	err     error
}

// writeOutBytes is how much is gathered in the page cache before the kernel is told to write it: the device works while more comes, so
// that little is left for the sync.
const writeOutBytes = 8 << 20

// begin opens the file, and cuts off what cannot be used.
func (w *installFile) begin() (err error) {
	fs := w.install.opts.FS
	if err := w.install.room(w.in.Bytes - w.at); err != nil {
		return err
	}
	w.file, err = fs.OpenWrite(w.name)
	if errors.Is(err, iofs.ErrNotExist) && w.at == 0 {
		w.file, err = fs.Create(w.name)
	}
	if err != nil {
		return err
	}
	return w.file.Truncate(w.at)
}

func (w *installFile) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	if w.file == nil {
		return 0, ErrClosed
	}
	if int64(len(p)) > w.in.Bytes-w.at {
		w.err = w.failed(fmt.Errorf("%w: more than its %d bytes were sent", ErrCorrupt, w.in.Bytes))
		return 0, w.err
	}
	n, err := w.file.WriteAt(p, w.at)
	w.at += int64(n)
	if err != nil {
		w.err = w.failed(noSpace(err))
	}
	if w.at-w.started >= writeOutBytes {
		vfs.StartWriting(w.file, w.started, w.at-w.started)
		w.started = w.at
	}
	return n, w.err
}

func (w *installFile) failed(err error) error {
	return fmt.Errorf("install group %s: %s: %w", w.install.opts.Identity.Name, w.in.Name, err)
}

// Commit implements InstallFile.
func (w *installFile) Commit() error {
	if w.err == nil && w.file == nil {
		w.err = ErrClosed
	}
	if w.err == nil && w.at != w.in.Bytes {
		w.err = w.failed(fmt.Errorf("%d of its %d bytes were sent: %w", w.at, w.in.Bytes, io.ErrUnexpectedEOF))
	}
	if w.err != nil {
		return w.err
	}
	err := w.commit()
	if err != nil {
		w.err = w.failed(noSpace(err))
		if !errors.Is(err, ErrCorrupt) {
			return w.err
		}
		// Nothing tells which of the bytes are right: all come anew.
		w.at = 0
		if err := errors.Join(w.file.Truncate(0), w.file.Sync()); err != nil {
			w.err = errors.Join(w.err, err)
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

// commit checks the file, through the page cache where it still is, then makes it durable, and then says that it is whole.
func (w *installFile) commit() error {
	i := w.install
	if w.in.Kind == BlobFile {
		_, bad, err := scanBlobPrefix(w.file, w.at, w.in.ref)
		if bad != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, bad)
		}
		if err == nil {
			err = w.file.Sync()
		}
		if err == nil {
			err = i.opts.FS.Rename(w.name, path.Join(i.incoming, w.in.name()))
		}
		if err == nil {
			err = i.opts.FS.SyncDir(i.incoming)
		}
		return err
	}
	hint, err := checkSegment(w.file, i.opts.Identity, w.in.segment)
	if err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	if err := i.opts.FS.SyncDir(i.incoming); err != nil {
		return err
	}
	return WriteHint(i.opts.FS, i.incoming, w.in.segment.Number, hint)
}

// checkSegment reads a sealed segment and makes its hint. ErrCorrupt: it is not as the manifest says.
func checkSegment(f vfs.File, identity Identity, m ManifestSegment) (*Hint, error) {
	header := make([]byte, SegmentHeaderBytes)
	if err := readFull(f, header, 0); err != nil {
		return nil, err
	}
	if err := CheckSegmentHeader(header, identity, m); errors.Is(err, ErrFormatVersion) {
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	space := frameBuffers.Get().(*[]byte)
	defer frameBuffers.Put(space)
	r := NewFrameReader(f, m.ID, SegmentHeaderBytes, m.Bytes)
	r.UseBuffer(*space)
	w, err := walkSegment(r, m.FirstIndex, m.Bytes, true)
	switch {
	case err != nil:
		return nil, err
	case len(w.bad) > 0:
		return nil, fmt.Errorf("%w: %d bytes at offset %d: %s", ErrCorrupt, w.bad[0].bytes, w.bad[0].offset, w.bad[0].what)
	case w.zeros != m.Bytes:
		return nil, fmt.Errorf("%w: zeros from offset %d on", ErrCorrupt, w.zeros)
	case w.last > m.LastIndex:
		return nil, fmt.Errorf("%w: it ends with index %d, the manifest says %d", ErrCorrupt, w.last, m.LastIndex)
	}
	hint := w.rows.hint(m, w.terms)
	if err := hint.check(); err != nil {
		return nil, err
	}
	return hint, nil
}

// scanBlobPrefix tells how far the file of a blob is whole, and why it is not to its end; nil: it is.
func scanBlobPrefix(f io.ReaderAt, size int64, ref BlobRef) (end int64, bad, err error) {
	if size < blobHeaderBytes {
		return 0, fmt.Errorf("%w: %d bytes are too few", ErrCorrupt, size), nil
	}
	header := make([]byte, blobHeaderBytes)
	if err := readFull(f, header, 0); err != nil {
		return 0, err, nil
	}
	if got, err := decodeBlobHeader(header); err != nil || got != ref {
		return 0, fmt.Errorf("%w: it is another blob than the entry refers to, or its header is bad", ErrCorrupt), nil
	}
	end = blobHeaderBytes
	crc := uint32(0)
	chunk := make([]byte, min(BlobChunkBytes, ref.Size)+blobCRCBytes)
	for number := int64(0); number*BlobChunkBytes < ref.Size; number++ {
		b := chunk[:min(BlobChunkBytes, ref.Size-number*BlobChunkBytes)+blobCRCBytes]
		n := len(b) - blobCRCBytes
		if size-end < int64(len(b)) {
			return end, fmt.Errorf("%w: the file ends at %d of %d bytes", ErrCorrupt, size, BlobFileBytes(ref.Size)), nil
		}
		if err := readFull(f, b, end); err != nil {
			return end, err, nil
		}
		if binary.LittleEndian.Uint32(b[n:]) != blobChunkChecksum(b[:n], ref.ID, number) {
			return end, fmt.Errorf("%w: checksum of chunk %d", ErrCorrupt, number), nil
		}
		crc = crc32.Update(crc, castagnoli, b[:n])
		end += int64(len(b))
	}
	switch {
	case size != end:
		return end, fmt.Errorf("%w: the file has %d bytes, not %d", ErrCorrupt, size, end), nil
	case crc != ref.CRC32C:
		return 0, fmt.Errorf("%w: checksum of the whole data", ErrCorrupt), nil
	}
	return end, nil, nil
}

// Close implements InstallFile.
func (w *installFile) Close() error {
	i := w.install
	i.mu.Lock()
	defer i.mu.Unlock()
	if w.in.busy {
		w.in.busy, w.in.Have = false, w.at
	}
	if w.file == nil {
		return nil
	}
	f := w.file
	w.file = nil
	return f.Close()
}
