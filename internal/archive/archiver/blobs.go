package archiver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/pieces"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// blob archives the data of one record. The function open opens the blob's file in the store. An error that comes
// from the store is a sourceError.
func (o *objects) blob(ctx context.Context, group uuid.UUID, ref format.BlobRef,
	open func() (io.ReadCloser, error)) error {
	name := object.BlobName(group, ref.ID)
	exists := true
	if err := o.again(ctx, ReasonRead, "look for "+name, func() error {
		_, err := o.bucket.Stat(ctx, name)
		return err
	}); errors.Is(err, fs.ErrNotExist) {
		exists = false
	} else if err != nil {
		return err
	}
	if exists {
		return nil
	}
	var file io.Closer
	closeFile := func() (err error) {
		if file != nil {
			err, file = file.Close(), nil
		}
		return err
	}
	_, err := o.create(ctx, name, func() (object.Spec, error) {
		if err := closeFile(); err != nil {
			return object.Spec{}, sourceError{fmt.Errorf("blob %s: %w", ref.ID, err)}
		}
		r, err := open()
		if err != nil {
			return object.Spec{}, sourceError{fmt.Errorf("blob %s: %w", ref.ID, err)}
		}
		file = r
		return object.Spec{
			Header: &object.Blob{Group: group, Size: ref.Size}, BodyBytes: ref.Size,
			Body: fromSource{pieces.NewBlobReader(r, ref)},
		}, nil
	})
	if closed := closeFile(); err == nil && closed != nil {
		o.log.Warn("a blob's file was not closed", "blob", ref.ID, "error", closed)
	}
	return err
}

// fromSource wraps a reader, and marks the reader's errors as errors from the store.
type fromSource struct{ src io.Reader }

// Read implements io.Reader.
func (r fromSource) Read(p []byte) (int, error) {
	n, err := r.src.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = sourceError{err}
	}
	return n, err
}
