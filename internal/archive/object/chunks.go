package object

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
)

// Chunks checks and decrypts the chunks of one object in any order, so that a reader can ask a bucket for a part of the
// object. It is safe for concurrent use.
type Chunks struct {
	envelope *Envelope
	seal     *seal
}

// NewChunks decodes the envelope of an object, which is the first EnvelopeBytes bytes. It returns ErrCorrupt or
// ErrVersion, ErrForeign if the object is of another store or kind, and ErrKey if none of the keys is that of the
// object.
func NewChunks(envelope []byte, store uuid.UUID, kind Kind, keys Keys) (*Chunks, error) {
	return newChunks(envelope, store, kind, func(e *Envelope) (Key, error) {
		if e.Cipher == CipherNone {
			return Key{}, nil
		}
		return keys.find(e.KeyID)
	})
}

func newChunks(encoded []byte, store uuid.UUID, kind Kind, key func(*Envelope) (Key, error)) (*Chunks, error) {
	e, err := DecodeEnvelope(encoded)
	switch {
	case err != nil:
		return nil, err
	case e.Store != store:
		return nil, fmt.Errorf("%w: it is of store %s, not of %s", ErrForeign, e.Store, store)
	case e.Kind != kind:
		return nil, fmt.Errorf("%w: it is a %s, not a %s", ErrForeign, e.Kind, kind)
	}
	k, err := key(e)
	if err != nil {
		return nil, err
	}
	s, err := newSeal(e, encoded[:EnvelopeBytes], k)
	if err != nil {
		return nil, err
	}
	return &Chunks{envelope: e, seal: s}, nil
}

// Envelope returns the envelope of the object.
func (c *Chunks) Envelope() Envelope { return *c.envelope }

// Place returns the offset in the object of a chunk, and the length of the chunk with its check. The length is 0 if the
// object has no such chunk.
func (c *Chunks) Place(number int64) (offset, length int64) {
	check := c.envelope.Cipher.checkBytes()
	offset = EnvelopeBytes + number*(ChunkBytes+check)
	left := c.envelope.ContentBytes - number*ChunkBytes
	if left <= 0 {
		return offset, 0
	}
	return offset, min(ChunkBytes, left) + check
}

// Open checks a chunk with its check, as Place says where they are, decrypts the chunk in place, and returns its part
// of the content.
func (c *Chunks) Open(stored []byte, number int64) ([]byte, error) {
	if _, length := c.Place(number); length == 0 || int64(len(stored)) != length {
		return nil, fmt.Errorf("%w: chunk %d has %d bytes, not %d", ErrCorrupt, number, len(stored), length)
	}
	return c.seal.open(stored, number)
}

// Header decodes the header of the object into the value that to points to, and checks it. The argument encoded is the
// beginning of the content, as long as the envelope says.
func (c *Chunks) Header(encoded []byte, to Header) error {
	if err := json.Unmarshal(encoded, to); err != nil {
		return fmt.Errorf("%w: header of a %s object: %w", ErrCorrupt, c.envelope.Kind, err)
	}
	if err := to.check(c.envelope.ContentBytes - c.envelope.HeaderBytes); err != nil {
		return fmt.Errorf("%w: header of a %s object: %w", ErrCorrupt, c.envelope.Kind, err)
	}
	return nil
}
