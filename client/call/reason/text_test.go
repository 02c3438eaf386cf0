package reason

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

func TestTheTextOfAnErrorBeginsWithItsReason(t *testing.T) {
	with := func(details ...protoadapt.MessageV1) error {
		st, err := status.New(codes.FailedPrecondition, "elsewhere").WithDetails(details...)
		if err != nil {
			t.Fatal(err)
		}
		return st.Err()
	}
	info := func(domain, reason string, metadata map[string]string) *errdetails.ErrorInfo {
		return &errdetails.ErrorInfo{Domain: domain, Reason: reason, Metadata: metadata}
	}
	for _, row := range []struct {
		err  error
		want string
	}{
		{status.Error(codes.PermissionDenied, "no"), "[PERMISSION_DENIED] no"},
		{errors.New("no"), "[UNKNOWN] no"},
		{status.Error(codes.InvalidArgument, "[VIEW_EXPIRED] no"), "[INVALID_ARGUMENT] [VIEW_EXPIRED] no"},
		{with(info("example.org", "OTHER", nil)), "[FAILED_PRECONDITION] elsewhere"},
		{with(info(Domain, NotLeader, map[string]string{"address": "10.0.0.7:7400", "routing_epoch": "12", "other": "x"})),
			"[NOT_LEADER] (address=10.0.0.7:7400 routing_epoch=12) elsewhere"},
		{with(info(Domain, NotLeader, map[string]string{"address": "a (b=c)"})), "[NOT_LEADER] elsewhere"},
		{with(info(Domain, Overloaded, nil), &errdetails.RetryInfo{RetryDelay: durationpb.New(250 * time.Millisecond)}),
			"[OVERLOADED] (retry_after_ms=250) elsewhere"},
		{with(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Microsecond)}),
			"[FAILED_PRECONDITION] (retry_after_ms=1) elsewhere"},
	} {
		once := InText(row.err)
		if got := status.Convert(once).Message(); got != row.want {
			t.Errorf("%q, want %q", got, row.want)
		}
		// A gateway passes on what a shard has written already.
		if got := status.Convert(InText(once)).Message(); got != row.want {
			t.Errorf("twice: %q", got)
		}
		if status.Code(once) != status.Code(row.err) || len(status.Convert(once).Details()) !=
			len(status.Convert(row.err).Details()) {
			t.Errorf("%q lost its code or details", row.want)
		}
	}
	if InText(nil) != nil || Of(nil) != "OK" {
		t.Error("no error has a text")
	}
}
