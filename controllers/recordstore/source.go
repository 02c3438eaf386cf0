package recordstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/identity"
)

// storeLeaves returns the certificates of the gateways, of etcd, of callers and of the operator, but not those of the
// shards. The operator's certificate is included only if a source other than the operator issues.
func storeLeaves(store *v1alpha1.RecordStore) ([]trust.Leaf, error) {
	of, err := trust.StoreIdentity(store)
	if err != nil {
		return nil, err
	}
	wanted := []trust.Leaf{
		{Secret: workload.GatewayTLS(store.Name), Identity: identity.Identity{Store: of, Role: identity.Gateway},
			DNSNames: workload.GatewayNames(store), Owner: store},
		{Secret: workload.OperatorTLS(store.Name), Identity: identity.Identity{Store: of, Role: identity.Operator},
			Owner: store},
		{Secret: workload.AdminTLS(store.Name), Identity: identity.Identity{Store: of, Role: identity.Admin, Name: "admin"},
			Owner: store},
	}
	if store.Spec.Etcd.Managed != nil {
		wanted = append(wanted, trust.Leaf{
			Secret: workload.EtcdTLS(store.Name), Identity: identity.Identity{Store: of, Role: identity.Etcd},
			DNSNames: workload.EtcdNames(store), Owner: store,
		})
	}
	for _, name := range specTLS(store).Clients {
		wanted = append(wanted, clientLeaf(store, of, name))
	}
	return wanted, nil
}

func clientLeaf(store *v1alpha1.RecordStore, of identity.Store, name string) trust.Leaf {
	return trust.Leaf{
		Secret: workload.ClientTLS(store.Name, name), Identity: identity.Identity{Store: of, Role: identity.Client,
			Name: name}, Owner: store,
	}
}

// allLeaves returns the certificates of a store, including those of the observed shards, which the pools deliver to
// the shards.
func (run *storeRun) allLeaves() ([]trust.Leaf, error) {
	wanted, err := storeLeaves(run.store)
	if err != nil {
		return nil, err
	}
	of := wanted[0].Identity.Store
	for i := range run.pools {
		pool := &run.pools[i]
		if pool.DeletionTimestamp != nil {
			continue
		}
		for _, shard := range run.observed.Of(pool) {
			wanted = append(wanted, trust.ShardLeaf(of, pool, shard.Name))
		}
	}
	return wanted, nil
}

// gatherSource requests everything that the store needs from the source of its certificates, unless the operator is the
// source.
func (r *Reconciler) gatherSource(ctx context.Context, run *storeRun) step.Outcome {
	status, source := run.store.Status.TLS, trust.SourceOf(run.store)
	if source == v1alpha1.TLSFromCertManager || status.Source == "" || status.Source == v1alpha1.TLSFromOperator {
		status.Source = source
	}
	status.Clients = slices.Compact(slices.Sorted(slices.Values(slices.Concat(status.Clients, specTLS(run.store).
		Clients))))
	wanted, err := run.allLeaves()
	if err == nil {
		run.source, err = r.Trust.Gather(ctx, run.store, wanted)
	}
	return run.leafOutcome(err)
}

// lacksSource sets condition Certificates to the first thing that the source of the certificates does not provide, and
// returns the outcome for it.
func (run *storeRun) lacksSource() step.Outcome {
	// Without Troubles, the source is incomplete only if it provides no authority with its certificates.
	reason, message := trust.ReasonNoAuthority, "the source of the certificates gives no authority"
	if all := run.source.Troubles; len(all) > 0 {
		reason, message = all[0].Reason, all[0].Message
		if len(all) > 1 {
			message += fmt.Sprintf(" (and %d more)", len(all)-1)
		}
	}
	run.certificates(false, reason, message)
	if reason == trust.ReasonNotIssued { // this usually resolves without action
		return step.Wait(reason, message, step.PauseShort)
	}
	return step.Fail(reason, message)
}

// differs compares the authorities of the source with those of the store: with the current ones and, during a change
// of authorities, with the next ones. It reports no difference while the source has missing or bad certificates.
func (run *storeRun) differs(as *trust.Authorities) (other, superseded bool, err error) {
	if run.source != nil && !run.source.Complete() {
		return false, false, nil
	}
	if other, err = as.Differs(trust.Current, run.source); err != nil || !as.HasNext() {
		return other, false, err
	}
	superseded, err = as.Differs(trust.Next, run.source)
	return other, superseded, err
}

// sweepSource deletes what the operator made for a source that the store no longer uses. It waits until the change to
// the new source is complete.
func (r *Reconciler) sweepSource(ctx context.Context, run *storeRun, as *trust.Authorities) error {
	status, source := run.store.Status.TLS, trust.SourceOf(run.store)
	if status.Source == source || status.Phase != v1alpha1.TLSReady || as.Source(trust.Current) != source {
		return nil
	}
	if status.Source == v1alpha1.TLSFromCertManager {
		all, err := run.allLeaves()
		if err != nil {
			return err
		}
		for _, leaf := range all {
			if err := r.Trust.RemoveCertificates(ctx, run.store, leaf); err != nil {
				return err
			}
		}
	}
	if source == v1alpha1.TLSFromOperator {
		if err := r.Trust.RemoveSecret(ctx, run.store, workload.OperatorTLS(run.store.Name)); err != nil {
			return err
		}
	}
	status.Source = source
	return nil
}

// sweepClients deletes the Secrets of callers that are no longer in spec.tls.clients.
func (r *Reconciler) sweepClients(ctx context.Context, run *storeRun) error {
	of, err := trust.StoreIdentity(run.store)
	if err != nil {
		return err
	}
	var failed []error
	wanted := specTLS(run.store).Clients
	run.store.Status.TLS.Clients = slices.DeleteFunc(slices.Clone(run.store.Status.TLS.Clients), func(name string) bool {
		if slices.Contains(wanted, name) {
			return false
		}
		err := r.Trust.Remove(ctx, run.store, clientLeaf(run.store, of, name))
		failed = append(failed, err)
		return err == nil
	})
	return errors.Join(failed...)
}
