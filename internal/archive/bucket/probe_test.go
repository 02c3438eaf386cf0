package bucket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/buckettest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// customBucket is a bucket in which a test replaces some methods.
type customBucket struct {
	bucket.Bucket
	create func(ctx context.Context, name string, size int64, content io.Reader) error
	open   func(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error)
	list   func(ctx context.Context, prefix, after string) iter.Seq2[bucket.Info, error]
	delete func(ctx context.Context, name string) error
}

func (o *customBucket) Create(ctx context.Context, name string, size int64, content io.Reader) error {
	if o.create != nil {
		return o.create(ctx, name, size, content)
	}
	return o.Bucket.Create(ctx, name, size, content)
}

func (o *customBucket) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if o.open != nil {
		return o.open(ctx, name, offset, length)
	}
	return o.Bucket.Open(ctx, name, offset, length)
}

func (o *customBucket) List(ctx context.Context, prefix, after string) iter.Seq2[bucket.Info, error] {
	if o.list != nil {
		return o.list(ctx, prefix, after)
	}
	return o.Bucket.List(ctx, prefix, after)
}

func (o *customBucket) Delete(ctx context.Context, name string) error {
	if o.delete != nil {
		return o.delete(ctx, name)
	}
	return o.Bucket.Delete(ctx, name)
}

func names(t *testing.T, b bucket.Bucket) (all []string) {
	t.Helper()
	for info, err := range b.List(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, info.Name)
	}
	return all
}

func TestAGoodBucketPassesTheProbe(t *testing.T) {
	b := open(t, vfstest.NewMem(), "/archive")
	probed, err := bucket.Probe(t.Context(), b)
	if err != nil || probed.Kept != nil || !strings.HasPrefix(probed.Object, bucket.ProbePrefix) {
		t.Fatalf("%+v, %v", probed, err)
	}
	if left := names(t, b); len(left) > 0 {
		t.Errorf("the probe left %q", left)
	}
}

// Probe refuses a bucket in which one of two archivers could overwrite the other's objects, and a bucket that returns
// other bytes than were written.
func TestABadBucketIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(o *customBucket)
		want  error
	}{
		"it replaces": {func(o *customBucket) {
			o.create = func(ctx context.Context, name string, size int64, content io.Reader) error {
				return errors.Join(o.Bucket.Delete(ctx, name), o.Bucket.Create(ctx, name, size, content))
			}
		}, bucket.ErrReplaces},
		"it keeps the first and says that the second is created": {func(o *customBucket) {
			o.create = func(ctx context.Context, name string, size int64, content io.Reader) error {
				if err := o.Bucket.Create(ctx, name, size, content); !errors.Is(err, fs.ErrExist) {
					return err
				}
				return nil
			}
		}, bucket.ErrReplaces},
		"it replaces and says that the name exists": {func(o *customBucket) {
			o.create = func(ctx context.Context, name string, size int64, content io.Reader) error {
				_, before := o.Stat(ctx, name)
				if err := errors.Join(o.Bucket.Delete(ctx, name), o.Bucket.Create(ctx, name, size, content)); err != nil {
					return err
				}
				if before == nil {
					return fs.ErrExist
				}
				return nil
			}
		}, bucket.ErrReplaces},
		"it returns other bytes": {func(o *customBucket) {
			o.open = func(context.Context, string, int64, int64) (io.ReadCloser, error) {
				return io.NopCloser(bytes.NewReader(buckettest.Content(1000, 9))), nil
			}
		}, bucket.ErrReadsOther},
		"it knows no ranges": {func(o *customBucket) {
			o.open = func(ctx context.Context, name string, _, _ int64) (io.ReadCloser, error) {
				return o.Bucket.Open(ctx, name, 0, -1)
			}
		}, bucket.ErrReadsOther},
		"it does not find what it was given": {func(o *customBucket) {
			o.open = func(context.Context, string, int64, int64) (io.ReadCloser, error) { return nil, fs.ErrNotExist }
		}, bucket.ErrReadsOther},
		"it lists nothing": {func(o *customBucket) {
			o.list = func(context.Context, string, string) iter.Seq2[bucket.Info, error] {
				return func(func(bucket.Info, error) bool) {}
			}
		}, bucket.ErrReadsOther},
	} {
		t.Run(name, func(t *testing.T) {
			o := &customBucket{Bucket: open(t, vfstest.NewMem(), "/archive")}
			c.spoil(o)
			if _, err := bucket.Probe(t.Context(), o); !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if left := names(t, o.Bucket); len(left) > 0 {
				t.Errorf("the probe left %q", left)
			}
		})
	}
}

