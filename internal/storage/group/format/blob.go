package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	iofs "io/fs"
	"path"
	"sync"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// A blob file has this layout:
//
//	0            128                                                                    exact end
//	├── header ──┼── chunk 0: 1 MiB ──┼ CRC 4 ┼── chunk 1: 1 MiB ──┼ CRC 4 ┼─ ... last ─┼ CRC 4 ┤
//
// The header consists of magic (8 bytes), version (4), CRC (4), blob UUID (16), size (8), CRC of the data (4), and
// zeros up to byte 128.
const (
	BlobMagic       = "SHEAFBLB"
	BlobHeaderBytes = 128
	BlobCRCBytes    = 4

	// BlobRefBytes is the length of an encoded BlobRef.
	BlobRefBytes = 40
)

// Encode returns a reference in 40 bytes: UUID (16), size (8), CRC of the data (4), zeros (8), CRC of the 36 bytes
// before it (4).
func (b BlobRef) Encode() []byte {
	out := make([]byte, BlobRefBytes)
	le := binary.LittleEndian
	copy(out, b.ID[:])
	le.PutUint64(out[16:], uint64(b.Size))
	le.PutUint32(out[24:], b.CRC32C)
	le.PutUint32(out[36:], Checksum(out[:36]))
	return out
}

// BlobRef returns the reference to the blob that holds a put's data. It returns nil if the entry holds its data itself,
// or is not a put.
func (e *Entry) BlobRef() (*BlobRef, error) {
	if e.Kind != KindPut || e.Codec != CodecBlob {
		return nil, nil
	}
	ref, err := DecodeBlobRef(e.Data)
	if err != nil {
		return nil, err
	}
	return &ref, nil
}

// DecodeBlobRef is the inverse of BlobRef.Encode.
func DecodeBlobRef(data []byte) (BlobRef, error) {
	le := binary.LittleEndian
	if len(data) != BlobRefBytes || le.Uint32(data[36:]) != Checksum(data[:36]) || !IsZero(data[28:36]) {
		return BlobRef{}, fmt.Errorf("reference to a blob: %w", ErrCorrupt)
	}
	ref := BlobRef{Size: int64(le.Uint64(data[16:])), CRC32C: le.Uint32(data[24:])}
	copy(ref.ID[:], data)
	if ref.Size < 0 {
		return BlobRef{}, fmt.Errorf("reference to a blob: %w: size is negative", ErrCorrupt)
	}
	return ref, nil
}

// BlobFileBytes returns the exact file size of a blob whose data has the given number of bytes.
func BlobFileBytes(size int64) int64 {
	chunks := size / BlobChunkBytes
	if size%BlobChunkBytes != 0 {
		chunks++
	}
	return BlobHeaderBytes + size + BlobCRCBytes*chunks
}

func encodeBlobHeader(ref BlobRef) []byte {
	b := make([]byte, BlobHeaderBytes)
	copy(b[16:], ref.ID[:])
	binary.LittleEndian.PutUint64(b[32:], uint64(ref.Size))
	binary.LittleEndian.PutUint32(b[40:], ref.CRC32C)
	putHead(b, BlobMagic)
	return b
}

// DecodeBlobHeader returns the reference that the header of a blob file contains.
func DecodeBlobHeader(b []byte) (BlobRef, error) {
	if len(b) < BlobHeaderBytes {
		return BlobRef{}, fmt.Errorf("blob header: %w: %d bytes are too few", ErrCorrupt, len(b))
	}
	b = b[:BlobHeaderBytes]
	if err := checkHead(b, BlobMagic); err != nil {
		return BlobRef{}, fmt.Errorf("blob header: %w", err)
	}
	ref := BlobRef{Size: int64(binary.LittleEndian.Uint64(b[32:])), CRC32C: binary.LittleEndian.Uint32(b[40:])}
	copy(ref.ID[:], b[16:])
	if ref.Size < 0 || ref.Size > 1<<62 || !IsZero(b[44:]) {
		return BlobRef{}, fmt.Errorf("blob header: %w: size or reserved bytes", ErrCorrupt)
	}
	return ref, nil
}

// blobChunkChecksum returns a chunk's checksum. It covers the data, then the blob's id and the chunk's number.
func blobChunkChecksum(data []byte, id uuid.UUID, chunk int64) uint32 {
	crc := Checksum(data)
	crc = checksumWord(crc, binary.LittleEndian.Uint64(id[:]))
	crc = checksumWord(crc, binary.LittleEndian.Uint64(id[8:]))
	return checksumWord(crc, uint64(chunk))
}

// BlobChunk returns a chunk's offset in a blob file, and its length including the checksum. The argument size is the
// number of bytes of the blob's data.
func BlobChunk(size, number int64) (offset, length int64) {
	return BlobHeaderBytes + number*(BlobChunkBytes+BlobCRCBytes),
		min(BlobChunkBytes, size-number*BlobChunkBytes) + BlobCRCBytes
}

