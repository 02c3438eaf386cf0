package recordgrant

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/security/access"
)

// Tenants are part of the grant table, and take effect once the shards have it. See
// docs/adr/0042-quotas-are-divided-among-leaders.md.
//
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordtenants,verbs=list;watch
// +kubebuilder:rbac:groups=sheaf.dev,resources=recordtenants/status,verbs=patch

// tenants holds the RecordTenants of a store.
type tenants struct {
	all     []v1alpha1.RecordTenant
	leaving []v1alpha1.RecordTenant // being deleted, and no longer in the table
	refused map[string]step.Outcome // tenants that are not in the table, by name
}

// tenants reads the RecordTenants of a store.
func (r *Reconciler) tenants(ctx context.Context, store types.NamespacedName) (*tenants, error) {
	var list v1alpha1.RecordTenantList
	if err := r.Client.List(ctx, &list, client.InNamespace(store.Namespace)); err != nil {
		return nil, fmt.Errorf("list RecordTenants: %w", err)
	}
	out := &tenants{}
	for i := range list.Items {
		switch t := list.Items[i]; {
		case t.Spec.StoreRef.Name != store.Name:
		case t.DeletionTimestamp != nil:
			out.leaving = append(out.leaving, t)
		default:
			out.all = append(out.all, t)
		}
	}
	return out, nil
}

// tenantWrites returns the writes of the tenants' statuses. The argument out is the result for the table.
func (r *Reconciler) tenantWrites(ctx context.Context, tenants *tenants, version int64, out step.Outcome) (
	writes []func() error) {
	for i := range tenants.all {
		own, refused := tenants.refused[tenants.all[i].Name]
		if !refused {
			own = out
		}
		writes = append(writes, func() error { return r.reportTenant(ctx, &tenants.all[i], version, own) })
	}
	for i := range tenants.leaving {
		writes = append(writes, func() error {
			return step.SayDeleting(ctx, r.Client, &tenants.leaving[i],
				func(t *v1alpha1.RecordTenant) *[]metav1.Condition { return &t.Status.Conditions })
		})
	}
	return writes
}

func (r *Reconciler) reportTenant(ctx context.Context, t *v1alpha1.RecordTenant, version int64,
	out step.Outcome,
) error {
	after := t.DeepCopy()
	s := &after.Status
	s.ObservedGeneration = after.Generation
	if compiled(&s.Conditions, after.Generation, version, out) {
		s.TableVersion = version
	}
	_, err := step.WriteStatus(ctx, r.Client, t, after)
	return client.IgnoreNotFound(err)
}

// tenantsOf converts RecordTenants to their form in the table. It returns, by name, the reasons for the tenants that
// are not in the table. If two tenants could have a group in common, the older one wins.
func tenantsOf(routing v1alpha1.RoutingMode, tenants []v1alpha1.RecordTenant) (out []access.Tenant,
	refused map[string]step.Outcome) {
	refused = map[string]step.Outcome{}
	older := slices.Clone(tenants)
	slices.SortFunc(older, func(a, b v1alpha1.RecordTenant) int { return byCreation(&a, &b) })
	for i := range older {
		t := &older[i]
		if routing != v1alpha1.RoutingNamed {
			refused[t.Name] = step.Fail("HashRouting",
				"the RecordStore is of Hash routing, in which groups are nobody's: tenants need Named routing")
			continue
		}
		if len(out) == access.TenantsMax { // a larger table would be invalid as a whole
			refused[t.Name] = step.Fail("TooManyTenants", fmt.Sprintf(
				"%s of the store are older, and there is no place for more: delete those that are not needed",
				step.Count(len(out), "RecordTenant", "RecordTenants")))
			continue
		}
		next := append(slices.Clone(out), tenantOf(t))
		if one, other, overlap := access.OverlapOf(next); overlap {
			before := &next[min(one, other)]
			refused[t.Name] = step.Fail("PrefixOverlaps", fmt.Sprintf(
				"prefix %s and that of the older RecordTenant %s, %s, have groups in common: choose another one, or delete one "+
					"of both",
				t.Spec.Prefix, before.Name, before.Prefix))
			continue
		}
		out = next
	}
	slices.SortFunc(out, func(a, b access.Tenant) int { return cmp.Compare(a.Name, b.Name) })
	return out, refused
}

func tenantOf(t *v1alpha1.RecordTenant) access.Tenant {
	bytes := func(q *resource.Quantity) int64 {
		if q == nil {
			return 0
		}
		return q.Value()
	}
	number := func(n *int64) int64 {
		if n == nil {
			return 0
		}
		return *n
	}
	q := &t.Spec.Quotas
	return access.Tenant{Name: t.Name, Prefix: string(t.Spec.Prefix), Quotas: access.Quotas{
		StoredBytes: bytes(q.StoredBytes), Records: number(q.Records), CallsPerSecond: number(q.CallsPerSecond),
		Groups: number(q.Groups), BytesPerSecond: bytes(q.BytesPerSecond), CallsAtOnce: number(q.CallsAtOnce),
	}}
}
