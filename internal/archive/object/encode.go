package object

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/google/uuid"
)

// Spec says what an object is to hold.
type Spec struct {
	Store     uuid.UUID
	Kind      Kind
	Header    any       // encoded as JSON; one of the header types of this package
	Body      io.Reader // follows the header; nil: empty
	BodyBytes int64     // the exact length of Body
	Key       Key       // encrypts the content; zero: not encrypted
}

// Encoder is the bytes of one object, as a reader. It holds one chunk in memory. It is not safe for concurrent use.
type Encoder struct {
	envelope *Envelope
	seal     *seal
	content  io.Reader // header, then body
	left     int64     // bytes of the content that are not read yet
	chunk    int64     // number of the next chunk
	buffer   []byte    // one chunk with its check
	ready    []byte    // the part of the object that Read returns next
	err      error
}

// NewEncoder makes an object with a random id. The error says that the header cannot be encoded or is too long.
func NewEncoder(spec Spec) (*Encoder, error) { return newEncoder(spec, newID()) }

func newEncoder(spec Spec, id uuid.UUID) (*Encoder, error) {
	header, err := json.Marshal(spec.Header)
	if err != nil {
		return nil, err
	}
	if len(header) > HeaderBytesMax {
		return nil, fmt.Errorf("the header of a %s object has %d bytes, at most %d are allowed", spec.Kind, len(header),
			HeaderBytesMax)
	}
	e := &Envelope{
		Store: spec.Store, ID: id, Kind: spec.Kind, HeaderBytes: int64(len(header)),
		ContentBytes: int64(len(header)) + spec.BodyBytes, KeyID: spec.Key.ID(),
	}
	if !spec.Key.IsZero() {
		e.Cipher = CipherAES256GCM
	}
	encoded := e.Encode()
	s, err := newSeal(e, encoded, spec.Key)
	if err != nil {
		return nil, err
	}
	body := spec.Body
	if body == nil {
		body = bytes.NewReader(nil)
	}
	return &Encoder{
		envelope: e, seal: s, left: e.ContentBytes, ready: encoded,
		content: io.MultiReader(bytes.NewReader(header), body),
		buffer:  make([]byte, min(ChunkBytes, e.ContentBytes)+e.Cipher.checkBytes()),
	}, nil
}

// Envelope returns the envelope of the object.
func (e *Encoder) Envelope() Envelope { return *e.envelope }

// Bytes returns the size of the whole object.
func (e *Encoder) Bytes() int64 { return e.envelope.ObjectBytes() }

// Read implements io.Reader. It fails with io.ErrUnexpectedEOF if the body is shorter than was said; it ignores what
// the body has after that.
func (e *Encoder) Read(p []byte) (int, error) {
	if len(e.ready) == 0 && e.err == nil {
		e.fill()
	}
	if len(e.ready) == 0 {
		return 0, e.err
	}
	n := copy(p, e.ready)
	e.ready = e.ready[n:]
	return n, nil
}

// fill makes the next chunk.
func (e *Encoder) fill() {
	if e.left == 0 {
		e.err = io.EOF
		return
	}
	data := e.buffer[:min(ChunkBytes, e.left)]
	if _, err := io.ReadFull(e.content, data); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		e.err = fmt.Errorf("%d bytes of the %s object are missing: %w", e.left, e.envelope.Kind, err)
		return
	}
	e.ready = e.seal.close(data, e.chunk)
	e.left -= int64(len(data))
	e.chunk++
}
