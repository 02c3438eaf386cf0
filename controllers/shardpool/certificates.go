package shardpool

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/workload"
)

// ensureCertificates makes and renews the certificate of each shard, in a Secret of its own: a key that is stolen is
// one shard's. It comes before the sets, as a pod that waits for its Secret starts late.
func (w *poolWork) ensureCertificates(ctx context.Context) step.Outcome {
	if w.Trust == nil || !workload.HasTLS(w.store) {
		return step.Complete()
	}
	if w.store.Status.TLS.Bundle == "" {
		return step.Wait("StoreNotReady", fmt.Sprintf("RecordStore %s has no authorities for certificates yet", w.store.Name), step.PauseShort)
	}
	as, err := w.Trust.Authorities(ctx, w.store)
	switch {
	case errors.Is(err, trust.ErrNoAuthority), errors.Is(err, trust.ErrOtherAuthority):
		return step.Wait("NoAuthority", fmt.Sprintf("certificates of shards are not made: %v. Condition Certificates of RecordStore %s says what to do",
			err, w.store.Name), step.PauseShort)
	case err != nil:
		return step.Retry(err)
	}
	of, err := trust.StoreIdentity(w.store)
	if err != nil {
		return step.Retry(err)
	}
	var group errgroup.Group
	group.SetLimit(writesAtOnce)
	for _, o := range w.shards {
		group.Go(func() error {
			return w.Trust.Ensure(ctx, w.store, as, trust.ShardLeaf(of, w.pool, o.Name))
		})
	}
	var trouble *trust.SourceError
	switch err := group.Wait(); {
	case errors.As(err, &trouble): // what a shard was given before stays
		return step.Wait(trouble.Reason, trouble.Message, step.PauseShort)
	case errors.Is(err, trust.ErrLater):
		return step.Wait("NotTrustedYet", err.Error(), step.PauseShort)
	case errors.Is(err, trust.ErrNotOurs):
		return step.Fail("SecretTaken", err.Error())
	case err != nil:
		return step.Retry(err)
	}
	return step.Complete()
}

// removeCertificates deletes what was made for the certificates of a shard that there is no more.
func (w *poolWork) removeCertificates(ctx context.Context, shard string) error {
	if w.Trust == nil || w.store == nil || !workload.HasTLS(w.store) {
		return nil
	}
	of, err := trust.StoreIdentity(w.store)
	if err != nil {
		return err
	}
	return w.Trust.Remove(ctx, w.store, trust.ShardLeaf(of, w.pool, shard))
}
