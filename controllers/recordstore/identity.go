package recordstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// finalizer keeps the store until the deletion policy was applied to the claims of its etcd.
func (r *Reconciler) finalizer(ctx context.Context, run *storeRun) step.Outcome {
	return step.AddFinalizer(ctx, r.Client, run.store)
}

// identity sets the store's UID, once and before any object carries it. It also records whether the store is new to
// TLS.
func (r *Reconciler) identity(ctx context.Context, run *storeRun) step.Outcome {
	store := run.store
	if store.Status.StoreUID != "" && (store.Status.TLS != nil || r.Trust == nil) {
		return step.Complete()
	}
	before := store.DeepCopy()
	if r.Trust != nil {
		if err := r.recordTLS(ctx, store); err != nil {
			return step.Retry(err)
		}
	}
	store.Status.StoreUID = cmp.Or(store.Status.StoreUID, store.Spec.AdoptStoreUID, string(store.UID))
	store.Status.Address = workload.GatewayHost(store)
	if _, err := r.writeStatus(ctx, before, store); err != nil {
		return step.Retry(err)
	}
	return step.Complete()
}

// gatherPools lists the pools that refer to the store.
func (r *Reconciler) gatherPools(ctx context.Context, run *storeRun) step.Outcome {
	var pools v1alpha1.ShardPoolList
	if err := r.Client.List(ctx, &pools, client.InNamespace(run.store.Namespace)); err != nil {
		return step.Retry(fmt.Errorf("list the pools of store %s: %w", client.ObjectKeyFromObject(run.store), err))
	}
	for _, pool := range pools.Items {
		if pool.Spec.StoreRef.Name == run.store.Name {
			run.pools = append(run.pools, pool)
		}
	}
	seen, err := fleet.ReadObserved(ctx, r.Client, run.pools, client.InNamespace(run.store.Namespace))
	if err != nil {
		return step.Retry(err)
	}
	run.observed, run.hasPools = seen, true
	slices.SortFunc(run.pools, func(a, b v1alpha1.ShardPool) int { return cmp.Compare(a.Name, b.Name) })
	run.reported = r.Groups.Sum(client.ObjectKeyFromObject(run.store), run.pools)
	if at, ok := r.written.Load(run.store.UID); ok {
		run.keeps = r.now().Sub(at.(time.Time)) < step.PauseShort
	}
	run.first = decideFirst(run.store, run.pools, r.arrived.last(run.store.UID), r.now())
	return step.Complete()
}

// gatherSecret reads the Secret of an external etcd.
func (r *Reconciler) gatherSecret(ctx context.Context, run *storeRun) step.Outcome {
	store := run.store
	external := store.Spec.Etcd.External
	if external == nil || external.TLSSecretRef == nil {
		run.access = workload.EtcdAccessOf(store, nil)
		return step.Complete()
	}
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: store.Namespace, Name: external.TLSSecretRef.Name}
	if err := r.Live.Get(ctx, key, &secret); apierrors.IsNotFound(err) {
		return etcdAway(run, "EtcdSecretMissing", fmt.Sprintf(
			"spec.etcd.external.tlsSecretRef: Secret %s does not exist: create it with ca.crt, "+
				"and tls.crt and tls.key where etcd asks for a client's certificate", key))
	} else if err != nil {
		return step.Retry(fmt.Errorf("read Secret %s: %w", key, err))
	}
	if len(secret.Data["ca.crt"]) == 0 {
		return etcdAway(run, "EtcdSecretIncomplete", fmt.Sprintf(
			"spec.etcd.external.tlsSecretRef: Secret %s has no ca.crt: add the "+
				"certificates of the authority that signed etcd's", key))
	}
	run.secrets = fleet.EtcdCredentials{CA: secret.Data["ca.crt"], Cert: secret.Data[corev1.TLSCertKey],
		Key: secret.Data[corev1.TLSPrivateKeyKey]}
	run.access = workload.EtcdAccessOf(store, &secret)
	return step.Complete()
}