// If a call has an unknown outcome, Probe must not conclude that the bucket is unsuitable.
func TestProbeDoesNotJudgeUnreachableBucket(t *testing.T) {
	away := &bucket.Error{Op: "create", Bucket: "s3://b", Reason: bucket.Away, Err: syscall.ECONNREFUSED}
	for call := 1; call <= 2; call++ {
		o := &customBucket{Bucket: open(t, vfstest.NewMem(), "/archive")}
		calls := 0
		o.create = func(ctx context.Context, name string, size int64, content io.Reader) error {
			if calls++; calls == call {
				return away
			}
			return o.Bucket.Create(ctx, name, size, content)
		}
		_, err := bucket.Probe(t.Context(), o)
		if errors.Is(err, bucket.ErrReplaces) || errors.Is(err, bucket.ErrReadsOther) || bucket.ReasonOf(err) != bucket.Away {
			t.Errorf("call %d: %v", call, err)
		}
	}
	// The response to the first create was lost, but the object was created.
	o := &customBucket{Bucket: open(t, vfstest.NewMem(), "/archive")}
	o.create = func(ctx context.Context, name string, size int64, content io.Reader) error {
		if err := o.Bucket.Create(ctx, name, size, content); err != nil {
			return err
		}
		return fs.ErrExist
	}
	if _, err := bucket.Probe(t.Context(), o); err != nil {
		t.Error(err)
	}
}

// An account without permission to delete can keep an archive that is never pruned.
func TestProbeWorksWithoutDeletePermission(t *testing.T) {
	o := &customBucket{Bucket: open(t, vfstest.NewMem(), "/archive")}
	o.delete = func(context.Context, string) error { return fs.ErrPermission }
	probed, err := bucket.Probe(t.Context(), o)
	if err != nil || !errors.Is(probed.Kept, fs.ErrPermission) {
		t.Fatalf("%+v, %v", probed, err)
	}
	if left := names(t, o.Bucket); len(left) != 1 || left[0] != probed.Object {
		t.Errorf("left: %q", left)
	}
}

func TestProbesOfKilledProcessesAreDeleted(t *testing.T) {
	root := t.TempDir() + "/archive"
	b := open(t, vfs.OS{}, root)
	ages := map[string]time.Duration{"probe/old": 25 * time.Hour, "probe/new": 23 * time.Hour, "g/a": 99 * time.Hour}
	for name, age := range ages {
		if err := b.Create(t.Context(), name, 0, bytes.NewReader(nil)); err != nil {
			t.Fatal(err)
		}
		info, err := b.Stat(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		at := info.Created.Add(-age)
		if err := os.Chtimes(root+"/"+name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if probed, err := bucket.Probe(t.Context(), b); err != nil || probed.Kept != nil {
		t.Fatalf("%+v, %v", probed, err)
	}
	if left := fmt.Sprint(names(t, b)); left != "[g/a probe/new]" {
		t.Errorf("left: %s", left)
	}
}

// Temporary files of killed processes are removed when they are old. Newer ones, which a running process may still be
// writing, are kept.
func TestLeftoversAreRemoved(t *testing.T) {
	root := t.TempDir() + "/archive"
	b := open(t, vfs.OS{}, root)
	now := time.Unix(1_800_000_000, 0)
	for name, age := range map[string]time.Duration{"old": 2, "edge": 1, "new": 0} {
		file := root + "/.pending/" + name
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chtimes(file, now.Add(-age), now.Add(-age))); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := bucket.RemoveLeftovers(t.Context(), b, now.Add(-1))
	if err != nil || removed != 1 {
		t.Fatalf("%d removed, %v", removed, err)
	}
	left, err := os.ReadDir(root + "/.pending")
	if err != nil || len(left) != 2 {
		t.Fatalf("left: %v, %v", left, err)
	}
	if removed, err := bucket.RemoveLeftovers(t.Context(), &customBucket{Bucket: b}, now); removed != 0 || err != nil {
		t.Errorf("a bucket that has no leftovers: %d, %v", removed, err)
	}
}

func TestReasons(t *testing.T) {
	of := func(reason bucket.Reason, err error) error {
		return fmt.Errorf("upload: %w", &bucket.Error{Op: "create", Bucket: "s3://b", Object: "x", Reason: reason, Err: err})
	}
	for _, c := range []struct {
		err  error
		want bucket.Reason
	}{
		{nil, ""},
		{fs.ErrExist, ""},
		{&fs.PathError{Err: fs.ErrNotExist}, ""},
		{of(bucket.Busy, io.ErrUnexpectedEOF), bucket.Busy},
		{context.DeadlineExceeded, bucket.Late},
		{&fs.PathError{Err: syscall.ENOSPC}, bucket.Full},
		{&fs.PathError{Err: syscall.EACCES}, bucket.Forbidden},
		{syscall.ECONNRESET, bucket.Away},
		{io.ErrUnexpectedEOF, bucket.Broken},
		{errors.New("?"), bucket.Other},
	} {
		if got := bucket.ReasonOf(c.err); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
	text := of(bucket.Credentials, errors.New("403")).Error()
	if text != "upload: create x in s3://b: 403: check the key or token of the bucket, that it has not ended, and that "+
		"the clocks of both machines agree" {
		t.Error(text)
	}
}
