package registry

import (
	"errors"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
)

// refusals are the codes with which etcd refuses a request before it does anything.
var refusals = []codes.Code{codes.ResourceExhausted, codes.PermissionDenied, codes.Unauthenticated,
	codes.InvalidArgument, codes.FailedPrecondition}

// MayBeDone reports whether a write to etcd that ended with this error may have been done. It may have been done if
// etcd has not answered, or if its answer does not say whether the write was done.
func MayBeDone(err error) bool {
	var of rpctypes.EtcdError
	return !errors.As(err, &of) || !slices.Contains(refusals, of.Code())
}

// EtcdFull reports whether etcd refuses writes because its database has reached its quota.
func EtcdFull(err error) bool { return errors.Is(err, rpctypes.ErrNoSpace) }
