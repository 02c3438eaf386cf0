// Package bucket keeps the objects of archives. A Bucket is a folder of a file system here; the program sheaf-archive
// adds those of cloud providers. The objects themselves are described in docs/archive.md.
package bucket

import (
	"context"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"
)

// Bucket holds objects that are created once, and never replaced. Names are valid by CheckName. An error that wraps
// fs.ErrNotExist or fs.ErrExist is final; after every other error the outcome of a Create or Delete is unknown, and the
// call may be made again. All methods are safe for concurrent use.
type Bucket interface {
	// Create stores an object of the given size in bytes, which content must have exactly. The object is durable when
	// Create returns nil. It returns fs.ErrExist if an object of this name exists, and that one is durable, too. Of
	// several callers that create one name, at most one is told nil.
	Create(ctx context.Context, name string, size int64, content io.Reader) error
	// Open reads an object from an offset on, to its end if length is negative. The caller closes the reader. It
	// returns fs.ErrNotExist if there is no object of this name.
	Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error)
	// Stat describes an object. It returns fs.ErrNotExist if there is no object of this name.
	Stat(ctx context.Context, name string) (Info, error)
	// List yields the objects whose names begin with prefix and are above after, in the order of the bytes of their
	// names. An object that is created or deleted during the iteration may be missing.
	List(ctx context.Context, prefix, after string) iter.Seq2[Info, error]
	// Delete removes an object. It returns nil if there is none.
	Delete(ctx context.Context, name string) error
	// Close releases what the bucket holds.
	Close() error
}

// Info describes an object.
type Info struct {
	Name    string
	Bytes   int64
	Created time.Time // by the clock of the bucket
}

// nameBytesMax is the greatest length of a name. S3 allows 1,024 bytes, of which the URL takes a part.
const nameBytesMax = 512

// CheckName returns an error unless a name is relative, clean, of printable ASCII characters, and short enough for each
// bucket and file system.
func CheckName(name string) error {
	if name == "" || len(name) > nameBytesMax {
		return fmt.Errorf("name of an object: %d bytes, allowed are 1 to %d", len(name), nameBytesMax)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || len(part) > 255 {
			return fmt.Errorf("name of an object: %q has a part that is empty, dots or above 255 bytes", name)
		}
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c > '~' || c == '\\' {
			return fmt.Errorf("name of an object: %q has a character that is not allowed", name)
		}
	}
	return nil
}
