package serve

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// overdue returns the answer to a write whose caller no longer waits, or nil if the caller still waits. Such a write is
// not begun, because its caller may have gone on by then. overdue also recognizes a deadline that has passed although
// no timer has fired yet, as in a process that was stopped until after the deadline.
func overdue(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return status.Error(codes.DeadlineExceeded, "the deadline had passed before the write was begun")
	}
	return nil
}
