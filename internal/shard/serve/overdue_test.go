package serve

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// unnoticed is a context whose deadline has passed, but whose timer has not fired yet.
type unnoticed struct {
	context.Context
	deadline time.Time
}

func (u unnoticed) Deadline() (time.Time, bool) { return u.deadline, true }

func TestOverdue(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	past, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		want codes.Code
	}{
		"no deadline":           {t.Context(), codes.OK},
		"time is left":          {unnoticed{t.Context(), time.Now().Add(time.Hour)}, codes.OK},
		"canceled":              {canceled, codes.Canceled},
		"past":                  {past, codes.DeadlineExceeded},
		"past, and not noticed": {unnoticed{t.Context(), time.Now().Add(-time.Second)}, codes.DeadlineExceeded},
	} {
		if got := status.Code(overdue(c.ctx)); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