// IsBlobChunk reports whether b consists of the blob chunk with the given number and that chunk's valid checksum.
func IsBlobChunk(b []byte, id uuid.UUID, number int64) bool {
	n := len(b) - BlobCRCBytes
	return binary.LittleEndian.Uint32(b[n:]) == blobChunkChecksum(b[:n], id, number)
}

// blobFileWriter implements BlobWriter with one chunk of memory. It is not safe for concurrent use.
type blobFileWriter struct {
	fs     vfs.FS
	dir    string
	tmp    string   // name of the file until Commit
	file   vfs.File // nil once it is closed
	ref    BlobRef  // reference to the data received so far
	want   *BlobRef // the expected reference, or nil if any data is accepted
	chunk  []byte   // data that is not in the file yet
	number int64    // number of the chunk that is being filled
	err    error    // the first error, which all later calls return
}

// CreateBlob creates a blob file in the folder of a group. Close without Commit removes it.
func CreateBlob(fs vfs.FS, dir string) (BlobWriter, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return nil, fmt.Errorf("create blob: %w", err)
	}
	return createBlob(fs, dir, id, TmpSuffix)
}

// ReceiveBlob is like CreateBlob, for a copy of an existing blob. Commit returns ErrCorrupt unless the received data
// has the size and the checksum in ref. Until Commit, the file's name has the given suffix, which ends in TmpSuffix.
func ReceiveBlob(fs vfs.FS, dir string, ref BlobRef, suffix string) (BlobWriter, error) {
	w, err := createBlob(fs, dir, ref.ID, suffix)
	if err != nil {
		return nil, err
	}
	w.want = &ref
	return w, nil
}

func createBlob(fs vfs.FS, dir string, id uuid.UUID, suffix string) (*blobFileWriter, error) {
	tmp := path.Join(dir, BlobName(id)+suffix)
	f, err := fs.Create(tmp)
	if err != nil {
		return nil, fmt.Errorf("create blob: %w", MarkShortage(err))
	}
	return &blobFileWriter{fs: fs, dir: dir, tmp: tmp, file: f, ref: BlobRef{ID: id},
		chunk: make([]byte, 0, BlobChunkBytes+BlobCRCBytes)}, nil
}

func (w *blobFileWriter) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		if w.err != nil {
			return written, w.err
		}
		if w.file == nil {
			return written, fmt.Errorf("write blob %s: %w", w.ref.ID, ErrClosed)
		}
		n := min(len(p), BlobChunkBytes-len(w.chunk))
		w.chunk = append(w.chunk, p[:n]...)
		p, written = p[n:], written+n
		if len(w.chunk) == BlobChunkBytes {
			w.flush()
		}
	}
	return written, w.err
}

// flush writes the data in memory as a chunk with its checksum.
func (w *blobFileWriter) flush() {
	if w.want != nil && w.ref.Size+int64(len(w.chunk)) > w.want.Size {
		w.err = fmt.Errorf("write blob %s: %w: more than its %d bytes came", w.ref.ID, ErrCorrupt, w.want.Size)
		return
	}
	w.ref.CRC32C = crc32.Update(w.ref.CRC32C, crc32c.Table, w.chunk)
	crc := blobChunkChecksum(w.chunk, w.ref.ID, w.number)
	b := binary.LittleEndian.AppendUint32(w.chunk, crc)
	if _, err := w.file.WriteAt(b, BlobHeaderBytes+w.number*(BlobChunkBytes+BlobCRCBytes)); err != nil {
		w.err = fmt.Errorf("write blob %s: %w", w.ref.ID, MarkShortage(err))
		return
	}
	w.ref.Size += int64(len(w.chunk))
	w.number++
	w.chunk = w.chunk[:0]
}

// Commit makes the blob durable under its name. After an error the blob can only be closed.
func (w *blobFileWriter) Commit() (BlobRef, error) {
	if w.err == nil && w.file == nil {
		w.err = fmt.Errorf("commit blob %s: %w", w.ref.ID, ErrClosed)
	}
	if w.err == nil && len(w.chunk) > 0 {
		w.flush()
	}
	if w.err != nil {
		return BlobRef{}, w.err
	}
	if w.want != nil && w.ref != *w.want {
		w.err = fmt.Errorf("commit blob %s: %w: %d bytes with CRC %08x came, not %d with %08x", w.ref.ID, ErrCorrupt,
			w.ref.Size, w.ref.CRC32C, w.want.Size, w.want.CRC32C)
		return BlobRef{}, w.err
	}
	if err := w.finish(); err != nil {
		w.err = fmt.Errorf("commit blob %s: %w", w.ref.ID, MarkShortage(err))
		return BlobRef{}, w.err
	}
	return w.ref, nil
}

