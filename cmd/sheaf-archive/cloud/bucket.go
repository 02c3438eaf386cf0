package cloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"strings"

	"cloud.google.com/go/storage"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"sheaf.dev/sheaf/internal/archive/bucket"
)

// partsAtOnce is how many parts of one large object are in memory at the same time. In S3 and Azure, the size of a part
// is 8 MiB.
const partsAtOnce = 2

// Bucket is a bucket.Bucket of a cloud provider.
type Bucket struct {
	blobs     *blob.Bucket
	place     string // the URL without its options, for error messages
	container string // name of the bucket at its provider
	prefix    string // put before the name of each object; either empty or ends with a slash
}

var _ bucket.Bucket = (*Bucket)(nil)

// fail returns the error of a call. It names the reason and a remedy.
func (b *Bucket) fail(ctx context.Context, op, name string, err error) error {
	reason := reasonOf(err)
	if ended := context.Cause(ctx); ended != nil {
		reason = bucket.Late
		if !errors.Is(err, ended) {
			err = fmt.Errorf("%w: %w", ended, err)
		}
	}
	return &bucket.Error{Op: op, Bucket: b.place, Object: name, Reason: reason, Err: err}
}

// nowhere returns the error of a call for which "not found" can only mean that the bucket itself does not exist.
func (b *Bucket) nowhere(ctx context.Context, op, name string, err error) error {
	if gcerrors.Code(err) == gcerrors.NotFound && reasonOf(err) == bucket.Other {
		return &bucket.Error{Op: op, Bucket: b.place, Object: name, Reason: bucket.NoBucket, Err: err}
	}
	return b.fail(ctx, op, name, err)
}

// answer returns an error that wraps fs.ErrExist or fs.ErrNotExist.
func (b *Bucket) answer(op, name string, answer error) error {
	return &fs.PathError{Op: op, Path: b.place + "/" + name, Err: answer}
}

// missing turns a provider's error into fs.ErrNotExist if the object does not exist. From the error alone, this is
// not certain: providers return the same error if the bucket does not exist, if its host name is unknown, or if the
// caller may not see the object. Because callers rely on fs.ErrNotExist, missing first sends a request to the bucket
// itself. If that request fails, its error is returned, which is also more precise: the answer to a HEAD request in
// S3 contains only a status.
func (b *Bucket) missing(ctx context.Context, op, name string, err error) error {
	reason, mute := reasonOf(err), statusOf(err).http != 0
	if ctx.Err() != nil || reason != bucket.Other && (reason != bucket.Forbidden || !mute) {
		return b.fail(ctx, op, name, err)
	}
	_, _, asked := b.blobs.ListPage(ctx, blob.FirstPageToken, 1, &blob.ListOptions{Prefix: b.prefix})
	switch {
	case asked != nil:
		return b.nowhere(ctx, op, name, asked)
	case gcerrors.Code(err) == gcerrors.NotFound && reason == bucket.Other:
		return b.answer(op, name, fs.ErrNotExist)
	}
	return b.fail(ctx, op, name, err)
}

// content reads the data of a new object. It remembers an error of its own, so that this error is not mistaken for an
// error of the bucket.
type content struct {
	io.Reader
	err error
}

func (c *content) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

// Create implements bucket.Bucket. An object below 16 MiB is sent in one request.
func (b *Bucket) Create(ctx context.Context, name string, size int64, from io.Reader) error {
	if err := bucket.CheckName(name); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return b.fail(ctx, "create", name, err)
	}
	// Closing the writer creates the object, even if its content is incomplete. Only cancelling the writer's context
	// prevents that.
	sending, give := context.WithCancel(ctx)
	defer give()
	w, err := b.blobs.NewWriter(sending, b.prefix+name, &blob.WriterOptions{
		IfNotExist: true, ContentType: "application/octet-stream", MaxConcurrency: partsAtOnce,
	})
	if err != nil {
		return b.fail(ctx, "create", name, err)
	}
	source := &content{Reader: from}
	wrong := send(w, size, source)
	if wrong != nil {
		give()
	}
	closed := w.Close()
	switch {
	case source.err != nil:
		return fmt.Errorf("create %s in %s: read its content: %w", name, b.place, source.err)
	case errors.Is(wrong, bucket.ErrLength):
		return fmt.Errorf("create %s in %s: %w", name, b.place, wrong)
	case wrong == nil:
		wrong = closed
	}
	switch {
	case wrong == nil:
		return nil
	case gcerrors.Code(wrong) == gcerrors.FailedPrecondition:
		return b.answer("create", name, fs.ErrExist)
	}
	return b.nowhere(ctx, "create", name, wrong)
}

// send copies exactly size bytes, and checks that no more bytes follow.
func send(w io.Writer, size int64, from io.Reader) error {
	n, err := io.Copy(w, io.LimitReader(from, size))
	if err != nil {
		return err
	}
	var more [1]byte
	switch m, err := io.ReadFull(from, more[:]); {
	case m > 0 || n != size:
		return fmt.Errorf("%w: it has %d bytes, and more follow: %t, instead of %d", bucket.ErrLength, n, m > 0, size)
	case err != io.EOF:
		return err
	}
	return nil
}

