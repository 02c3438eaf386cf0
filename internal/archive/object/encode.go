package object

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/google/uuid"
)

// Spec describes an object to create.
type Spec struct {
	Store     uuid.UUID
	Header    Header    // written as JSON; its type determines the kind of the object
	Body      io.Reader // follows the header; nil means that it is empty
	BodyBytes int64     // exact length of Body
	Key       Key       // encrypts the content; if zero, or if the kind is plain (Kind.IsPlain), it is not encrypted
}

// Encoder is a reader that returns the bytes of one object. It holds one chunk in memory. It is not safe for
// concurrent use.
type Encoder struct {
	envelope *Envelope
	seal     *seal
	content  io.Reader // the header, then the body
	left     int64     // number of content bytes that have not been encoded yet
	chunk    int64     // number of the next chunk
	buffer   []byte    // holds one chunk with its check
	ready    []byte    // the part of the object that Read returns next
	err      error
}

// NewEncoder returns an Encoder for an object with a random id. It returns an error if the header is too long, or if
// a Decoder would refuse it.
func NewEncoder(spec Spec) (*Encoder, error) { return newEncoder(spec, uuid.New()) }

func newEncoder(spec Spec, id uuid.UUID) (*Encoder, error) {
	kind := spec.Header.kind()
	if err := spec.Header.check(spec.BodyBytes); err != nil {
		return nil, fmt.Errorf("header of a %s object: %w", kind, err)
	}
	if kind.IsPlain() {
		spec.Key = Key{}
	}
	header, err := json.Marshal(spec.Header)
	if err != nil {
		return nil, fmt.Errorf("header of a %s object: %w", kind, err)
	}
	if len(header) > HeaderBytesMax {
		return nil, fmt.Errorf("the header of a %s object has %d bytes, at most %d are allowed", kind, len(header),
			HeaderBytesMax)
	}
	e := &Envelope{
		Store: spec.Store, ID: id, Kind: kind, HeaderBytes: int64(len(header)),
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

// Envelope returns the object's envelope.
func (e *Encoder) Envelope() Envelope { return *e.envelope }

// Bytes returns the size of the whole object.
func (e *Encoder) Bytes() int64 { return e.envelope.ObjectBytes() }

// Read implements io.Reader. It fails with io.ErrUnexpectedEOF if the body is shorter than Spec.BodyBytes, and with
// another error if the body is longer.
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

// fill encodes the next chunk.
func (e *Encoder) fill() {
	if e.left == 0 {
		var n int
		if n, e.err = io.ReadFull(e.content, e.buffer[:1]); n > 0 {
			e.err = fmt.Errorf("the body of the %s object is longer than %d bytes", e.envelope.Kind,
				e.envelope.ContentBytes-e.envelope.HeaderBytes)
		}
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
