package message

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

// lastAnswers is the time for answers of calls that ended to leave, where something else keeps the connection open.
const lastAnswers = 500 * time.Millisecond

// Drain stops a server: new calls are refused, and those that open counts are waited for, until ctx ends; then all are
// cut. It waits for nothing else: watches of health never end by themselves, and what a caller does not read keeps its
// connection. open is asked on the goroutine of the caller.
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

// awaitIdle returns when no call was open for lastAnswers, drained is closed, or ctx ends.
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
