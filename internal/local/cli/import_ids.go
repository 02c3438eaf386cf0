package cli

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path"
	"strings"
)

// idScheme assigns ids to the files of a tree. An error concerns only the file in the argument.
type idScheme func(rel string) (int64, error)

// newIDScheme parses the value of --id. The scheme "sequence" numbers the files in the order of the calls, starting at
// FirstID. Files in knownIDs keep their ids.
func (o *ImportOptions) newIDScheme() (idScheme, error) {
	if file, ok := strings.CutPrefix(o.ID, "map:"); ok {
		return mapIDs(file)
	}
	switch o.ID {
	case "name":
		return nameID, nil
	case "hash":
		return func(rel string) (int64, error) { return HashID(join(o.Prefix, rel)), nil }, nil
	case "sequence":
		next := o.FirstID
		return func(rel string) (int64, error) {
			if id, ok := o.knownIDs[hashName(join(o.Prefix, rel))]; ok {
				return id, nil
			}
			id := next
			if next == 1<<63-1 {
				return 0, fmt.Errorf("the sequence is at its end: %d was the last id", id)
			}
			next++
			return id, nil
		}, nil
	}
	return nil, checkIDScheme(o.ID)
}

// checkIDScheme validates the scheme before any request to a server.
func checkIDScheme(scheme string) error {
	file, isMap := strings.CutPrefix(scheme, "map:")
	if isMap && file != "" || scheme == "name" || scheme == "hash" || scheme == "sequence" {
		return nil
	}
	return Usagef("--id %q: must be name, sequence, hash or map:FILE", scheme)
}

// nameID reads the id at the beginning of a file's name. The id ends at the first dot: 42, 42.json, 0x2a.tar.gz.
func nameID(rel string) (int64, error) {
	name := path.Base(rel)
	if i := strings.IndexByte(name, '.'); i > 0 {
		name = name[:i]
	}
	id, err := ParseID(name)
	if err != nil {
		return 0, fmt.Errorf("the name is no id (--id name wants names like 42 or 0x2a.json)")
	}
	return id, nil
}

// HashID returns the id that --id hash assigns to a path: the first 8 bytes, big-endian, of its SHA-256.
func HashID(p string) int64 {
	sum := sha256.Sum256([]byte(p))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

type nameHash [16]byte

// hashName returns 16 bytes that represent a path in a table.
func hashName(p string) nameHash {
	sum := sha256.Sum256([]byte(p))
	return nameHash(sum[:16])
}

// mapIDs reads a file with lines "ID PATH": an id, blanks or a tab, and the path below the imported folder up to the
// end of the line. It skips empty lines and lines that begin with #.
func mapIDs(file string) (idScheme, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, Usagef("--id map: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read from
	ids := map[string]int64{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if strings.TrimSpace(line) == "" || line[0] == '#' {
			continue
		}
		end := strings.IndexAny(line, " \t")
		if end < 1 {
			return nil, Usagef("--id map: %s line %d: must be an id, a blank and a path", file, n)
		}
		id, err := ParseID(line[:end])
		if err != nil {
			return nil, Usagef("--id map: %s line %d: %w", file, n, err)
		}
		p := path.Clean(strings.TrimLeft(line[end:], " \t"))
		if _, twice := ids[p]; twice {
			return nil, Usagef("--id map: %s line %d: %s is named twice", file, n, displayName(p))
		}
		ids[p] = id
	}
	if err := lines.Err(); err != nil {
		return nil, Usagef("--id map: %s: %w", file, err)
	}
	return func(rel string) (int64, error) {
		id, ok := ids[rel]
		if !ok {
			return 0, fmt.Errorf("not named in %s", file)
		}
		return id, nil
	}, nil
}

// groupOf returns the group of a file, in Named routing. With "dir", it is the first folder of the file's path, or
// "_root" for files that are in no folder. With "name:X", or any other X, it is the group X.
func (o *ImportOptions) groupOf(rel string) string {
	if o.Group != "dir" {
		return strings.TrimPrefix(o.Group, "name:")
	}
	dir, _, ok := strings.Cut(rel, "/")
	if !ok {
		return "_root"
	}
	return groupName(dir)
}

// groupName turns a folder's name into a valid group name: bytes other than [a-zA-Z0-9._-], and a leading dot, become
// "_" and two hexadecimal digits. A name that is too long is truncated and made unique by a hash.
func groupName(dir string) string {
	const most = 253
	var b strings.Builder
	for i := range len(dir) {
		c := dir[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
		if !plain || (i == 0 && c == '.') {
			fmt.Fprintf(&b, "_%02x", c)
			continue
		}
		b.WriteByte(c)
	}
	name := b.String()
	if len(name) > most {
		name = name[:most-17] + fmt.Sprintf("-%016x", uint64(HashID(dir)))
	}
	return name
}
