package serve

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// overdue is the answer to a write whose caller waits no more; nil: it still waits. Such a write is not begun: its
// caller may have gone on by then. It also holds where no timer has said so yet, as in a process that was stopped until
// the deadline had passed.
func overdue(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return status.Error(codes.DeadlineExceeded, "the deadline had passed before the write was begun")
	}
	return nil
}
