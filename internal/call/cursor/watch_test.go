package cursor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"sheaf.dev/sheaf/internal/base/crc32c"
)

func TestPlaceEveryFlippedBitIsFound(t *testing.T) {
	place := Place{Group: [16]byte{1, 2, 16}, Index: 1 << 50}
	good := place.Encode()
	if got, err := DecodePlace(good); err != nil || got != place {
		t.Fatalf("%+v came back as %+v, %v", place, got, err)
	}
	for i := range len(good) * 8 {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		if p, err := DecodePlace(bad); !errors.Is(err, ErrBad) {
			t.Errorf("bit %d flipped: decodes to %+v", i, p)
		}
	}
	for n := range len(good) {
		if _, err := DecodePlace(good[:n]); !errors.Is(err, ErrBad) {
			t.Errorf("cut to %d bytes: decodes", n)
		}
	}
	if _, err := Decode(good); !errors.Is(err, ErrBad) {
		t.Error("a place passes for a cursor of a scan")
	}
	if _, err := DecodePlace((&Cursor{Kind: Resume, Group: "7"}).Encode()); !errors.Is(err, ErrBad) {
		t.Error("a cursor of a scan passes for a place")
	}
}

// FuzzDecodePlace checks that a place with a valid checksum has only one spelling.
func FuzzDecodePlace(f *testing.F) {
	f.Add(Place{Group: [16]byte{1, 2, 16}, Index: 1 << 50}.Encode(), true)
	f.Add(bytes.Repeat([]byte{0xff}, placeBytes), true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= 4 {
			b = bytes.Clone(b)
			binary.LittleEndian.PutUint32(b[len(b)-4:], crc32c.Of(b[:len(b)-4]))
		}
		if p, err := DecodePlace(b); err == nil && !bytes.Equal(p.Encode(), b) {
			t.Errorf("%x decodes to %+v, which encodes to %x", b, p, p.Encode())
		}
	})
}
