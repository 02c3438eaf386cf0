package trust

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/identity"
)

// issuesAtOnce is the number of certificates that Issue creates or renews at the same time.
const issuesAtOnce = 16

// Issue creates and renews certificates of a store, and returns what a reconciler does next. The argument whose names
// the owners of the certificates in messages, for example "shards". The function leaves returns the certificates. If
// the keeper is nil or the store does not use TLS, nobody has a certificate. An owner whose certificate cannot be
// renewed now keeps its present one.
func Issue(ctx context.Context, keeper *Keeper, store *v1alpha1.RecordStore, whose string,
	leaves func(of identity.Store) []Leaf) step.Outcome {
	if keeper == nil || !workload.HasTLS(store) {
		return step.Complete()
	}
	if store.Status.TLS.Bundle == "" {
		return step.Wait("StoreNotReady", fmt.Sprintf("RecordStore %s has no authorities for certificates yet", store.Name),
			step.PauseShort)
	}
	as, err := keeper.Authorities(ctx, store)
	switch {
	case errors.Is(err, ErrNoAuthority), errors.Is(err, ErrOtherAuthority):
		return step.Wait("NoAuthority", fmt.Sprintf(
			"certificates of %s are not made: %v. Condition Certificates of RecordStore %s says what to do",
			whose, err, store.Name), step.PauseShort)
	case err != nil:
		return step.Retry(err)
	}
	of, err := StoreIdentity(store)
	if err != nil {
		return step.Retry(err)
	}
	var group errgroup.Group
	group.SetLimit(issuesAtOnce)
	for _, leaf := range leaves(of) {
		group.Go(func() error { return keeper.Ensure(ctx, store, as, leaf) })
	}
	var trouble *SourceError
	switch err := group.Wait(); {
	case errors.As(err, &trouble):
		return step.Wait(trouble.Reason, trouble.Message, step.PauseShort)
	case errors.Is(err, ErrLater):
		return step.Wait("NotTrustedYet", err.Error(), step.PauseShort)
	case errors.Is(err, ErrNotOurs):
		return step.Fail("SecretTaken", err.Error())
	default:
		return step.Retry(err)
	}
}
