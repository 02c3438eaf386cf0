package message

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

// lastAnswers is how long a stopping server may still send the responses of calls that have ended, if something else
// keeps the connection open.
const lastAnswers = 500 * time.Millisecond

// Drain stops a server. It refuses new calls, and waits until the number of open calls, which open returns, has been 0
// for lastAnswers, but only until ctx is done. Then it aborts all calls. It does not wait for other calls, because
// health watches never end without an abort, nor for connections, because unread data keeps a caller's connection open.
// Drain calls open on the caller's goroutine.
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

// awaitIdle returns when no call has been open for lastAnswers, when drained is closed, or when ctx is done.
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
