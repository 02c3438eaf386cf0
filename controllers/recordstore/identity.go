package recordstore

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// identify records the UID of the store once, before any object has that UID in a label. If the operator creates
// certificates, identify also records what an absent spec.tls means for the store.
func identify(ctx context.Context, w *writer, live client.Reader, makesTLS bool, image string,
	now time.Time) step.Outcome {
	store := w.store
	if store.Status.StoreUID != "" && (store.Status.TLS != nil || !makesTLS) {
		return step.Complete()
	}
	tls := store.Status.TLS
	if makesTLS && tls == nil {
		first, err := firstTLS(ctx, live, store, image, now)
		if err != nil {
			return step.Retry(err)
		}
		tls = &first
	}
	return step.Retry(w.commitIdentity(ctx, tls))
}

// firstTLS returns what an absent spec.tls means for a store that the operator handles for the first time. If the
// store's processes already have a transport that the status no longer shows (for example, because the CRD was of an
// earlier version for a while), firstTLS continues with that transport.
func firstTLS(ctx context.Context, live client.Reader, store *v1alpha1.RecordStore, image string,
	now time.Time) (v1alpha1.TLSStatus, error) {
	// The image is the present image of the store or, if that is not known, the wanted image.
	first := trust.First(store, cmp.Or(store.Status.Image, image))
	if store.Status.StoreUID != "" {
		var told corev1.ConfigMap
		key := client.ObjectKey{Namespace: store.Namespace, Name: workload.Transport(store.Name)}
		if _, err := step.Read(ctx, live, "ConfigMap", key, &told); err != nil {
			return first, err
		}
		mode := v1alpha1.TLSTransport(told.Data[workload.KeyMode])
		known := slices.Contains([]v1alpha1.TLSTransport{v1alpha1.TransportPlaintext, v1alpha1.TransportBoth,
			v1alpha1.TransportRequired}, mode)
		if known && told.Labels[v1alpha1.LabelStore] == store.Name {
			first = trust.Again(store, mode, now)
		}
	}
	return first, nil
}

// gatherPools lists the pools that refer to the store, and reads their shards. The argument arrived is the time at
// which the last new shard registered. It is zero if this operator has not read etcd yet.
func gatherPools(ctx context.Context, cached client.Reader, seen *observed, groups *fleet.GroupBook,
	arrived, now time.Time) step.Outcome {
	store := seen.store
	pools, shards, err := fleet.ReadPools(ctx, cached, client.ObjectKeyFromObject(store))
	if err != nil {
		return step.Retry(err)
	}
	seen.pools, seen.shards, seen.hasPools = pools, shards, true
	seen.reported = groups.Sum(client.ObjectKeyFromObject(store), seen.pools)
	seen.first = decideFirst(store, seen.pools, arrived, now)
	return step.Complete()
}

// gatherSecret determines the addresses and credentials of etcd. For an external etcd, it reads the Secret that the
// spec names.
func gatherSecret(ctx context.Context, live client.Reader, store *v1alpha1.RecordStore) (workload.EtcdAccess,
	fleet.EtcdCredentials, step.Outcome) {
	secret, out := fleet.ReadEtcdSecret(ctx, live, store)
	if !out.IsComplete() && out.Err() == nil {
		out = etcdAway(store, out.Reason(), out.Message())
	}
	return workload.EtcdAccessOf(store, secret), fleet.CredentialsOf(secret), out
}
