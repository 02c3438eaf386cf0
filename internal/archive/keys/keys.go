// Package keys reads the keys of encrypted archives from a folder.
package keys

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/base/keyfiles"
)

// fileBytesMax bounds what is read of a file, which may be any file if the folder is the wrong one.
const fileBytesMax = 4 << 10

// filesMax is the greatest number of files in a folder.
const filesMax = 1000

// ErrInvalid means that a folder does not have the keys of an archive. Every error of Load wraps it.
var ErrInvalid = keyfiles.ErrInvalid

// Named is a key with the name of its file.
type Named struct {
	Name string
	Key  object.Key
}

// Load reads the keys in a folder, in the order of keyfiles.Parse: the first one encrypts new objects.
func Load(dir string) ([]Named, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	content := map[string][]byte{}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), ".") {
			continue // keyfiles.Parse ignores it, and it may be a folder
		}
		if len(content) == filesMax {
			return nil, fmt.Errorf("%w: %s has more than %d files: is it the right folder?", ErrInvalid, dir, filesMax)
		}
		b, err := readFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		content[f.Name()] = b
	}
	parsed, err := keyfiles.Parse(content)
	if err != nil {
		return nil, fmt.Errorf("folder %s: %w", dir, err)
	}
	all := make([]Named, 0, len(parsed))
	for _, f := range parsed {
		key, err := object.NewKey(f.Secret)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrInvalid, f.Name, err)
		}
		all = append(all, Named{Name: f.Name, Key: key})
	}
	return all, nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, fileBytesMax))
	return b, errors.Join(err, f.Close())
}

// Of returns the keys without their names.
func Of(all []Named) object.Keys {
	keys := make(object.Keys, 0, len(all))
	for _, k := range all {
		keys = append(keys, k.Key)
	}
	return keys
}
