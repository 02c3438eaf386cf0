package upkeep

import (
	"context"
	"fmt"
	"io"
	"time"

	"sheaf.dev/sheaf/internal/archive/bucket"
)

// ownedFor is how long an answer that this process owns the archive is used.
const ownedFor = 10 * time.Second

// fence is a bucket that changes nothing after another archiver has taken over. That archiver may have been told to
// keep more than this process was told, and this process may have been paused for days. One goroutine uses a fence.
type fence struct {
	bucket.Bucket
	owns  func(ctx context.Context) error
	asked time.Time // when owns returned nil the last time, by the wall clock
}

// check returns an error unless this process owned the archive at most ownedFor ago. It compares times of the wall
// clock, because the monotonic clock stands still while a machine is suspended.
func (f *fence) check(ctx context.Context) error {
	now := time.Now().Round(0)
	if age := now.Sub(f.asked); age >= 0 && age < ownedFor {
		return nil
	}
	if err := f.owns(ctx); err != nil {
		return fmt.Errorf("whether this process still writes the archive: %w", err)
	}
	f.asked = now
	return nil
}

// Create implements bucket.Bucket.
func (f *fence) Create(ctx context.Context, name string, size int64, content io.Reader) error {
	if err := f.check(ctx); err != nil {
		return err
	}
	return f.Bucket.Create(ctx, name, size, content)
}

// Delete implements bucket.Bucket.
func (f *fence) Delete(ctx context.Context, name string) error {
	if err := f.check(ctx); err != nil {
		return err
	}
	return f.Bucket.Delete(ctx, name)
}
