package shardpool

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// ensureCertificates creates and renews the certificate of each shard. Each certificate is in a Secret of its own, so
// that a stolen key compromises one shard only. This step comes before the StatefulSets, because a pod that has to wait
// for its Secret starts late.
//
// If keeper is nil, shards have no certificates.
func ensureCertificates(ctx context.Context, keeper *trust.Keeper, seen *observed.Pool) step.Outcome {
	store := seen.Store
	if keeper == nil || !workload.HasTLS(store) {
		return step.Complete()
	}
	if store.Status.TLS.Bundle == "" {
		return step.Wait("StoreNotReady", fmt.Sprintf("RecordStore %s has no authorities for certificates yet", store.Name),
			step.PauseShort)
	}
	as, err := keeper.Authorities(ctx, store)
	switch {
	case errors.Is(err, trust.ErrNoAuthority), errors.Is(err, trust.ErrOtherAuthority):
		return step.Wait("NoAuthority", fmt.Sprintf(
			"certificates of shards are not made: %v. Condition Certificates of RecordStore %s says what to do",
			err, store.Name), step.PauseShort)
	case err != nil:
		return step.Retry(err)
	}
	of, err := trust.StoreIdentity(store)
	if err != nil {
		return step.Retry(err)
	}
	var group errgroup.Group
	group.SetLimit(writesAtOnce)
	for _, o := range seen.Shards {
		group.Go(func() error {
			return keeper.Ensure(ctx, store, as, trust.ShardLeaf(of, seen.Pool, o.Name))
		})
	}
	var trouble *trust.SourceError
	switch err := group.Wait(); {
	case errors.As(err, &trouble): // the shard keeps using its present certificate
		return step.Wait(trouble.Reason, trouble.Message, step.PauseShort)
	case errors.Is(err, trust.ErrLater):
		return step.Wait("NotTrustedYet", err.Error(), step.PauseShort)
	case errors.Is(err, trust.ErrNotOurs):
		return step.Fail("SecretTaken", err.Error())
	default:
		return step.Retry(err)
	}
}

// removeCertificates deletes the certificates of a shard that no longer exists.
func removeCertificates(ctx context.Context, keeper *trust.Keeper, seen *observed.Pool, shard string) error {
	if keeper == nil || !workload.HasTLS(seen.Store) {
		return nil
	}
	of, err := trust.StoreIdentity(seen.Store)
	if err != nil {
		return err
	}
	return keeper.Remove(ctx, seen.Store, trust.ShardLeaf(of, seen.Pool, shard))
}
