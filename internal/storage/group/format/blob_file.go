package format

import (
	"encoding/binary"
	"errors"
	"io"
)

// BlobFileReader returns a reader that produces the content of a blob file, for data that was received without the
// file. The checksums in this content are computed from data, so they cannot show whether data is correct. Only the
// checksum in the reference can. The reader keeps one chunk of 1 MiB in memory. If data has fewer bytes than the
// reference says, the reader returns io.ErrUnexpectedEOF.
func BlobFileReader(ref BlobRef, data io.Reader) io.Reader {
	return &blobFileReader{ref: ref, data: data, left: ref.Size, ready: encodeBlobHeader(ref)}
}

// blobFileReader implements the reader of BlobFileReader.
type blobFileReader struct {
	ref    BlobRef
	data   io.Reader
	left   int64  // number of data bytes that have not been read yet
	number int64  // number of the next chunk
	chunk  []byte // memory for one chunk
	ready  []byte // bytes of the file that Read returns next
}

// Read implements io.Reader.
func (r *blobFileReader) Read(p []byte) (int, error) {
	if len(r.ready) == 0 {
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

// fill reads the next chunk.
func (r *blobFileReader) fill() error {
	if r.left == 0 {
		return io.EOF
	}
	if r.chunk == nil {
		r.chunk = make([]byte, min(r.left, BlobChunkBytes)+BlobCRCBytes)
	}
	n := min(r.left, BlobChunkBytes)
	if _, err := io.ReadFull(r.data, r.chunk[:n]); errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	sum := blobChunkChecksum(r.chunk[:n], r.ref.ID, r.number)
	binary.LittleEndian.PutUint32(r.chunk[n:], sum)
	r.ready, r.left, r.number = r.chunk[:n+BlobCRCBytes], r.left-n, r.number+1
	return nil
}
