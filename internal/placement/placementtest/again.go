package placementtest

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/pause"
)

// Again does something until etcd was not too slow for it: an etcd gives a write up after five seconds, which the disk
// of a slow machine takes, and clients do not repeat writes by themselves. What is done may have been done before.
func Again(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil || ctx.Err() != nil || !isSlow(err) {
			return err
		}
		pause.Sleep(ctx, 50*time.Millisecond)
	}
}

func isSlow(err error) bool {
	var answer rpctypes.EtcdError
	if errors.As(err, &answer) {
		return answer.Code() == codes.Unavailable
	}
	return status.Code(err) == codes.Unavailable
}
