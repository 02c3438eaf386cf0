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

// retryMax is the longest pause before a retry after etcd did not respond.
const retryMax = 2 * time.Second

// retries returns the pauses between retries of lists, watches, registrations, plans and grants while etcd does not
// respond.
func retries() *backoff.Tries {
	return &backoff.Tries{Doubling: backoff.Doubling{First: 50 * time.Millisecond, Most: retryMax}}
}

// startPatience limits how long Patiently retries.
const startPatience = time.Minute

// Patiently performs the etcd requests that a starting shard needs. It retries after errors for which IsPassing is
// true, which usually mean that etcd's disk stalls for a while. After a minute, or when ctx is done, it returns the
// last error.
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

// IsPassing reports whether etcd did not respond in time, or was so slow that a lease expired before it was used. A
// retry may then succeed.
func IsPassing(err error) bool {
	var answer rpctypes.EtcdError
	if errors.As(err, &answer) {
		return answer.Code() == codes.Unavailable || errors.Is(err, rpctypes.ErrLeaseNotFound)
	}
	return status.Code(err) == codes.Unavailable || errors.Is(err, context.DeadlineExceeded)
}

// refusals are the codes with which etcd refuses a request before it does anything.
var refusals = []codes.Code{codes.ResourceExhausted, codes.PermissionDenied, codes.Unauthenticated,
	codes.InvalidArgument, codes.FailedPrecondition}

// MayBeDone reports whether a failed etcd write may have taken effect. It may have if etcd has not responded, or if the
// error does not show whether the write took effect.
func MayBeDone(err error) bool {
	var of rpctypes.EtcdError
	return !errors.As(err, &of) || !slices.Contains(refusals, of.Code())
}

// EtcdFull reports whether etcd refuses writes because its database has reached its quota.
func EtcdFull(err error) bool { return errors.Is(err, rpctypes.ErrNoSpace) }
