package cli

import (
	"context"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestRetryKeepsTheDoubtOfAWrite(t *testing.T) {
	refuse := func(code codes.Code, reason string) error {
		st, err := status.New(code, "no").WithDetails(&errdetails.ErrorInfo{Domain: "sheaf.dev", Reason: reason})
		must(t, err)
		return st.Err()
	}
	for _, c := range []struct {
		code         codes.Code
		reason, want string
	}{
		{codes.ResourceExhausted, "OVERLOADED", "OUTCOME_UNKNOWN"},
		{codes.ResourceExhausted, "DISK_FULL", "OUTCOME_UNKNOWN"},
		{codes.Unavailable, "NO_LEADER", "OUTCOME_UNKNOWN"},
		{codes.Aborted, "VERSION_MISMATCH", "VERSION_MISMATCH"},
		{codes.AlreadyExists, "RECORD_EXISTS", "RECORD_EXISTS"},
	} {
		tries := 0
		err := Retry(context.Background(), 100*time.Millisecond, func() error {
			if tries++; tries == 1 {
				return refuse(codes.Unknown, "OUTCOME_UNKNOWN")
			}
			return refuse(c.code, c.reason)
		})
		if Reason(err) != c.want || tries < 2 {
			t.Errorf("%s: %v after %d tries", c.reason, err, tries)
		}
	}
}
