package placementtest

import (
	"context"
	"time"

	"sheaf.dev/sheaf/internal/base/backoff"
	"sheaf.dev/sheaf/internal/placement"
)

// Again does something until etcd was not too slow for it: an etcd gives a write up after five seconds, which the disk
// of a slow machine takes, and clients do not repeat writes by themselves. What is done may have been done before.
func Again(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil || ctx.Err() != nil || !placement.IsPassing(err) {
			return err
		}
		backoff.Sleep(ctx, 50*time.Millisecond)
	}
}
