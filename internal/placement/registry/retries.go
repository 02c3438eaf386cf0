package registry

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/backoff"
)

// retryMax is the longest pause between two attempts when etcd does not respond.
const retryMax = 2 * time.Second

// retries returns the pauses between attempts to list, watch, register, plan or read grants while etcd does not
// respond.
func retries() *backoff.Tries {
	return &backoff.Tries{Doubling: backoff.Doubling{First: 50 * time.Millisecond, Most: retryMax}}
}

// startPatience limits how long Patiently retries.
const startPatience = time.Minute

// Patiently runs the etcd requests that a starting shard depends on. If they fail with an error for which IsPassing
// is true, it runs them again. Such an error usually means that etcd's disk stalls for a while. After a minute, or
// when ctx is done, Patiently returns the last error.
func Patiently(ctx context.Context, logger *slog.Logger, do func(ctx context.Context) error) error {
	began := time.Now()
	for tries := retries(); ; tries.Wait(ctx) {
		err := do(ctx)
		if err == nil || !IsPassing(err) || ctx.Err() != nil || time.Since(began) > startPatience {
			return err
		}
		logger.Warn("etcd is too slow for the start of the shard, which tries again: see its disk and its load", "error", err)
	}
}

// IsPassing reports whether an error means that etcd did not respond in time, or was so slow that a lease expired
// before it was used. In both cases a retry may succeed.
func IsPassing(err error) bool {
	var answer rpctypes.EtcdError
	if errors.As(err, &answer) {
		return answer.Code() == codes.Unavailable || errors.Is(err, rpctypes.ErrLeaseNotFound)
	}
	return status.Code(err) == codes.Unavailable || errors.Is(err, context.DeadlineExceeded)
}

// refusals are the codes with which etcd rejects a request without having executed any of it.
var refusals = []codes.Code{codes.ResourceExhausted, codes.PermissionDenied, codes.Unauthenticated,
	codes.InvalidArgument, codes.FailedPrecondition}

// MayBeDone reports whether a failed write to etcd may have taken effect, because etcd did not respond or the error
// leaves the outcome open.
func MayBeDone(err error) bool {
	var of rpctypes.EtcdError
	return !errors.As(err, &of) || !slices.Contains(refusals, of.Code())
}

// EtcdFull reports whether etcd refuses writes because its database has reached its quota.
func EtcdFull(err error) bool { return errors.Is(err, rpctypes.ErrNoSpace) }
