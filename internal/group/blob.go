package group

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

	"sheaf.dev/sheaf/internal/vfs"
)

// A blob file:
//
//	0            128                                                                    exact end
//	├── header ──┼── chunk 0: 1 MiB ──┼ CRC 4 ┼── chunk 1: 1 MiB ──┼ CRC 4 ┼─ ... last ─┼ CRC 4 ┤
//
// Header: magic (8), version (4), CRC (4), blob UUID (16), size (8), CRC of the data (4), zeros to 128.
const (
	blobMagic       = "SHEAFBLB"
	blobHeaderBytes = 128
	blobCRCBytes    = 4

	// BlobRefBytes is the length of an encoded BlobRef.
	BlobRefBytes = 40
)

// Encode makes the 40 bytes of a reference: UUID (16), size (8), CRC of the data (4), zeros (8), CRC of these 36 (4).
func (b BlobRef) Encode() []byte {
	out := make([]byte, BlobRefBytes)
	b.encode(out)
	return out
}

func (b BlobRef) encode(out []byte) {
	le := binary.LittleEndian
	copy(out, b.ID[:])
	le.PutUint64(out[16:], uint64(b.Size))
	le.PutUint32(out[24:], b.CRC32C)
	clear(out[28:36])
	le.PutUint32(out[36:], checksum(out[:36]))
}

// DecodeBlobRef is the reverse of BlobRef.Encode.
func DecodeBlobRef(data []byte) (BlobRef, error) {
	le := binary.LittleEndian
	if len(data) != BlobRefBytes || le.Uint32(data[36:]) != checksum(data[:36]) || !isZero(data[28:36]) {
		return BlobRef{}, fmt.Errorf("reference to a blob: %w", ErrCorrupt)
	}
	ref := BlobRef{Size: int64(le.Uint64(data[16:])), CRC32C: le.Uint32(data[24:])}
	copy(ref.ID[:], data)
	if ref.Size < 0 {
		return BlobRef{}, fmt.Errorf("reference to a blob: %w: size is negative", ErrCorrupt)
	}
	return ref, nil
}

// BlobFileBytes is the exact size of the file of a blob with so many bytes of data.
func BlobFileBytes(size int64) int64 {
	chunks := size / BlobChunkBytes
	if size%BlobChunkBytes != 0 {
		chunks++
	}
	return blobHeaderBytes + size + blobCRCBytes*chunks
}

func encodeBlobHeader(ref BlobRef) []byte {
	b := make([]byte, blobHeaderBytes)
	copy(b[16:], ref.ID[:])
	binary.LittleEndian.PutUint64(b[32:], uint64(ref.Size))
	binary.LittleEndian.PutUint32(b[40:], ref.CRC32C)
	putHead(b, blobMagic)
	return b
}

// decodeBlobHeader gives the reference that the file itself claims to be of.
func decodeBlobHeader(b []byte) (BlobRef, error) {
	if len(b) < blobHeaderBytes {
		return BlobRef{}, fmt.Errorf("blob header: %w: %d bytes are too few", ErrCorrupt, len(b))
	}
	b = b[:blobHeaderBytes]
	if err := checkHead(b, blobMagic); err != nil {
		return BlobRef{}, fmt.Errorf("blob header: %w", err)
	}
	ref := BlobRef{Size: int64(binary.LittleEndian.Uint64(b[32:])), CRC32C: binary.LittleEndian.Uint32(b[40:])}
	copy(ref.ID[:], b[16:])
	if ref.Size < 0 || ref.Size > 1<<62 || !isZero(b[44:]) {
		return BlobRef{}, fmt.Errorf("blob header: %w: size or reserved bytes", ErrCorrupt)
	}
	return ref, nil
}

// blobChunkChecksum covers the data, then the blob's id and the number of the chunk.
func blobChunkChecksum(data []byte, id uuid.UUID, chunk int64) uint32 {
	crc := checksum(data)
	crc = checksumWord(crc, binary.LittleEndian.Uint64(id[:]))
	crc = checksumWord(crc, binary.LittleEndian.Uint64(id[8:]))
	return checksumWord(crc, uint64(chunk))
}

// blobWriter implements BlobWriter with one chunk of memory. Used by one goroutine at a time.
type blobWriter struct {
	fs     vfs.FS
	dir    string
	tmp    string   // name of the file until it is whole
	file   vfs.File // nil: closed
	ref    BlobRef  // of what came so far
	want   *BlobRef // what must come; nil: anything
	chunk  []byte   // not yet written
	number int64    // of that chunk
	err    error    // the first failure, which stays
}

// CreateBlob begins a blob file in the folder of a group. Close without Commit removes it.
func CreateBlob(fs vfs.FS, dir string) (BlobWriter, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return nil, fmt.Errorf("create blob: %w", err)
	}
	return createBlob(fs, dir, id, TmpSuffix)
}

