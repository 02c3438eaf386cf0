package access

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Signer signs values that callers send back later, such as the splits and cursors of scans and the positions of
// watches. Such a value names its group, and access to that group is decided each time that the value is used, so the
// value itself grants no right. The signature, which is computed with the store's signing key, proves that this store
// issued the value to this caller.
type Signer struct {
	key []byte
	id  [8]byte
}

// SigningKeyBytes is the length of a signing key.
const SigningKeyBytes = 32

// NewSigner returns a Signer that uses the given key. The key must be random and have SigningKeyBytes bytes.
func NewSigner(key []byte) (*Signer, error) {
	if len(key) != SigningKeyBytes {
		return nil, fmt.Errorf("the key of seals has %d bytes instead of %d", len(key), SigningKeyBytes)
	}
	s := &Signer{key: key}
	sum := sha256.Sum256(append([]byte("sheaf seal id\x00"), key...))
	copy(s.id[:], sum[:])
	return s, nil
}

// A signed value consists of the format (1 byte), the id of the key (8), the expiry as Unix time in seconds, or 0 for
// never (8), the MAC (16), and the value itself. Numbers are little-endian. The MAC is the first 16 bytes of an
// HMAC-SHA256 over a label, the expiry, the length of the caller's name, that name, and the value. Values that are
// not signed begin with format 1.
const (
	signedFormat = 2
	signedBytes  = 1 + 8 + 8 + 16
	macBytes     = 16
)

// These are the errors that Open returns.
var (
	// ErrForged means that a value was modified, or was issued to a different caller.
	ErrForged = errors.New("not a value that this store gave to this caller")
	// ErrOutdated means that a value was valid once but no longer is. It has expired, or dates from before the store
	// signed values, or was signed with a key that no longer exists.
	ErrOutdated = errors.New("a value that is too old")
)

// Sign signs a value for a caller. The argument ends is the time until which Open accepts the value; the zero time
// means forever.
func (s *Signer) Sign(caller *Caller, value []byte, ends time.Time) []byte {
	out := make([]byte, 0, signedBytes+len(value))
	out = append(append(out, signedFormat), s.id[:]...)
	unix := uint64(0)
	if !ends.IsZero() {
		unix = uint64(ends.Unix())
	}
	out = binary.LittleEndian.AppendUint64(out, unix)
	out = append(out, s.mac(caller, unix, value)...)
	return append(out, value...)
}

// errUnsigned is the error for unsigned values. It wraps ErrOutdated.
var errUnsigned = fmt.Errorf("%w: it was given out before this store signed them", ErrOutdated)

// Open returns the value that was passed to Sign. It returns ErrForged or ErrOutdated if sealed was not produced by
// Sign for this caller with the current key, or if it has expired.
func (s *Signer) Open(caller *Caller, sealed []byte, now time.Time) ([]byte, error) {
	switch {
	case len(sealed) > 0 && sealed[0] < signedFormat:
		return nil, errUnsigned
	case len(sealed) < signedBytes || sealed[0] != signedFormat:
		return nil, ErrForged
	case [8]byte(sealed[1:9]) != s.id:
		return nil, fmt.Errorf("%w: the store has another key since then", ErrOutdated)
	}
	unix, value := binary.LittleEndian.Uint64(sealed[9:]), sealed[signedBytes:]
	if !hmac.Equal(sealed[signedBytes-macBytes:signedBytes], s.mac(caller, unix, value)) {
		return nil, ErrForged
	}
	if unix != 0 && uint64(now.Unix()) > unix {
		return nil, fmt.Errorf("%w: it has ended", ErrOutdated)
	}
	return value, nil
}

func (s *Signer) mac(caller *Caller, unix uint64, value []byte) []byte {
	name := caller.name()
	head := append(make([]byte, 0, 64+len(name)), "sheaf seal 2\x00"...)
	head = binary.LittleEndian.AppendUint64(head, unix)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(name)))
	head = append(head, name...)
	h := hmac.New(sha256.New, s.key)
	_, _ = h.Write(head) // a hash never returns an error
	_, _ = h.Write(value)
	return h.Sum(nil)[:macBytes]
}

// shared is the caller for whom shared values are signed. No caller has its text.
var shared = &Caller{text: "\x00any caller who has the right"}

// sharedFormat is the first byte of a signed value that any caller may send back. It differs from signedFormat in that
// alone, and in the caller that is part of the MAC.
const sharedFormat = 3

// SignShared does the same as Sign, for a value that any caller may send back.
func (s *Signer) SignShared(value []byte, ends time.Time) []byte {
	out := s.Sign(shared, value, ends)
	out[0] = sharedFormat
	return out
}

// OpenShared does the same as Open, and also takes values from SignShared.
func (s *Signer) OpenShared(caller *Caller, sealed []byte, now time.Time) ([]byte, error) {
	if len(sealed) == 0 || sealed[0] != sharedFormat {
		return s.Open(caller, sealed, now)
	}
	plain := append([]byte{signedFormat}, sealed[1:]...)
	return s.Open(shared, plain, now)
}

// SignSplit does the same as Sign. If toAll is set, any caller may send the value back. What the value names must be
// decided again whenever it is used.
func SignSplit(ctx context.Context, value []byte, lasts time.Duration, toAll bool) ([]byte, error) {
	call, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	if toAll {
		return call.SignShared(value, lasts), nil
	}
	return call.Sign(value, lasts), nil
}

// name returns the caller without the groups from its token, because the groups may differ from one token to the
// next.
func (c *Caller) name() string {
	if parts := strings.SplitN(c.text, "/", 4); len(parts) == 4 && parts[0] == userText {
		return strings.Join(parts[:3], "/")
	}
	return c.text
}

// Sign signs a value for the caller in the context, if Call.Signs is true for that caller. If the context has no
// call, Sign returns an error.
func Sign(ctx context.Context, value []byte, lasts time.Duration) ([]byte, error) {
	call, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	return call.Sign(value, lasts), nil
}

// Open verifies and unpacks a value from Sign. It returns ErrForged or ErrOutdated if the value is not valid, and a
// different error if the context has no call.
func Open(ctx context.Context, sealed []byte) ([]byte, error) {
	call, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	return call.Open(sealed)
}
