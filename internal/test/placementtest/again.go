package placementtest

import (
	"context"
	"time"

	"sheaf.dev/sheaf/internal/base/backoff"
	"sheaf.dev/sheaf/internal/placement"
)

// Again repeats do until etcd is not too slow for it. An etcd gives up a write after five seconds, which the disk of a
// slow machine can take, and clients do not repeat writes automatically. A repeated call may have taken effect before.
func Again(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil || ctx.Err() != nil || !placement.IsPassing(err) {
			return err
		}
		backoff.Sleep(ctx, 50*time.Millisecond)
	}
}
