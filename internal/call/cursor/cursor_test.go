package cursor

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/test/soaktest"
)

func TestVersionRoundTrip(t *testing.T) {
	for _, index := range []uint64{1, 31, 32, 33, 1023, 1024, 1 << 32, 1<<60 - 1, 1 << 60, math.MaxUint64} {
		v := Version(index)
		if v == "" || len(v) > VersionBytesMax {
			t.Errorf("version of %d is %q", index, v)
		}
		if got, err := ParseVersion(v); err != nil || got != index {
			t.Errorf("%q parses to %d, %v; want %d", v, got, err, index)
		}
	}
	if Version(0) != "" {
		t.Error("index 0 has a version")
	}
	soaktest.Check(t, func(t *rapid.T) {
		index := rapid.Uint64Min(1).Draw(t, "index")
		if got, err := ParseVersion(Version(index)); err != nil || got != index {
			t.Fatalf("%d came back as %d, %v", index, got, err)
		}
	})
}

func TestVersionHasOneSpelling(t *testing.T) {
	for _, bad := range []string{
		"", "1", "0", "00", "0" + Version(7), strings.ToUpper(Version(math.MaxUint64)), Version(7) + "0", " " + Version(7),
		"zzzzzzzzzzzzz0", strings.Repeat("1", 15), "\xff\xff", "i1", "v1.2",
	} {
		if index, err := ParseVersion(bad); !errors.Is(err, ErrBad) {
			t.Errorf("%q parses to %d, %v", bad, index, err)
		}
	}
	soaktest.Check(t, func(t *rapid.T) {
		s := rapid.StringOfN(rapid.RuneFrom([]rune(digits+"ilouA-")), 1, 15, -1).Draw(t, "text")
		if index, err := ParseVersion(s); err == nil && Version(index) != s {
			t.Fatalf("%q parses to %d, which is spelled %q", s, index, Version(index))
		}
	})
}

func TestCursorRoundTrip(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		c := Cursor{
			Kind:    rapid.SampledFrom([]Kind{Split, Resume}).Draw(t, "kind"),
			All:     rapid.Bool().Draw(t, "all"),
			Own:     rapid.Bool().Draw(t, "own"),
			Damaged: rapid.Bool().Draw(t, "damaged"),
			View:    rapid.Bool().Draw(t, "view"),
			Group:   rapid.StringMatching(`[a-z0-9]{1,253}`).Draw(t, "group"),
			Through: rapid.Uint64().Draw(t, "through"),
		}
		c.After = rapid.Uint64Range(0, c.Through).Draw(t, "after")
		copy(c.Scan[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "scan"))
		if got, err := Decode(c.Encode()); err != nil || got != c {
			t.Fatalf("%+v came back as %+v, %v", c, got, err)
		}
	})
}

func TestCursorEveryFlippedBitIsFound(t *testing.T) {
	good := (&Cursor{Kind: Split, Group: "quotes", After: 3, Through: 1 << 40}).Encode()
	for i := range len(good) * 8 {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		if c, err := Decode(bad); !errors.Is(err, ErrBad) {
			t.Errorf("bit %d flipped: decodes to %+v", i, c)
		}
	}
	for n := range len(good) {
		if _, err := Decode(good[:n]); !errors.Is(err, ErrBad) {
			t.Errorf("cut to %d bytes: decodes", n)
		}
	}
}

func TestPageTokenBelongsToItsRecord(t *testing.T) {
	for _, id := range []int64{math.MinInt64, -1, 0, 1, math.MaxInt64} {
		token := PageToken(id, 77)
		if below, err := ParsePageToken(token, id); err != nil || below != 77 {
			t.Errorf("token of %d gives %d, %v", id, below, err)
		}
		if _, err := ParsePageToken(token, id^1); !errors.Is(err, ErrBad) {
			t.Errorf("token of %d passes for %d", id, id^1)
		}
	}
	for _, bad := range []string{"", "x", strings.Repeat("A", 27), strings.Repeat("!", 27), PageToken(1, 0)} {
		if _, err := ParsePageToken(bad, 1); !errors.Is(err, ErrBad) {
			t.Errorf("token %q passes", bad)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add((&Cursor{Kind: Resume, All: true, Group: "7", After: 1, Through: 9}).Encode(), Version(9))
	f.Fuzz(func(t *testing.T, b []byte, version string) {
		if c, err := Decode(b); err == nil && !bytes.Equal(c.Encode(), b) {
			t.Errorf("%x decodes to %+v, which encodes to %x", b, c, c.Encode())
		}
		if index, err := ParseVersion(version); err == nil && Version(index) != version {
			t.Errorf("%q is not the spelling of %d", version, index)
		}
	})
}
