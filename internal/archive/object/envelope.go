package object

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Sizes in bytes.
const (
	// EnvelopeBytes is the length of the envelope, with which each object begins.
	EnvelopeBytes = 128
	// ChunkBytes is the length of each chunk of the content except the last one.
	ChunkBytes = 1 << 20
	// HeaderBytesMax is the maximum length of a header.
	HeaderBytesMax = 16 << 20

	magic         = "SHEAFARC"
	version       = 1
	crcBytes      = 4
	tagBytes      = 16
	headerMin     = len("{}")
	endOfEnvelope = 88 // from this offset to EnvelopeBytes, all bytes are zero
)

// These are the errors of this package. Every error that is caused by the bytes of an object wraps one of them.
var (
	// ErrCorrupt means that an object is damaged.
	ErrCorrupt = errors.New("the object is damaged")
	// ErrVersion means that an object was written by a newer program.
	ErrVersion = errors.New("the object is newer than this program: use a newer sheaf-archive")
	// ErrForeign means that an object belongs to another store, or is not of the kind that its name implies.
	ErrForeign = errors.New("the object does not belong here")
	// ErrKey means that the key with which an object was encrypted is not among the given keys.
	ErrKey = errors.New("the key of the object is not known")
)

// Kind is the kind of an object.
type Kind uint8

// These are the kinds of objects.
const (
	KindArchive Kind = iota + 1
	KindLog
	KindSegment
	KindBlob
	KindCatalogue
	KindPoint
	KindUse
	KindDrop
	KindDrill
	KindBase
)

var kinds = [...]string{
	KindArchive: "archive", KindLog: "log", KindSegment: "segment", KindBlob: "blob", KindCatalogue: "catalogue",
	KindPoint: "point", KindUse: "use", KindDrop: "drop", KindDrill: "drill",
	KindBase: "base",
}

// String returns the kind as one word.
func (k Kind) String() string {
	if k >= KindArchive && int(k) < len(kinds) {
		return kinds[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// IsPlain reports whether objects of the kind are never encrypted. archive.json and uses hold no records, and every
// reader must understand them, whatever keys it has: prune must not delete what a reader with newer keys uses.
func (k Kind) IsPlain() bool { return k == KindArchive || k == KindUse }

// Cipher identifies the method with which the chunks of an object are encrypted.
type Cipher uint8

// These are the values of Cipher.
const (
	CipherNone Cipher = iota
	CipherAES256GCM
)

// checkBytes returns the length of the check that follows each chunk.
func (c Cipher) checkBytes() int64 {
	if c == CipherAES256GCM {
		return tagBytes + crcBytes
	}
	return crcBytes
}

// Envelope is the part of fixed size at the beginning of an object.
type Envelope struct {
	Store        uuid.UUID
	ID           uuid.UUID // random id of the object, which the checks of all chunks cover
	Kind         Kind
	Cipher       Cipher
	ContentBytes int64 // length of header and body before encryption
	HeaderBytes  int64 // length of the header at the beginning of the content
	KeyID        KeyID // zero if the object is not encrypted
}

// ObjectBytes returns the size of the whole object.
func (e *Envelope) ObjectBytes() int64 {
	chunks := (e.ContentBytes + ChunkBytes - 1) / ChunkBytes
	return EnvelopeBytes + e.ContentBytes + chunks*e.Cipher.checkBytes()
}

// CRC returns the envelope's CRC. The next log object stores it as Previous.
func (e *Envelope) CRC() uint32 { return binary.LittleEndian.Uint32(e.Encode()[12:]) }

// Encode returns the envelope's EnvelopeBytes bytes.
func (e *Envelope) Encode() []byte {
	b := make([]byte, EnvelopeBytes)
	le := binary.LittleEndian
	copy(b, magic)
	le.PutUint32(b[8:], version)
	copy(b[16:], e.Store[:])
	copy(b[32:], e.ID[:])
	b[48], b[49] = byte(e.Kind), byte(e.Cipher)
	le.PutUint64(b[56:], uint64(e.ContentBytes))
	le.PutUint64(b[64:], uint64(e.HeaderBytes))
	copy(b[72:], e.KeyID[:])
	le.PutUint32(b[12:], envelopeCRC(b))
	return b
}

func envelopeCRC(b []byte) uint32 {
	return crc32.Update(crc32c.Of(b[:12]), crc32c.Table, b[16:EnvelopeBytes])
}

// DecodeEnvelope decodes the result of Encode. The argument b may be longer than the envelope. It returns ErrCorrupt
// or ErrVersion. It checks that the lengths are consistent with each other, but the object may be shorter than they
// say, so the caller must compare ObjectBytes with the size of the object.
func DecodeEnvelope(b []byte) (*Envelope, error) {
	if len(b) < EnvelopeBytes {
		return nil, fmt.Errorf("%w: %d bytes are too few for an envelope", ErrCorrupt, len(b))
	}
	b = b[:EnvelopeBytes]
	le := binary.LittleEndian
	switch {
	case string(b[:8]) != magic:
		return nil, fmt.Errorf("%w: it begins with %q, not with %q", ErrCorrupt, b[:8], magic)
	case le.Uint32(b[12:]) != envelopeCRC(b):
		return nil, fmt.Errorf("%w: checksum of the envelope", ErrCorrupt)
	case le.Uint32(b[8:]) > version:
		return nil, fmt.Errorf("%w: version %d, this program knows %d", ErrVersion, le.Uint32(b[8:]), version)
	}
	e := &Envelope{
		Kind: Kind(b[48]), Cipher: Cipher(b[49]),
		ContentBytes: int64(le.Uint64(b[56:])), HeaderBytes: int64(le.Uint64(b[64:])),
	}
	copy(e.Store[:], b[16:])
	copy(e.ID[:], b[32:])
	copy(e.KeyID[:], b[72:])
	switch {
	case le.Uint32(b[8:]) != version:
		return nil, fmt.Errorf("%w: version %d of the envelope", ErrCorrupt, le.Uint32(b[8:]))
	case e.Kind < KindArchive || e.Kind > KindBase:
		return nil, fmt.Errorf("%w: kind %d", ErrCorrupt, b[48])
	case e.Cipher > CipherAES256GCM:
		return nil, fmt.Errorf("%w: cipher %d", ErrCorrupt, b[49])
	case e.Cipher == CipherNone && e.KeyID != KeyID{}:
		return nil, fmt.Errorf("%w: a key without a cipher", ErrCorrupt)
	case !format.IsZero(b[50:56]) || !format.IsZero(b[endOfEnvelope:]):
		return nil, fmt.Errorf("%w: reserved bytes of the envelope are not zero", ErrCorrupt)
	case e.HeaderBytes < int64(headerMin) || e.HeaderBytes > HeaderBytesMax:
		return nil, fmt.Errorf("%w: a header of %d bytes", ErrCorrupt, e.HeaderBytes)
	case e.ContentBytes < e.HeaderBytes || e.ContentBytes > math.MaxInt64/2:
		return nil, fmt.Errorf("%w: a content of %d bytes", ErrCorrupt, e.ContentBytes)
	}
	return e, nil
}
