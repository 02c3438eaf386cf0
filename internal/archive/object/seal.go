package object

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"sheaf.dev/sheaf/internal/base/crc32c"
)

// KeyBytes is the length of an archive key.
const KeyBytes = 32

// KeyID identifies a key without revealing it. It is the beginning of a SHA-256 hash of the key.
type KeyID [16]byte

// Key is the key of an archive. The zero value means that there is no key.
type Key struct{ secret []byte }

// NewKey returns the key that consists of the given bytes. It returns an error if their number is not KeyBytes.
func NewKey(secret []byte) (Key, error) {
	if len(secret) != KeyBytes {
		return Key{}, fmt.Errorf("a key has %d bytes, this one has %d", KeyBytes, len(secret))
	}
	return Key{secret: append([]byte(nil), secret...)}, nil
}

// IsZero reports whether k is the zero value.
func (k Key) IsZero() bool { return len(k.secret) == 0 }

// ID returns the id of the key, which is zero for the zero value.
func (k Key) ID() (id KeyID) {
	if !k.IsZero() {
		sum := sha256.Sum256(append([]byte("sheaf-archive-key-id"), k.secret...))
		copy(id[:], sum[:])
	}
	return id
}

// Keys are the keys with which objects can be decrypted.
type Keys []Key

func (keys Keys) find(id KeyID) (Key, error) {
	for _, k := range keys {
		if k.ID() == id {
			return k, nil
		}
	}
	return Key{}, fmt.Errorf("%w: it has the key id %x", ErrKey, id)
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
	secret, err := hkdf.Key(sha256.New, k.secret, e.ID[:], "sheaf-archive-v1", KeyBytes)
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
