package layouts

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// zeroBytes is the number of zeros in one write.
const zeroBytes = 4 << 20

// newImage creates an unnamed file of the given size. The argument prewritten is the number of bytes at its beginning
// that newImage fills with zeros, so that measurements in this part of the file need no new space from the underlying
// file system. The rest of the file is sparse.
func newImage(ctx context.Context, dir string, bytes, prewritten int64) (f *os.File, err error) {
	if f, err = os.CreateTemp(dir, "sheaf-bench-image-"); err != nil {
		return nil, fmt.Errorf("making an image: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	if err := f.Truncate(bytes); err != nil {
		return nil, fmt.Errorf("making an image of %d bytes: %w", bytes, err)
	}
	zeros := make([]byte, zeroBytes)
	for at := int64(0); at < prewritten; at += zeroBytes {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if _, err := f.WriteAt(zeros[:min(zeroBytes, prewritten-at)], at); err != nil {
			return nil, fmt.Errorf("writing an image of %d bytes: %w", bytes, err)
		}
	}
	return f, f.Sync()
}
