package shardpool

import (
	"context"

	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/identity"
)

// ensureCertificates creates and renews the certificate of each shard. Each certificate is in a Secret of its own, so
// that a stolen key compromises one shard only. This step comes before the StatefulSets, because a pod that has to wait
// for its Secret starts late.
//
// If keeper is nil, shards have no certificates.
func ensureCertificates(ctx context.Context, keeper *trust.Keeper, seen *observed.Pool) step.Outcome {
	return trust.Issue(ctx, keeper, seen.Store, "shards", func(of identity.Store) (leaves []trust.Leaf) {
		for _, o := range seen.Shards {
			leaves = append(leaves, trust.ShardLeaf(of, seen.Pool, o.Name))
		}
		return leaves
	})
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
