package keyfiles

import (
	"bytes"
	"encoding/base64"
	"errors"
	"testing"
)

// Whatever a file has, it is one key or an error that contains none of it. The tests of internal/archive/keys have a
// table of files.
func FuzzParse(f *testing.F) {
	secret := make([]byte, KeyBytes)
	secret[3] = 1
	f.Add([]byte(base64.StdEncoding.EncodeToString(secret)), []byte("k"))
	f.Add([]byte{}, []byte("current"))
	f.Fuzz(func(t *testing.T, key, current []byte) {
		all, err := Parse(map[string][]byte{"k": key, Current: current})
		switch {
		case err == nil && (len(all) != 1 || len(all[0].Secret) != KeyBytes):
			t.Fatalf("%d keys", len(all))
		case err != nil && (!errors.Is(err, ErrInvalid) || len(key) > 20 && bytes.Contains([]byte(err.Error()), key)):
			t.Fatal(err)
		}
	})
}
