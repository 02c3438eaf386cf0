package placementtest

import (
	"context"
	"time"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/placement/registry"
)

// Again calls do() repeatedly until it succeeds, or fails for a reason other than a slow etcd. A write to etcd times
// out after five seconds. On a machine with a slow disk it can take that long, and clients do not retry writes on
// their own. A call to do() that has failed may nevertheless have taken effect.
func Again(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil || ctx.Err() != nil || !registry.IsPassing(err) {
			return err
		}
		backoff.Sleep(ctx, 50*time.Millisecond)
	}
}
