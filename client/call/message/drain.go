package message

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

// lastAnswers is how long a stopping server may still send the responses of calls that have ended. The server waits
// that long only if something other than these calls keeps a connection open.
const lastAnswers = 500 * time.Millisecond

// Drain stops a server. It refuses new calls, and waits until no call has been open for the duration lastAnswers, or
// until ctx is done. Then it aborts all remaining calls. The function open returns the number of open calls for which
// Drain waits. Drain does not wait for other calls, such as health watches, which end only when they are aborted. It
// does not wait for connections either, because a caller that does not read its data keeps its connection open. Drain
// calls open on the caller's goroutine.
func Drain(ctx context.Context, server *grpc.Server, open func() int64) {
	drained := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(drained)
	}()
	awaitIdle(ctx, drained, open)
	server.Stop()
	<-drained
}

// awaitIdle returns when no call has been open for the duration lastAnswers, when drained is closed, or when ctx is
// done.
func awaitIdle(ctx context.Context, drained <-chan struct{}, open func() int64) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	var idle time.Time
	for idle.IsZero() || time.Since(idle) < lastAnswers {
		switch n := open(); {
		case n > 0:
			idle = time.Time{}
		case idle.IsZero():
			idle = time.Now()
		}
		select {
		case <-drained:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
