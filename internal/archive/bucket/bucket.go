// Package bucket stores the objects of archives. In this package, a Bucket is a folder of a file system. The program
// sheaf-archive adds the buckets of cloud providers. The objects themselves are described in docs/archive.md.
package bucket

import (
	"context"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"
)

// Bucket holds objects that are created once and never replaced. Their names must be valid according to CheckName. An
// error that wraps fs.ErrNotExist or fs.ErrExist is final. After any other error of Create or Delete, the outcome is
// unknown, and the call may be repeated. All methods are safe for concurrent use.
type Bucket interface {
	// Create stores an object. The content must have exactly the given size in bytes. When Create returns nil, the
	// object is durable. It returns fs.ErrExist if an object with this name exists, in which case that object is
	// durable. If several callers create the same name, at most one of them gets nil.
	Create(ctx context.Context, name string, size int64, content io.Reader) error
	// Open reads an object from an offset. It reads length bytes or, if length is negative, up to the end. The caller
	// must close the reader. Open returns fs.ErrNotExist if the object does not exist.
	Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error)
	// Stat describes an object. It returns fs.ErrNotExist if the object does not exist.
	Stat(ctx context.Context, name string) (Info, error)
	// List yields the objects whose names begin with the given prefix and are greater than a given name, in byte order
	// of their names. It may miss an object that is created or deleted during the iteration.
	List(ctx context.Context, prefix, after string) iter.Seq2[Info, error]
	// Delete removes an object. It returns nil if the object does not exist.
	Delete(ctx context.Context, name string) error
	// Close releases the bucket's resources.
	Close() error
}

// Info describes an object.
type Info struct {
	Name    string
	Bytes   int64
	Created time.Time // according to the bucket's clock
}

// nameBytesMax is the maximum length of a name. S3 allows 1,024 bytes, part of which the path in the URL uses.
const nameBytesMax = 512

// CheckName checks that a name is relative and clean, consists of printable ASCII characters, and is short enough for
// every kind of bucket and file system.
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
