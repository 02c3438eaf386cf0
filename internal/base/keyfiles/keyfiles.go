// Package keyfiles parses files that have the keys of encrypted archives. The files are those of a folder or those of a
// Secret. No error of the package contains a key or a part of one.
package keyfiles

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// KeyBytes is the length of a key.
const KeyBytes = 32

// Current is the name of the file that names the key for new objects.
const Current = "current"

// ErrInvalid means that the files do not have the keys of an archive. Every error of Parse wraps it.
var ErrInvalid = errors.New("the encryption keys cannot be used")

// howTo says how a key is made. It ends messages about files that have none.
const howTo = "a key is 32 random bytes in base64, as `openssl rand -base64 32` prints them"

// File is the name of a file and the key that it has.
type File struct {
	Name   string
	Secret []byte // KeyBytes bytes
}

// Parse returns the keys of the given files. Each file has one key, as 32 bytes in base64, in one line. The first key
// in the result encrypts new objects. It is the one that the file Current names, or the first one in the order of names
// if there is no such file. Files whose names begin with a dot are ignored, because Kubernetes mounts Secrets with such
// files.
func Parse(content map[string][]byte) ([]File, error) {
	var all []File
	names := make([]string, 0, len(content))
	for name := range content {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if name == Current || strings.HasPrefix(name, ".") {
			continue
		}
		secret, err := parseKey(content[name])
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrInvalid, name, err)
		}
		for _, other := range all {
			if bytes.Equal(other.Secret, secret) {
				return nil, fmt.Errorf("%w: %s and %s have the same key: remove one of them", ErrInvalid, other.Name, name)
			}
		}
		all = append(all, File{Name: name, Secret: secret})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: there is no key: %s", ErrInvalid, howTo)
	}
	text, ok := content[Current]
	if !ok {
		return all, nil
	}
	first := strings.TrimRight(string(text), "\r\n")
	at := slices.IndexFunc(all, func(f File) bool { return f.Name == first })
	if at < 0 { // the file may have a key by mistake, so its content is not shown
		return nil, fmt.Errorf("%w: the file %s must have the name of another file, whose key encrypts new objects",
			ErrInvalid, Current)
	}
	return slices.Concat(all[at:at+1], all[:at], all[at+1:]), nil
}

// parseKey decodes a key. Its errors do not contain any of the file's content.
func parseKey(text []byte) ([]byte, error) {
	line := bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
	want := base64.StdEncoding.EncodedLen(KeyBytes)
	if len(line) != want {
		return nil, fmt.Errorf("it has %d bytes, and not one line of %d characters: %s", len(text), want, howTo)
	}
	secret := make([]byte, base64.StdEncoding.DecodedLen(want))
	n, err := base64.StdEncoding.Strict().Decode(secret, line)
	if err != nil || n != KeyBytes {
		return nil, fmt.Errorf("it is not the base64 of 32 bytes: %s", howTo)
	}
	if bytes.Count(secret[:n], secret[:1]) == n {
		return nil, fmt.Errorf("all bytes of the key are equal: %s", howTo)
	}
	return secret[:n], nil
}