func (w *blobFileWriter) finish() error {
	if _, err := w.file.WriteAt(encodeBlobHeader(w.ref), 0); err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	f := w.file
	w.file = nil
	name := path.Join(w.dir, BlobName(w.ref.ID))
	if err := f.Close(); err != nil {
		return errors.Join(err, w.fs.Remove(w.tmp))
	}
	if err := w.fs.Rename(w.tmp, name); err != nil {
		return errors.Join(err, w.fs.Remove(w.tmp))
	}
	return w.fs.SyncDir(w.dir)
}

// Close removes an uncommitted file.
func (w *blobFileWriter) Close() error {
	if w.file == nil {
		return nil
	}
	f := w.file
	w.file = nil
	return errors.Join(f.Close(), w.fs.Remove(w.tmp))
}

// blobReader implements BlobReader. It keeps the last chunk in memory, so that small sequential reads check each
// chunk only once.
type blobReader struct {
	file  vfs.File
	group string
	ref   BlobRef

	mu     sync.Mutex
	chunk  []byte // verified data of the chunk; guarded by mu
	number int64  // number of the chunk, or -1 if there is none; guarded by mu
}

// OpenBlob opens a blob's data in a group's folder. The argument group is the group's name, for messages. OpenBlob
// compares the header and the size of the file with the reference. Each chunk is checked when it is read. If the file
// is damaged or missing, OpenBlob returns a *DamageError.
func OpenBlob(fs vfs.FS, dir, group string, ref BlobRef) (BlobReader, error) {
	r := &blobReader{group: group, ref: ref, number: -1}
	f, err := fs.Open(path.Join(dir, BlobName(ref.ID)))
	if errors.Is(err, iofs.ErrNotExist) {
		return nil, r.damaged(0, BlobFileBytes(ref.Size), "the blob's file is missing")
	}
	if err != nil {
		return nil, fmt.Errorf("open blob %s: %w", ref.ID, err)
	}
	r.file = f
	if err := r.checkFile(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, nil
}

func (r *blobReader) checkFile() error {
	size, err := r.file.Size()
	if err != nil {
		return fmt.Errorf("open blob %s: %w", r.ref.ID, err)
	}
	if want := BlobFileBytes(r.ref.Size); size != want {
		return r.damaged(min(size, want), max(size, want)-min(size, want),
			fmt.Sprintf("the file has %d bytes, not %d", size, want))
	}
	header := make([]byte, BlobHeaderBytes)
	if err := ReadFull(r.file, header, 0); err != nil {
		return r.damaged(0, BlobHeaderBytes, err.Error())
	}
	got, err := DecodeBlobHeader(header)
	if errors.Is(err, ErrFormatVersion) {
		return fmt.Errorf("open blob %s: %w", r.ref.ID, err)
	}
	if err != nil {
		return r.damaged(0, BlobHeaderBytes, err.Error())
	}
	if got != r.ref {
		return r.damaged(0, BlobHeaderBytes, "the file is another blob than the entry refers to")
	}
	return nil
}

func (r *blobReader) damaged(offset, length int64, what string) error {
	return &DamageError{Damage: Damage{Group: r.group, File: BlobName(r.ref.ID), Offset: offset, Length: length,
		What: what}}
}

func (r *blobReader) ReadAt(p []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, fmt.Errorf("read blob %s: offset %d is negative", r.ref.ID, offset)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for n < len(p) {
		at := offset + int64(n)
		if at >= r.ref.Size {
			return n, io.EOF
		}
		if err := r.load(at / BlobChunkBytes); err != nil {
			return n, err
		}
		n += copy(p[n:], r.chunk[at%BlobChunkBytes:])
	}
	return n, nil
}

// load reads a chunk into memory and checks it. The caller holds mu.
func (r *blobReader) load(number int64) error {
	if r.number == number {
		return nil
	}
	r.number = -1
	at, length := BlobChunk(r.ref.Size, number)
	if r.chunk == nil {
		r.chunk = make([]byte, 0, length)
	}
	if int64(cap(r.chunk)) < length {
		r.chunk = make([]byte, 0, BlobChunkBytes+BlobCRCBytes)
	}
	b := r.chunk[:length]
	if err := ReadFull(r.file, b, at); err != nil {
		if errors.Is(err, iofs.ErrClosed) {
			return fmt.Errorf("read blob %s: %w", r.ref.ID, err)
		}
		return r.damaged(at, length, err.Error())
	}
	if !IsBlobChunk(b, r.ref.ID, number) {
		return r.damaged(at, length, fmt.Sprintf("chunk %d: checksum", number))
	}
	r.chunk, r.number = b[:length-BlobCRCBytes], number
	return nil
}

func (r *blobReader) Close() error { return r.file.Close() }

// BlobReader reads a blob's data. ReadAt returns a *DamageError if it needs a damaged chunk.
type BlobReader interface {
	io.ReaderAt
	io.Closer
}

// BlobWriter writes a blob of any size. Close without Commit removes it.
type BlobWriter interface {
	io.Writer
	// Commit syncs the file, renames it to its final name, and returns the reference that becomes the put's data
	// (BlobRef.Encode).
	Commit() (BlobRef, error)
	io.Closer
}
