package placementtest

import (
	"context"
	"time"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/placement/registry"
)

// Again retries do() until do() succeeds or fails for a reason other than a slow etcd. In etcd, a write times out after
// five seconds. On a slow machine's disk, a write can take that long, and clients do not retry writes automatically. An
// earlier call to do() may have taken effect.
func Again(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil || ctx.Err() != nil || !registry.IsPassing(err) {
			return err
		}
		backoff.Sleep(ctx, 50*time.Millisecond)
	}
}
