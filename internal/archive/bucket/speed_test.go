package bucket_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"sync"
	"testing"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/test/buckettest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// The objects of a measurement have the sizes that were asked for together, and none of them remains.
func TestTheSpeedOfABucketIsMeasured(t *testing.T) {
	o := &customBucket{Bucket: open(t, vfstest.NewMem(), "/archive")}
	var mu sync.Mutex
	sizes := map[int64]int{}
	o.create = func(ctx context.Context, name string, size int64, content io.Reader) error {
		mu.Lock()
		sizes[size]++
		mu.Unlock()
		return o.Bucket.Create(ctx, name, size, content)
	}
	s, err := bucket.MeasureSpeed(t.Context(), o, bucket.SpeedOptions{Bytes: 7<<20 + 1, ObjectBytes: 3 << 20, Parallel: 2})
	if err != nil || s.Kept != nil || s.Objects != 3 || s.Bytes != 7<<20+1 || s.Upload <= 0 || s.Download <= 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if sizes[3<<20] != 2 || sizes[1<<20+1] != 1 {
		t.Errorf("sizes %v", sizes)
	}
	if left := names(t, o.Bucket); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	for _, wrong := range []bucket.SpeedOptions{{ObjectBytes: 1, Parallel: 1}, {Bytes: 1, Parallel: 1},
		{Bytes: 1, ObjectBytes: 1}} {
		if _, err := bucket.MeasureSpeed(t.Context(), o, wrong); err == nil {
			t.Errorf("%+v is measured", wrong)
		}
	}
}

// A measurement ends with an error if the bucket loses or changes objects, and deletes its objects nevertheless.
func TestTheSpeedOfABadBucketIsNotMeasured(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(o *customBucket, stop func())
		want  error
	}{
		"other bytes": {func(o *customBucket, _ func()) {
			o.open = func(context.Context, string, int64, int64) (io.ReadCloser, error) {
				return io.NopCloser(bytes.NewReader(buckettest.Content(1000, 9))), nil
			}
		}, bucket.ErrReadsOther},
		"too few bytes": {func(o *customBucket, _ func()) {
			o.open = func(ctx context.Context, name string, _, _ int64) (io.ReadCloser, error) {
				return o.Bucket.Open(ctx, name, 0, 999)
			}
		}, bucket.ErrReadsOther},
		"no object": {func(o *customBucket, _ func()) {
			o.open = func(context.Context, string, int64, int64) (io.ReadCloser, error) { return nil, fs.ErrNotExist }
		}, bucket.ErrReadsOther},
		"no room": {func(o *customBucket, _ func()) {
			created := 0
			o.create = func(ctx context.Context, name string, size int64, content io.Reader) error {
				if created++; created == 3 {
					return fs.ErrPermission
				}
				return o.Bucket.Create(ctx, name, size, content)
			}
		}, fs.ErrPermission},
		"the caller gives up": {func(o *customBucket, stop func()) {
			o.open = func(ctx context.Context, _ string, _, _ int64) (io.ReadCloser, error) {
				stop()
				return nil, ctx.Err()
			}
		}, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			o := &customBucket{Bucket: open(t, vfstest.NewMem(), "/archive")}
			c.spoil(o, stop)
			s, err := bucket.MeasureSpeed(ctx, o, bucket.SpeedOptions{Bytes: 4000, ObjectBytes: 1000, Parallel: 1})
			if !errors.Is(err, c.want) || s.Kept != nil {
				t.Errorf("error %v, want %v; kept %v", err, c.want, s.Kept)
			}
			if left := names(t, o.Bucket); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}
