package message

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

// lastAnswers is the time for sending the answers of ended calls, if something else keeps the connection open.
const lastAnswers = 500 * time.Millisecond

// Drain stops a server. It refuses new calls, and waits for the calls that open counts, at most until ctx ends. Then it
// aborts all calls. It waits for nothing else, because health watches never end by themselves, and unread data keeps a
// caller's connection open. open is called on the caller's goroutine.
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

// awaitIdle returns when no call has been open for lastAnswers, when drained is closed, or when ctx ends.
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
