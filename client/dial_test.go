package client_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
)

// Whatever the moment at which the time ends, Dial tells both: nobody has answered, and why it does not wait for
// longer.
func TestDialOfNobodyIsUnavailableAndOutOfTime(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }() // no matter
	over, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, address := range map[string]string{"nobody listens": "127.0.0.1:1", "nobody answers": silent.Addr().String()} {
		short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		for when, c := range map[string]struct {
			ctx  context.Context
			wait time.Duration
			why  error
		}{
			"soon": {short, 0, context.DeadlineExceeded}, "over": {over, 0, context.DeadlineExceeded}, "cancelled": {cancelled, 0, context.Canceled},
			"without a deadline": {context.Background(), 100 * time.Millisecond, context.DeadlineExceeded},
		} {
			_, err := client.Dial(c.ctx, client.Config{Addresses: []string{address}, CallTimeout: c.wait})
			var e *client.Error
			if !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, c.why) || !errors.As(err, &e) || e.Code != codes.Unavailable || e.Reason != "" ||
				status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), address) {
				t.Errorf("%s, %s: %v", name, when, err)
			}
		}
	}
}
