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

// storeLeaves returns the wanted certificates of the gateways, of etcd, of callers and of the operator, but not those
// of the shards. The operator's own certificate is always included. If the operator issues that certificate itself,
// ensureLeaves skips it.
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
	if isRestoring(store) {
		wanted = append(wanted, trust.RestoreLeaf(of, store))
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

// allLeaves returns all certificates of a store, including those of the observed shards, which the pools deliver to
// the shards.
func (seen *observed) allLeaves() ([]trust.Leaf, error) {
	wanted, err := storeLeaves(seen.store)
	if err != nil {
		return nil, err
	}
	of := wanted[0].Identity.Store
	for i := range seen.pools {
		pool := &seen.pools[i]
		if pool.DeletionTimestamp != nil {
			continue
		}
		for _, shard := range seen.shards.Of(pool) {
			wanted = append(wanted, trust.ShardLeaf(of, pool, shard.Name))
		}
	}
	return wanted, nil
}

// gatherSource requests everything that the store needs from the source of its certificates, unless the operator is the
// source.
func (c *certificates) gatherSource(ctx context.Context) step.Outcome {
	seen := c.seen
	status, source := seen.store.Status.TLS, trust.SourceOf(seen.store)
	if source == v1alpha1.TLSFromCertManager || status.Source == "" || status.Source == v1alpha1.TLSFromOperator {
		status.Source = source
	}
	status.Clients = slices.Compact(slices.Sorted(slices.Values(slices.Concat(status.Clients, specTLS(seen.store).
		Clients))))
	wanted, err := seen.allLeaves()
	if err == nil {
		seen.source, err = c.trust.Gather(ctx, seen.store, wanted)
	}
	return seen.leafOutcome(err)
}

// lacksSource reports, in condition Certificates, the first thing that the source of the certificates does not provide.
// It returns the outcome for this problem.
func (seen *observed) lacksSource() step.Outcome {
	// If Troubles is empty, the only thing that can be missing is the authority that issued the certificates.
	reason, message := trust.ReasonNoAuthority, "the source of the certificates gives no authority"
	if all := seen.source.Troubles; len(all) > 0 {
		reason, message = all[0].Reason, all[0].Message
		if len(all) > 1 {
			message += fmt.Sprintf(" (and %d more)", len(all)-1)
		}
	}
	seen.certificates(false, reason, message)
	if reason == trust.ReasonNotIssued { // this problem usually disappears without an action
		return step.Wait(reason, message, step.PauseShort)
	}
	return step.Fail(reason, message)
}

// differs compares the authorities of the source with the current authorities of the store and, while the authorities
// are being changed, with the next ones. It reports no difference while the source has missing or bad certificates.
func (seen *observed) differs(as *trust.Authorities) (other, superseded bool, err error) {
	if seen.source != nil && !seen.source.Complete() {
		return false, false, nil
	}
	if other, err = as.Differs(trust.Current, seen.source); err != nil || !as.HasNext() {
		return other, false, err
	}
	superseded, err = as.Differs(trust.Next, seen.source)
	return other, superseded, err
}

// sweepSource deletes the objects that the operator created for a source that the store no longer uses. It waits until
// the change to the new source is complete.
func (c *certificates) sweepSource(ctx context.Context, as *trust.Authorities) error {
	seen := c.seen
	status, source := seen.store.Status.TLS, trust.SourceOf(seen.store)
	if status.Source == source || status.Phase != v1alpha1.TLSReady || as.Source(trust.Current) != source {
		return nil
	}
	if status.Source == v1alpha1.TLSFromCertManager {
		all, err := seen.allLeaves()
		if err != nil {
			return err
		}
		for _, leaf := range all {
			if err := c.trust.RemoveCertificates(ctx, seen.store, leaf); err != nil {
				return err
			}
		}
	}
	if source == v1alpha1.TLSFromOperator {
		if err := c.trust.RemoveSecret(ctx, seen.store, workload.OperatorTLS(seen.store.Name)); err != nil {
			return err
		}
	}
	status.Source = source
	return nil
}

// sweepClients deletes the Secrets of callers that are no longer in spec.tls.clients.
func (c *certificates) sweepClients(ctx context.Context) error {
	seen := c.seen
	of, err := trust.StoreIdentity(seen.store)
	if err != nil {
		return err
	}
	var failed []error
	wanted := specTLS(seen.store).Clients
	seen.store.Status.TLS.Clients = slices.DeleteFunc(slices.Clone(seen.store.Status.TLS.Clients), func(name string) bool {
		if slices.Contains(wanted, name) {
			return false
		}
		err := c.trust.Remove(ctx, seen.store, clientLeaf(seen.store, of, name))
		failed = append(failed, err)
		return err == nil
	})
	return errors.Join(failed...)
}
