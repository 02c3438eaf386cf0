package object

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
)

// Decoder reads the content of one object. It verifies all data before it returns it. It holds one chunk in memory. It
// is not safe for concurrent use.
type Decoder struct {
	chunks *Chunks
	src    io.Reader
	left   int64  // number of content bytes that have not been read yet
	chunk  int64  // number of the next chunk
	buffer []byte // holds one chunk with its check
	ready  []byte // the part of the content that Read returns next
	err    error
}

// NewDecoder reads an object's envelope from src, which must be at the beginning of the object. It returns ErrForeign
// if the object belongs to another store or is of another kind, and ErrKey if the object's key is not among the given
// keys.
func NewDecoder(src io.Reader, store uuid.UUID, kind Kind, keys Keys) (*Decoder, error) {
	return newDecoder(src, func(encoded []byte) (*Chunks, error) { return NewChunks(encoded, store, kind, keys) })
}

func newDecoder(src io.Reader, open func(encoded []byte) (*Chunks, error)) (*Decoder, error) {
	encoded := make([]byte, EnvelopeBytes)
	if n, err := io.ReadFull(src, encoded); err != nil {
		return nil, shorter(err, int64(n), EnvelopeBytes)
	}
	chunks, err := open(encoded)
	if err != nil {
		return nil, err
	}
	e := chunks.envelope
	return &Decoder{
		chunks: chunks, src: src, left: e.ContentBytes,
		buffer: make([]byte, min(ChunkBytes, e.ContentBytes)+e.Cipher.checkBytes()),
	}, nil
}

// NewRangeDecoder returns a Decoder for a part of an object's content. The part begins at an offset, in bytes of the
// content, and ends where the object ends, or where the reader that open returns ends. NewRangeDecoder calls open
// once, with the offset in the object at which that reader must start. The envelope must have been decoded before.
// Header must not be called.
func NewRangeDecoder(e Envelope, keys Keys, offset int64, open func(objectOffset int64) (io.Reader, error)) (*Decoder,
	error) {
	if offset < 0 || offset > e.ContentBytes {
		return nil, fmt.Errorf("offset %d of a content of %d bytes", offset, e.ContentBytes)
	}
	chunks, err := NewChunks(e.Encode(), e.Store, e.Kind, keys)
	if err != nil {
		return nil, err
	}
	chunk := offset / ChunkBytes
	at, _ := chunks.Place(chunk)
	src, err := open(at)
	if err != nil {
		return nil, err
	}
	left := e.ContentBytes - chunk*ChunkBytes
	d := &Decoder{
		chunks: chunks, src: src, left: left, chunk: chunk,
		buffer: make([]byte, min(ChunkBytes, left)+e.Cipher.checkBytes()),
	}
	_, err = io.CopyN(io.Discard, d, offset-chunk*ChunkBytes)
	return d, err
}

// EndOfRange returns the offset in the object that a reader must reach to read the content up to the offset end. It
// is the end of the chunk with the last of these content bytes.
func (e *Envelope) EndOfRange(end int64) int64 {
	chunks := (end + ChunkBytes - 1) / ChunkBytes
	return min(EnvelopeBytes+chunks*(ChunkBytes+e.Cipher.checkBytes()), e.ObjectBytes())
}

// shorter converts an end-of-data error to an error that says that the object is too short. It returns other errors,
// such as those of a connection, unchanged.
func shorter(err error, have, want int64) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends after %d of %d bytes", ErrCorrupt, have, want)
	}
	return err
}

// Envelope returns the object's envelope.
func (d *Decoder) Envelope() Envelope { return d.chunks.Envelope() }

// Header decodes the header into *to, and checks it. It must be called exactly once, before Read. JSON members that
// the type of *to does not have are ignored.
func (d *Decoder) Header(to Header) error {
	e := d.chunks.envelope
	buffer := bytes.NewBuffer(make([]byte, 0, min(e.HeaderBytes, ChunkBytes)))
	if _, err := io.CopyN(buffer, d, e.HeaderBytes); err != nil {
		return err
	}
	return d.chunks.Header(buffer.Bytes(), to)
}

// Read implements io.Reader. It returns io.EOF only if the object ends where its envelope says that it ends.
func (d *Decoder) Read(p []byte) (int, error) {
	if len(d.ready) == 0 && d.err == nil {
		d.fill()
	}
	if len(d.ready) == 0 {
		return 0, d.err
	}
	n := copy(p, d.ready)
	d.ready = d.ready[n:]
	return n, nil
}

// fill reads and checks the next chunk.
func (d *Decoder) fill() {
	if d.left == 0 {
		d.err = d.end()
		return
	}
	offset, length := d.chunks.Place(d.chunk)
	stored := d.buffer[:length]
	if n, err := io.ReadFull(d.src, stored); err != nil {
		d.err = shorter(err, offset+int64(n), d.chunks.envelope.ObjectBytes())
		return
	}
	d.left -= min(ChunkBytes, d.left)
	d.ready, d.err = d.chunks.Open(stored, d.chunk)
	d.chunk++
}

// end returns io.EOF if nothing follows the last chunk.
func (d *Decoder) end() error {
	switch n, err := io.ReadFull(d.src, d.buffer[:1]); {
	case n > 0:
		return fmt.Errorf("%w: bytes follow its end", ErrCorrupt)
	case err == io.EOF:
		return io.EOF
	default:
		return err
	}
}

// Verify reads a whole object, and checks everything that can be checked without a key: the envelope, the length, and
// the CRC of each chunk.
func Verify(src io.Reader, store uuid.UUID, kind Kind) (Envelope, error) {
	anyKey := Key{secret: func() []byte { return make([]byte, KeyBytes) }}
	d, err := newDecoder(src, func(encoded []byte) (*Chunks, error) {
		return newChunks(encoded, store, kind, func(*Envelope) (Key, error) { return anyKey, nil })
	})
	if err != nil {
		return Envelope{}, err
	}
	d.chunks.seal.aead = nil // the CRC covers the encrypted bytes, so no key is needed
	for d.err == nil {
		d.fill()
	}
	if d.err != io.EOF { //nolint:errorlint // end returns io.EOF itself
		return d.Envelope(), d.err
	}
	return d.Envelope(), nil
}
