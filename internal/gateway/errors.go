package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement/registry"
)

// fail returns an error with a gRPC code, a reason and a message.
func fail(code codes.Code, why, format string, args ...any) error {
	return withDetails(code, fmt.Sprintf(format, args...), &errdetails.ErrorInfo{Domain: reason.Domain, Reason: why})
}

// invalid returns an INVALID_ARGUMENT error that names the field.
func invalid(field, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	return withDetails(codes.InvalidArgument, field+": "+text, &errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: text}},
	})
}

// overloaded returns the error for a call that is refused because other calls hold too much memory. The error tells
// the caller when to retry.
func overloaded(format string, args ...any) error {
	return withDetails(codes.ResourceExhausted, fmt.Sprintf(format, args...),
		&errdetails.ErrorInfo{Domain: reason.Domain, Reason: reason.Overloaded},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(overloadedPause)})
}

// restorePause is the time after which a call to a group that waits for its restore may be retried. When the restore
// ends is not known.
const restorePause = time.Second

// restoring returns the error for a call to a group that waits for its restore.
func restoring(format string, args ...any) error {
	return withDetails(codes.Unavailable, fmt.Sprintf(format, args...),
		&errdetails.ErrorInfo{Domain: reason.Domain, Reason: reason.GroupLoading},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(restorePause)})
}

// etcdPause is the time after which a call that needs etcd may be retried.
const etcdPause = time.Second

// etcdTime limits a request to etcd to three quarters of the caller's remaining time, so that the caller still receives
// an error with the reason if etcd does not respond.
func etcdTime(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := createTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)*3/4)
	}
	return context.WithTimeout(ctx, limit)
}

// etcdFailed returns the error for a call whose request to etcd has failed. The format and its arguments describe the
// failed step. If outcome is true, the call was a change, and the error says whether etcd may have made the change.
func etcdFailed(err error, outcome bool, format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	info := &errdetails.ErrorInfo{Domain: reason.Domain, Reason: reason.EtcdUnavailable}
	text := what + ", as etcd refuses it: nothing was changed"
	if registry.MayBeDone(err) {
		text = what + ", as etcd has not answered: no record was written, and what was asked of etcd may have been done"
		if outcome {
			text = what + ", as etcd has not answered: it may have been done; ask again, which does nothing twice"
			info.Metadata = map[string]string{"outcome": "unknown"}
		}
	}
	if registry.EtcdFull(err) {
		text += "; etcd's database is full: give it more space (docs/operations/etcd.md, When etcd's database is full)"
	}
	return withDetails(codes.Unavailable, fmt.Sprintf("%s (%v)", text, err), info,
		&errdetails.RetryInfo{RetryDelay: durationpb.New(etcdPause)})
}

// overloadedPause is the time after which a refused caller may retry.
const overloadedPause = 100 * time.Millisecond

func withDetails(code codes.Code, text string, details ...protoadapt.MessageV1) error {
	plain := status.New(code, text)
	full, err := plain.WithDetails(details...)
	if err != nil { // can happen only if the code is OK
		return plain.Err()
	}
	return full.Err()
}

// outcomeUnknown returns the error for a write that may have been applied.
func outcomeUnknown(cause error) error {
	return fail(codes.Unknown, reason.OutcomeUnknown,
		"the write may or may not have been applied: repeat it with its request_id (%v)", status.Convert(cause).Message())
}

// told returns the error to send to the caller of a write. This is OUTCOME_UNKNOWN if the write may have been applied.
// It is err itself if err proves that the write was not applied, or if the caller's deadline has passed, because such
// an error leaves the outcome open as well.
func told(err error, effect *routing.Effect) error {
	v := routing.Judge(status.Convert(err), false)
	if v.TimedOut || v.Reason == reason.OutcomeUnknown || !effect.Doubtful(v) {
		return err
	}
	return outcomeUnknown(err)
}

// unreachable adds a reason to a transport error if the shard has certainly not applied the request.
func unreachable(err error, shard string) error {
	st := status.Convert(err)
	if st.Code() != codes.Unavailable || routing.Judge(st, false).Reason != reason.ShardUnreachable {
		return err
	}
	return fail(codes.Unavailable, reason.ShardUnreachable, "shard %s does not answer: %s", shard, st.Message())
}

// fromContext returns the error for a call whose context is done.
func fromContext(ctx context.Context) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return status.Error(codes.DeadlineExceeded, "deadline exceeded in the gateway")
	}
	return status.FromContextError(err).Err()
}

// tooLarge returns the error for a request above the message limit, with advice for its method, or nil if the request
// is within the limit. The gateway forwards no message above the limit.
func tooLarge(full string, in *frame) error {
	n, most := in.bufs.Len(), message.BytesMax
	if n <= most {
		return nil
	}
	switch full {
	case recordv1.RecordService_Put_FullMethodName:
		return fail(codes.FailedPrecondition, reason.UseUpload,
			"the message has %d bytes, Put takes at most 1 MiB of data: use Upload", n)
	case recordv1.RecordService_Upload_FullMethodName:
		return invalid("chunk", "the message has %d bytes, at most %d are allowed: send chunks of at most 1 MiB", n, most)
	}
	return status.Errorf(codes.ResourceExhausted, "the message has %d bytes, at most %d are allowed", n, most)
}
