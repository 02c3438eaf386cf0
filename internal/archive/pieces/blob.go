package pieces

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// NewBlobReader returns a reader of a record's data. The argument src reads the blob's file, in the format of
// docs/format.md, from its first byte. The reader checks each chunk before it returns it, and returns io.EOF only
// after all of the data that ref describes. If the file is damaged, the error wraps object.ErrCorrupt. The reader
// holds one chunk of 1 MiB in memory.
func NewBlobReader(src io.Reader, ref format.BlobRef) io.Reader {
	return &blobReader{src: src, ref: ref, number: -1}
}

type blobReader struct {
	src    io.Reader
	ref    format.BlobRef
	number int64  // number of the next chunk; -1 before the header was read
	crc    uint32 // CRC of the data read so far
	buf    []byte
	ready  []byte // the part of the chunk that Read returns next
	err    error
}

// Read implements io.Reader.
func (r *blobReader) Read(p []byte) (int, error) {
	for len(r.ready) == 0 && r.err == nil {
		r.err = r.fill()
	}
	if len(r.ready) == 0 {
		return 0, r.err
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

func (r *blobReader) damage(what string) error {
	return fmt.Errorf("%w: blob %s, chunk %d: %s", object.ErrCorrupt, r.ref.ID, r.number, what)
}

func (r *blobReader) read(n int64) ([]byte, error) {
	if r.buf == nil {
		r.buf = make([]byte, format.BlobChunkBytes+format.BlobCRCBytes)
	}
	_, err := io.ReadFull(r.src, r.buf[:n])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, r.damage("the file ends too early")
	}
	return r.buf[:n], err
}

// fill reads the header or the next chunk.
func (r *blobReader) fill() error {
	if r.number < 0 {
		header, err := r.read(format.BlobHeaderBytes)
		if err != nil {
			return err
		}
		if ref, err := format.DecodeBlobHeader(header); err != nil || ref != r.ref {
			return r.damage(fmt.Sprintf("the header is of %+v, error %v", ref, err))
		}
		r.number = 0
		return nil
	}
	if r.number*format.BlobChunkBytes >= r.ref.Size {
		if r.crc != r.ref.CRC32C {
			return r.damage("checksum of the whole data")
		}
		if n, err := io.ReadFull(r.src, r.buf[:1]); n > 0 || !errors.Is(err, io.EOF) {
			return errors.Join(r.damage("bytes follow its end"), err)
		}
		return io.EOF
	}
	_, length := format.BlobChunk(r.ref.Size, r.number)
	b, err := r.read(length)
	if err != nil {
		return err
	}
	if !format.IsBlobChunk(b, r.ref.ID, r.number) {
		return r.damage("checksum")
	}
	r.ready = b[:length-format.BlobCRCBytes]
	r.crc = crc32.Update(r.crc, crc32c.Table, r.ready)
	r.number++
	return nil
}
