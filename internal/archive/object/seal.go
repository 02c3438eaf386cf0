package object

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"

	"sheaf.dev/sheaf/internal/base/crc32c"
)

// KeyBytes is the length of an archive key.
const KeyBytes = 32

// KeyID identifies a key without revealing it. It is the beginning of a SHA-256 hash of the key.
type KeyID [16]byte

// Key is the key of an archive. The zero value means that there is no key. Messages show its id in place of the key.
// The bytes are behind a function, because package fmt prints the private fields of a struct that has a key in one of
// them.
type Key struct{ secret func() []byte }

// NewKey returns the key that consists of the given bytes. It returns an error if their number is not KeyBytes.
func NewKey(secret []byte) (Key, error) {
	if len(secret) != KeyBytes {
		return Key{}, fmt.Errorf("a key has %d bytes, this one has %d", KeyBytes, len(secret))
	}
	secret = bytes.Clone(secret)
	return Key{secret: func() []byte { return secret }}, nil
}

// IsZero reports whether k is the zero value.
func (k Key) IsZero() bool { return k.secret == nil }

// ID returns the id of the key, which is zero for the zero value.
func (k Key) ID() (id KeyID) {
	if !k.IsZero() {
		sum := sha256.Sum256(append([]byte("sheaf-archive-key-id"), k.secret()...))
		copy(id[:], sum[:])
	}
	return id
}

// Format implements fmt.Formatter. It prints the id of the key for every verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "key "+k.ID().String()) }

// String returns the id as 32 hexadecimal digits.
func (id KeyID) String() string { return hex.EncodeToString(id[:]) }

// Keys are the keys with which objects can be decrypted. The first one encrypts new objects.
type Keys []Key

// First returns the key that encrypts new objects. It is zero if there are no keys, so that new objects are not
// encrypted.
func (keys Keys) First() Key {
	if len(keys) == 0 {
		return Key{}
	}
	return keys[0]
}

// UnknownKeyError means that the key with which an object was encrypted is not among the given keys. It wraps ErrKey.
type UnknownKeyError struct {
	ID    KeyID // id of the key that is missing
	Given int   // number of keys that were given
}

func (e *UnknownKeyError) Error() string {
	switch e.Given {
	case 0:
		return fmt.Sprintf("%v: it is encrypted with key id %s, and no key was given", ErrKey, e.ID)
	case 1:
		return fmt.Sprintf("%v: it is encrypted with key id %s, and the one key that was given is another", ErrKey, e.ID)
	}
	return fmt.Sprintf("%v: it is encrypted with key id %s, which is not among the %d keys that were given", ErrKey, e.ID,
		e.Given)
}

// Unwrap returns ErrKey.
func (e *UnknownKeyError) Unwrap() error { return ErrKey }

// Has reports whether the key with the given id is among the keys.
func (keys Keys) Has(id KeyID) bool {
	_, err := keys.find(id)
	return err == nil
}

func (keys Keys) find(id KeyID) (Key, error) {
	given := 0
	for _, k := range keys {
		switch {
		case k.IsZero():
		case k.ID() == id:
			return k, nil
		default:
			given++
		}
	}
	return Key{}, &UnknownKeyError{ID: id, Given: given}
}

// seal encrypts, decrypts and verifies the chunks of one object. It is safe for concurrent use.
type seal struct {
	envelope *Envelope
	encoded  []byte      // the encoded envelope, which the tags cover
	aead     cipher.AEAD // nil if the object is not encrypted
}

func newSeal(e *Envelope, encoded []byte, k Key) (*seal, error) {
	s := &seal{envelope: e, encoded: encoded}
	if e.Cipher == CipherNone {
		return s, nil
	}
	secret, err := hkdf.Key(sha256.New, k.secret(), e.ID[:], "sheaf-archive-v1", KeyBytes)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	s.aead, err = cipher.NewGCM(block)
	return s, err
}

// nonce returns the nonce of a chunk. It does not have to be random, because each object has a separate key.
func nonce(chunk int64) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 4, 12), uint64(chunk))
}

// close encrypts a chunk's data in place, and appends the check. The capacity of data must be sufficient.
func (s *seal) close(data []byte, chunk int64) []byte {
	if s.aead != nil {
		data = s.aead.Seal(data[:0], nonce(chunk), data, s.encoded)
	}
	return binary.LittleEndian.AppendUint32(data, s.crc(data, chunk))
}

// open verifies a chunk with its check, decrypts the chunk in place, and returns the data.
func (s *seal) open(stored []byte, chunk int64) ([]byte, error) {
	end := len(stored) - crcBytes
	if binary.LittleEndian.Uint32(stored[end:]) != s.crc(stored[:end], chunk) {
		return nil, fmt.Errorf("%w: checksum of chunk %d", ErrCorrupt, chunk)
	}
	if s.aead == nil {
		return stored[:end], nil
	}
	data, err := s.aead.Open(stored[:0], nonce(chunk), stored[:end], s.encoded)
	if err != nil {
		return nil, fmt.Errorf("%w: the tag of chunk %d says that somebody changed it", ErrCorrupt, chunk)
	}
	return data, nil
}

// crc returns the CRC of a chunk's stored bytes, the object's id and the chunk's number.
func (s *seal) crc(stored []byte, chunk int64) uint32 {
	var place [24]byte
	copy(place[:], s.envelope.ID[:])
	binary.LittleEndian.PutUint64(place[16:], uint64(chunk))
	return crc32.Update(crc32c.Of(stored), crc32c.Table, place[:])
}
