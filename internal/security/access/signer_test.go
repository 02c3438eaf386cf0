package access

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

func sealer(t testing.TB, first byte) *Signer {
	t.Helper()
	s, err := NewSigner(append([]byte{first}, make([]byte, SigningKeyBytes-1)...))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSealIsBoundToCallerAndTime(t *testing.T) {
	s, other, now := sealer(t, 1), sealer(t, 2), time.Unix(1_800_000_000, 0)
	user := func(issuer, name string, groups ...string) *Caller { c := user(issuer, name, groups); return &c }
	value := []byte("\x01value")
	ada := user("https://a", "ada", "ops")
	sealed := s.Sign(ada, value, now.Add(time.Hour))
	for name, tt := range map[string]struct {
		by     *Signer
		caller *Caller
		sealed []byte
		now    time.Time
		want   error
	}{
		"good":                    {s, ada, sealed, now, nil},
		"of other groups now":     {s, user("https://a", "ada", "dev", "ops"), sealed, now, nil},
		"at its end":              {s, ada, sealed, now.Add(time.Hour), nil},
		"behind its end":          {s, ada, sealed, now.Add(time.Hour + time.Second), ErrOutdated},
		"without an end":          {s, ada, s.Sign(ada, value, time.Time{}), now.Add(1000 * time.Hour), nil},
		"of another":              {s, user("https://a", "bob", "ops"), sealed, now, ErrForged},
		"of another issuer":       {s, user("https://b", "ada", "ops"), sealed, now, ErrForged},
		"of a certificate":        {s, certificate("ada"), sealed, now, ErrForged},
		"of another key":          {other, ada, sealed, now, ErrOutdated},
		"not sealed":              {s, ada, value, now, ErrOutdated},
		"empty":                   {s, ada, nil, now, ErrForged},
		"short":                   {s, ada, sealed[:signedBytes-1], now, ErrForged},
		"without its value":       {s, ada, sealed[:signedBytes], now, ErrForged},
		"with more":               {s, ada, append(bytes.Clone(sealed), 0), now, ErrForged},
		"of a format that is not": {s, ada, append([]byte{3}, sealed[1:]...), now, ErrForged},
	} {
		got, err := tt.by.Open(tt.caller, tt.sealed, tt.now)
		if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) || err == nil && !bytes.Equal(got, value) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for i := range sealed {
		if i == 0 || i > 8 {
			bad := bytes.Clone(sealed)
			bad[i] ^= 4
			if _, err := s.Open(ada, bad, now); err == nil {
				t.Errorf("byte %d may be changed", i)
			}
		}
	}
	if _, err := NewSigner(make([]byte, 31)); err == nil {
		t.Error("a short key is taken")
	}
}

func FuzzOpen(f *testing.F) {
	s, c := sealer(f, 1), certificate("a")
	f.Add(s.Sign(c, []byte("value"), time.Time{}))
	f.Fuzz(func(t *testing.T, sealed []byte) {
		if value, err := s.Open(c, sealed, time.Now()); err == nil &&
			!bytes.Equal(s.Sign(c, value, time.Time{})[signedBytes:], value) {
			t.Error(value)
		}
	})
}

// A shared value is taken from any caller, and is forged if anything of it changes, also whether it is shared.
func TestSharedValuesAreTakenFromAnyCaller(t *testing.T) {
	s, err := NewSigner(make([]byte, SigningKeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	a, b := account("prod", "driver"), account("prod", "executor")
	now := time.Unix(1000, 0)
	shared := s.SignShared([]byte("split"), now.Add(time.Hour))
	for _, who := range []*Caller{&a, &b} {
		if value, err := s.OpenShared(who, shared, now); err != nil || string(value) != "split" {
			t.Errorf("%s: %q, %v", who, value, err)
		}
	}
	if _, err := s.OpenShared(&a, shared, now.Add(2*time.Hour)); !errors.Is(err, ErrOutdated) {
		t.Errorf("later: %v", err)
	}
	own := s.Sign(&a, []byte("split"), time.Time{})
	if _, err := s.OpenShared(&b, own, now); !errors.Is(err, ErrForged) {
		t.Errorf("another caller's value: %v", err)
	}
	for _, value := range [][]byte{own, shared} {
		for i := range value {
			bad := append([]byte(nil), value...)
			bad[i] ^= 1
			if _, err := s.OpenShared(&a, bad, now); err == nil {
				t.Errorf("byte %d of %d was changed, and the value is taken", i, len(bad))
			}
		}
	}
}