func createBlob(fs vfs.FS, dir string, id uuid.UUID, suffix string) (*blobWriter, error) {
	tmp := path.Join(dir, BlobName(id)+suffix)
	f, err := fs.Create(tmp)
	if err != nil {
		return nil, fmt.Errorf("create blob: %w", noSpace(err))
	}
	return &blobWriter{fs: fs, dir: dir, tmp: tmp, file: f, ref: BlobRef{ID: id}, chunk: make([]byte, 0, BlobChunkBytes+blobCRCBytes)}, nil
}

func (w *blobWriter) Write(p []byte) (int, error) {
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

// flush writes the chunk and its checksum.
func (w *blobWriter) flush() {
	if w.want != nil && w.ref.Size+int64(len(w.chunk)) > w.want.Size {
		w.err = fmt.Errorf("write blob %s: %w: more than its %d bytes came", w.ref.ID, ErrCorrupt, w.want.Size)
		return
	}
	w.ref.CRC32C = crc32.Update(w.ref.CRC32C, castagnoli, w.chunk)
	crc := blobChunkChecksum(w.chunk, w.ref.ID, w.number)
	b := binary.LittleEndian.AppendUint32(w.chunk, crc)
	if _, err := w.file.WriteAt(b, blobHeaderBytes+w.number*(BlobChunkBytes+blobCRCBytes)); err != nil {
		w.err = fmt.Errorf("write blob %s: %w", w.ref.ID, noSpace(err))
		return
	}
	w.ref.Size += int64(len(w.chunk))
	w.number++
	w.chunk = w.chunk[:0]
}

// Commit makes the blob durable under its name. After an error it can only be closed.
func (w *blobWriter) Commit() (BlobRef, error) {
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
		w.err = fmt.Errorf("commit blob %s: %w", w.ref.ID, noSpace(err))
		return BlobRef{}, w.err
	}
	return w.ref, nil
}

func (w *blobWriter) finish() error {
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

// Close removes what was not committed.
func (w *blobWriter) Close() error {
	if w.file == nil {
		return nil
	}
	f := w.file
	w.file = nil
	return errors.Join(f.Close(), w.fs.Remove(w.tmp))
}

// blobReader implements BlobReader. It keeps the last chunk, so that small reads in order check each chunk once.
type blobReader struct {
	file  vfs.File
	group string
	ref   BlobRef

	mu     sync.Mutex
	chunk  []byte // guarded by mu: the data of chunk number, verified
	number int64  // guarded by mu; -1: none
}

// OpenBlob opens the data of a blob in the folder of a group; group is its name, for messages. The header and the exact
// size are checked against the reference here, each chunk when it is read. Errors: *DamageError, also where the file is
// missing.
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
		return r.damaged(min(size, want), max(size, want)-min(size, want), fmt.Sprintf("the file has %d bytes, not %d", size, want))
	}
	header := make([]byte, blobHeaderBytes)
	if err := readFull(r.file, header, 0); err != nil {
		return r.damaged(0, blobHeaderBytes, err.Error())
	}
	got, err := decodeBlobHeader(header)
	if errors.Is(err, ErrFormatVersion) {
		return fmt.Errorf("open blob %s: %w", r.ref.ID, err)
	}
	if err != nil {
		return r.damaged(0, blobHeaderBytes, err.Error())
	}
	if got != r.ref {
		return r.damaged(0, blobHeaderBytes, "the file is another blob than the entry refers to")
	}
	return nil
}

func (r *blobReader) damaged(offset, length int64, what string) error {
	return &DamageError{Damage: Damage{Group: r.group, File: BlobName(r.ref.ID), Offset: offset, Length: length, What: what}}
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

// load reads and checks a chunk. Called with mu held.
func (r *blobReader) load(number int64) error {
	if r.number == number {
		return nil
	}
	r.number = -1
	at := blobHeaderBytes + number*(BlobChunkBytes+blobCRCBytes)
	length := min(BlobChunkBytes, r.ref.Size-number*BlobChunkBytes)
	if r.chunk == nil {
		r.chunk = make([]byte, 0, length+blobCRCBytes)
	}
	if int64(cap(r.chunk)) < length+blobCRCBytes {
		r.chunk = make([]byte, 0, BlobChunkBytes+blobCRCBytes)
	}
	b := r.chunk[:length+blobCRCBytes]
	if err := readFull(r.file, b, at); err != nil {
		if errors.Is(err, iofs.ErrClosed) {
			return fmt.Errorf("read blob %s: %w", r.ref.ID, err)
		}
		return r.damaged(at, length+blobCRCBytes, err.Error())
	}
	if binary.LittleEndian.Uint32(b[length:]) != blobChunkChecksum(b[:length], r.ref.ID, number) {
		return r.damaged(at, length+blobCRCBytes, fmt.Sprintf("chunk %d: checksum", number))
	}
	r.chunk, r.number = b[:length], number
	return nil
}

func (r *blobReader) Close() error { return r.file.Close() }
