package object

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
)

// Chunks checks and decrypts the chunks of one object in any order, so that a reader can fetch only a part of the
// object. It is safe for concurrent use.
type Chunks struct {
	envelope *Envelope
	seal     *seal
}

// NewChunks decodes an object's envelope, which is the first EnvelopeBytes bytes of the object. It returns ErrCorrupt
// or ErrVersion if the envelope is not valid, ErrForeign if the object belongs to another store or is of another
// kind, and ErrKey if the object's key is not among the given keys.
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

// Envelope returns the object's envelope.
func (c *Chunks) Envelope() Envelope { return *c.envelope }

// Place returns the offset of a chunk in the object, and the length of the chunk including its check. The length is 0
// if the object has no such chunk.
func (c *Chunks) Place(number int64) (offset, length int64) {
	check := c.envelope.Cipher.checkBytes()
	offset = EnvelopeBytes + number*(ChunkBytes+check)
	left := c.envelope.ContentBytes - number*ChunkBytes
	if left <= 0 {
		return offset, 0
	}
	return offset, min(ChunkBytes, left) + check
}

// Open verifies and decrypts a chunk in place, and returns its part of the content. The argument stored holds the
// chunk and its check, which are at the position that Place returns.
func (c *Chunks) Open(stored []byte, number int64) ([]byte, error) {
	if _, length := c.Place(number); length == 0 || int64(len(stored)) != length {
		return nil, fmt.Errorf("%w: chunk %d has %d bytes, not %d", ErrCorrupt, number, len(stored), length)
	}
	return c.seal.open(stored, number)
}

// Header decodes the object's header into *to, and checks it. The argument encoded holds the header, which is the
// beginning of the content. The envelope contains its length.
func (c *Chunks) Header(encoded []byte, to Header) error {
	if err := json.Unmarshal(encoded, to); err != nil {
		return fmt.Errorf("%w: header of a %s object: %w", ErrCorrupt, c.envelope.Kind, err)
	}
	if err := to.check(c.envelope.ContentBytes - c.envelope.HeaderBytes); err != nil {
		return fmt.Errorf("%w: header of a %s object: %w", ErrCorrupt, c.envelope.Kind, err)
	}
	return nil
}
