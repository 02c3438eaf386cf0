package object

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// Every reader must understand archive.json and the uses, whatever keys it has. All other kinds are encrypted.
func TestArchiveAndUsesAreNeverEncrypted(t *testing.T) {
	for kind, c := range headers() {
		b := encode(t, Spec{
			Store: store, Header: c.header, Body: bytes.NewReader(random(int(c.body))), BodyBytes: c.body, Key: key(t, 7),
		})
		e, err := DecodeEnvelope(b)
		if err != nil {
			t.Fatal(err)
		}
		plain := kind == KindArchive || kind == KindUse
		if (e.Cipher == CipherNone) != plain || (e.KeyID == KeyID{}) != plain {
			t.Errorf("%s: cipher %d, key id %s", kind, e.Cipher, e.KeyID)
		}
	}
}

// A missing key is named by its id, and no message contains a key.
func TestTheMissingKeyIsNamed(t *testing.T) {
	one, two := key(t, 7), key(t, 8)
	b := encode(t, blob(random(10), one))
	for _, c := range []struct {
		keys Keys
		says string
	}{
		{nil, "no key was given"},
		{Keys{{}}, "no key was given"},
		{Keys{two}, "the one key that was given is another"},
		{Keys{two, key(t, 9)}, "not among the 2 keys"},
	} {
		_, err := NewDecoder(bytes.NewReader(b), store, KindBlob, c.keys)
		var unknown *UnknownKeyError
		if !errors.As(err, &unknown) || !errors.Is(err, ErrKey) || unknown.ID != one.ID() ||
			!strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), one.ID().String()) {
			t.Errorf("%v: %v", c.keys, err)
		}
	}
	secret := string(bytes.Repeat([]byte{7}, KeyBytes))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
		for _, v := range []any{one, Keys{one}, &Spec{Key: one}, &struct{ key Key }{one}, struct{ keys Keys }{Keys{one}}} {
			if text := fmt.Sprintf(verb, v); strings.Contains(text, secret) || strings.Contains(text, "07070707") ||
				strings.Contains(text, "7 7 7 7") || strings.Contains(text, "0x7, 0x7") {
				t.Errorf("%s of %T prints the key: %s", verb, v, text)
			}
		}
	}
}

// The first key encrypts, and a reader with several keys reads the objects of each, and those without encryption.
func TestKeysAreUsedSideBySide(t *testing.T) {
	old, fresh := key(t, 7), key(t, 8)
	keys := Keys{fresh, old}
	if keys.First().ID() != fresh.ID() || !(Keys{}).First().IsZero() {
		t.Error("another key than the first one encrypts")
	}
	body := random(ChunkBytes + 5)
	for _, k := range []Key{{}, old, fresh} {
		var h Blob
		got, err := read(encode(t, blob(body, k)), KindBlob, keys, &h)
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("key id %s: %v", k.ID(), err)
		}
	}
}

// Two objects of the same key and content have nothing in common: each object has a key of its own, so no pair of key
// and nonce occurs twice. One object is the same bytes in each attempt.
func TestNoTwoObjectsShareAKeyAndNonce(t *testing.T) {
	body := random(2 * ChunkBytes)
	bytesOf := func(id uuid.UUID) []byte {
		e, err := newEncoder(blob(body, key(t, 7)), id)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(e)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	first, again, other := bytesOf(fixed), bytesOf(fixed), bytesOf(group)
	if !bytes.Equal(first, again) {
		t.Error("an object is not the same bytes in each attempt")
	}
	seen := map[string]string{}
	for what, b := range map[string][]byte{"one": first, "other": other} {
		for at := EnvelopeBytes; at+16 <= len(b); at += 16 {
			block := string(b[at : at+16])
			if before := seen[block]; before != "" {
				t.Fatalf("%s at %d repeats a block of %s", what, at, before)
			}
			seen[block] = what
		}
	}
}

// Whoever flips a bit of the data or of the tag and corrects the CRC, which needs no key, is found by the tag. A wrong
// key that claims the right id is found as well.
func TestATagIsCheckedBehindTheChecksum(t *testing.T) {
	k := key(t, 7)
	whole := encode(t, blob(random(100), k))
	e, err := DecodeEnvelope(whole)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{EnvelopeBytes, len(whole) - crcBytes - tagBytes, len(whole) - crcBytes - 1} {
		b := bytes.Clone(whole)
		b[at] ^= 1
		s := &seal{envelope: e}
		end := len(b) - crcBytes
		crc := s.crc(b[EnvelopeBytes:end], 0)
		b[end], b[end+1], b[end+2], b[end+3] = byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24)
		if _, err := Verify(bytes.NewReader(b), store, KindBlob); err != nil {
			t.Fatalf("the checksum was not corrected: %v", err)
		}
		if _, err := read(b, KindBlob, Keys{k}, &Blob{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("byte %d: %v", at, err)
		}
	}
	wrong, err := newSeal(e, whole[:EnvelopeBytes], key(t, 8))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wrong.open(bytes.Clone(whole[EnvelopeBytes:]), 0); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a wrong key: %v", err)
	}
}
