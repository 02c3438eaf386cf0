package clienttest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/must"
)

// If no server responds before the deadline, the error of Dial must be both the error for an unavailable server and the
// error for an exceeded deadline.
func TestDialTimeoutIsAlsoUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := bubbletest.NewNet()
		silent, err := network.Listen(t.Context(), "silent:0") // accepts connections, and sends nothing
		must.OK(t, err)
		defer func() { _ = silent.Close() }() // the error does not matter
		go func() {
			for {
				conn, err := silent.Accept()
				if err != nil {
					return // the listener was closed
				}
				defer func() { _ = conn.Close() }() // the error does not matter
			}
		}()
		over, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
		defer cancel()
		cancelled, cancel := context.WithCancel(context.Background())
		cancel()
		for name, address := range map[string]string{"nobody listens": "nobody:1", "nobody answers": silent.Addr().String()} {
			short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			for when, c := range map[string]struct {
				ctx  context.Context
				wait time.Duration
				why  error
			}{
				"soon": {short, 0, context.DeadlineExceeded}, "over": {over, 0, context.DeadlineExceeded},
				"cancelled":          {cancelled, 0, context.Canceled},
				"without a deadline": {context.Background(), 100 * time.Millisecond, context.DeadlineExceeded},
			} {
				_, err := client.Dial(c.ctx, client.Config{Addresses: []string{address}, CallTimeout: c.wait, Dial: network.Dial})
				var e *client.Error
				if !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, c.why) || !errors.As(err, &e) ||
					e.Code != codes.Unavailable || e.Reason != "" ||
					status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), address) {
					t.Errorf("%s, %s: %v", name, when, err)
				}
			}
		}
	})
}
