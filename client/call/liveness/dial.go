package liveness

import (
	"context"
	"net"
	"time"
)

// hedgeAfter is how long an attempt to connect may take before another one starts in parallel. For up to 40 s, a
// Kubernetes Service keeps routing connections to a gateway on a failed node. The next attempt is likely to reach
// another gateway.
const hedgeAfter = 500 * time.Millisecond

// Dial connects to HOST:PORT. If an attempt takes too long, Dial starts further attempts in parallel, and uses the
// first one that succeeds. If an attempt is refused and no other attempt is in progress, Dial fails. A connection to a
// machine that fails later breaks after about 2 s, if the kernel supports this (Linux).
func Dial(ctx context.Context, address string) (net.Conn, error) {
	more := time.NewTicker(hedgeAfter)
	defer more.Stop()
	return hedge(ctx, more.C, func(ctx context.Context) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	})
}

// hedge calls dial. Each time it receives from the channel more, it calls dial again, in parallel with the earlier
// calls. Each call of dial must return when its context is done.
func hedge(ctx context.Context, more <-chan time.Time, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		conn net.Conn
		err  error
	}
	outcomes, over := make(chan outcome), make(chan struct{})
	defer close(over)
	pending := 0
	begin := func() {
		pending++
		go func() {
			conn, err := dial(ctx)
			select {
			case outcomes <- outcome{conn, err}:
			case <-over:
				if conn != nil {
					_ = conn.Close() // another attempt connected first
				}
			}
		}()
	}
	begin()
	for {
		select {
		case <-more:
			begin()
		case o := <-outcomes:
			if pending--; o.err == nil || pending == 0 {
				return o.conn, o.err
			}
		}
	}
}