// Open implements bucket.Bucket. The reads also end when the context ends.
func (b *Bucket) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if err := bucket.CheckName(name); err != nil {
		return nil, err
	}
	if length == 0 {
		return b.nothing(ctx, name) // providers do not support empty ranges
	}
	r, err := b.blobs.NewRangeReader(ctx, b.prefix+name, offset, length, nil)
	if err != nil && offset > 0 && statusOf(err).http == 416 {
		return b.nothing(ctx, name) // the offset is beyond the end of the object
	}
	if err != nil {
		return nil, b.missing(ctx, "open", name, err)
	}
	left := max(0, r.Size()-offset)
	if length > 0 {
		left = min(left, length)
	}
	var answer s3.GetObjectOutput
	if (offset > 0 || length > 0) && r.As(&answer) {
		// The other providers' libraries check this themselves.
		if got, want := aws.ToString(answer.ContentRange), fmt.Sprintf("bytes %d-", offset); !strings.HasPrefix(got, want) {
			_ = r.Close() // the error is unimportant, because the object was only read
			return nil, &bucket.Error{Op: "open", Bucket: b.place, Object: name, Reason: bucket.Broken,
				Err: fmt.Errorf("asked for bytes from %d on, the answer is for the range %q", offset, got)}
		}
	}
	return &reader{ctx: ctx, b: b, name: name, r: r, left: left}, nil
}

// nothing returns a reader of an empty range. It returns an error if the object does not exist.
func (b *Bucket) nothing(ctx context.Context, name string) (io.ReadCloser, error) {
	if _, err := b.Stat(ctx, name); err != nil {
		return nil, err
	}
	return io.NopCloser(strings.NewReader("")), nil
}

// reader reads a part of an object, and returns an error if it ends early.
type reader struct {
	ctx  context.Context
	b    *Bucket
	name string
	r    *blob.Reader
	left int64 // number of bytes that have not been read yet
}

func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if r.left == 0 {
		return r.end()
	}
	n, err := r.r.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	switch {
	case err == nil || n > 0:
		return n, nil // the next call returns the error
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("%w: %d bytes are missing", io.ErrUnexpectedEOF, r.left)
	}
	return 0, r.b.fail(r.ctx, "read", r.name, err)
}

// end tries to read beyond the last byte, because some libraries check the content only then.
func (r *reader) end() (int, error) {
	var more [1]byte
	switch n, err := io.ReadFull(r.r, more[:]); {
	case n > 0:
		return 0, &bucket.Error{Op: "read", Bucket: r.b.place, Object: r.name, Reason: bucket.Broken,
			Err: errors.New("the answer has more bytes than it said")}
	case err != io.EOF:
		return 0, r.b.fail(r.ctx, "read", r.name, err)
	}
	return 0, io.EOF
}

func (r *reader) Close() error { return r.r.Close() }

// Stat implements bucket.Bucket.
func (b *Bucket) Stat(ctx context.Context, name string) (bucket.Info, error) {
	if err := bucket.CheckName(name); err != nil {
		return bucket.Info{}, err
	}
	found, err := b.blobs.Attributes(ctx, b.prefix+name)
	if err != nil {
		return bucket.Info{}, b.missing(ctx, "stat", name, err)
	}
	info := bucket.Info{Name: name, Bytes: found.Size, Created: found.CreateTime}
	if info.Created.IsZero() {
		info.Created = found.ModTime // S3 has no creation time, and objects are never modified
	}
	return info, nil
}

// List implements bucket.Bucket. It leaves out objects whose names CheckName does not allow, because they belong to
// somebody else.
func (b *Bucket) List(ctx context.Context, prefix, after string) iter.Seq2[bucket.Info, error] {
	return func(yield func(bucket.Info, error) bool) {
		objects := b.blobs.List(&blob.ListOptions{Prefix: b.prefix + prefix, BeforeList: b.startAfter(after)})
		last := ""
		for {
			found, err := objects.Next(ctx)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(bucket.Info{}, b.nowhere(ctx, "list", prefix, err))
				return
			}
			name, ok := strings.CutPrefix(found.Key, b.prefix+prefix)
			if name = prefix + name; !ok || name <= last {
				yield(bucket.Info{}, &bucket.Error{Op: "list", Bucket: b.place, Object: prefix, Reason: bucket.Broken,
					Err: fmt.Errorf("%q follows %q: the names are not in the order of their bytes", found.Key, last)})
				return
			}
			last = name
			if name <= after || bucket.CheckName(name) != nil {
				continue
			}
			if !yield(bucket.Info{Name: name, Bytes: found.Size, Created: found.ModTime}, nil) {
				return
			}
		}
	}
}

// startAfter tells the provider where a list begins, if the provider supports this. Azure does not: it lists
// everything, and List skips the beginning.
func (b *Bucket) startAfter(after string) func(as func(any) bool) error {
	return func(as func(any) bool) error {
		var ask *s3.ListObjectsV2Input
		var query *storage.Query
		switch {
		case after == "":
		case as(&ask):
			if ask.ContinuationToken == nil {
				ask.StartAfter = aws.String(b.prefix + after)
			}
		case as(&query):
			query.StartOffset = b.prefix + after // the list includes the name itself, which List skips
		}
		return nil
	}
}

// Delete implements bucket.Bucket.
func (b *Bucket) Delete(ctx context.Context, name string) error {
	if err := bucket.CheckName(name); err != nil {
		return err
	}
	var client *s3.Client
	var err error
	if b.blobs.As(&client) {
		// gocloud.dev would first ask whether the object exists. This is unnecessary, because S3 accepts the deletion of a
		// missing object.
		_, err = client.DeleteObject(ctx, &s3.DeleteObjectInput{
			Bucket: aws.String(b.container), Key: aws.String(b.prefix + name),
		})
	} else {
		err = b.blobs.Delete(ctx, b.prefix+name)
	}
	if err != nil {
		err = b.missing(ctx, "delete", name, err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Close implements bucket.Bucket.
func (b *Bucket) Close() error { return b.blobs.Close() }
