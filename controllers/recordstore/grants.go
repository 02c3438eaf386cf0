package recordstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/access"
)

// Issuers gives the issuers of tokens that stores take, with their keys. An error leaves those that a table has.
type Issuers func(ctx context.Context) ([]access.Issuer, error)

// AudienceOf a store is what a caller's token must be made for.
func AudienceOf(store *v1alpha1.RecordStore) string {
	return "sheaf/" + store.Namespace + "/" + store.Name
}

// storeOfGrant is the store that a grant names.
func storeOfGrant(_ context.Context, o client.Object) []reconcile.Request {
	grant, ok := o.(*v1alpha1.RecordGrant)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: grant.Namespace, Name: grant.Spec.Store}}}
}

// grantsOf are the grants of a store that are not being deleted, by name.
func (r *Reconciler) grantsOf(ctx context.Context, store types.NamespacedName) ([]v1alpha1.RecordGrant, error) {
	var list v1alpha1.RecordGrantList
	if err := r.Client.List(ctx, &list, client.InNamespace(store.Namespace)); err != nil {
		return nil, fmt.Errorf("list RecordGrants: %w", err)
	}
	grants := slices.DeleteFunc(list.Items, func(g v1alpha1.RecordGrant) bool {
		return g.Spec.Store != store.Name || !g.DeletionTimestamp.IsZero()
	})
	slices.SortFunc(grants, func(a, b v1alpha1.RecordGrant) int { return cmp.Compare(a.Name, b.Name) })
	return grants, nil
}

// applyGrants writes the table of grants where etcd has another one, and tells each grant.
func (r *Reconciler) applyGrants(ctx context.Context, run *storeRun) step.Outcome {
	grants, err := r.grantsOf(ctx, client.ObjectKeyFromObject(run.store))
	if err != nil {
		return step.Retry(err)
	}
	bounded, cancel := context.WithTimeout(ctx, placementTimeout)
	defer cancel()
	there, err := run.placement.Grants(bounded)
	if err != nil {
		return r.etcdUnreachable(run, err)
	}
	issuers, issuersErr := r.issuers(ctx)
	table, refused := tableOf(grants, AudienceOf(run.store), issuers, there, issuersErr == nil)
	version, err := putTable(bounded, run.placement, table, there)
	if is(err, fleet.ErrPlacementChanged) {
		return step.Wait("GrantsChanged", "somebody else wrote the table of grants meanwhile", step.PauseShort)
	}
	if err != nil {
		return r.etcdUnreachable(run, err)
	}
	for i := range grants {
		if err := r.tellGrant(ctx, &grants[i], version, refused[grants[i].Name]); err != nil {
			return step.Retry(err)
		}
	}
	if issuersErr != nil {
		return step.Wait("IssuersUnknown", fmt.Sprintf("the keys of the issuers of tokens cannot be read, those read before stay in use: %v", issuersErr), 3*step.PauseShort)
	}
	return step.Complete()
}

func (r *Reconciler) issuers(ctx context.Context) ([]access.Issuer, error) {
	if r.Issuers == nil {
		return nil, nil
	}
	return r.Issuers(ctx)
}

// tableOf compiles grants. Those that cannot be compiled are left out, and refused says why. Where the issuers are not
// known, they are those of the table that is there.
func tableOf(grants []v1alpha1.RecordGrant, audience string, issuers []access.Issuer, there fleet.Grants, known bool) (table *access.Table, refused map[string]error) {
	table, refused = &access.Table{Version: 1, Audience: audience, Issuers: issuers, Grants: []access.Grant{}}, map[string]error{}
	if before, err := access.ParseTable(there.Table); err == nil && !known {
		table.Issuers = before.Issuers
	}
	var all []access.Grant
	for i := range grants {
		one, err := grantOf(&grants[i])
		if err != nil {
			refused[grants[i].Name] = err
			continue
		}
		all = append(all, one)
	}
	whole := *table
	whole.Grants = slices.Concat(table.Grants, all)
	if whole.Validate() == nil {
		return &whole, refused
	}
	for _, one := range all { // to find the one, and why
		alone := *table
		alone.Grants = []access.Grant{one}
		if err := alone.Validate(); err != nil {
			refused[one.Name] = err
			continue
		}
		table.Grants = append(table.Grants, one)
	}
	return table, refused
}

// grantOf is a RecordGrant as the table has it.
func grantOf(g *v1alpha1.RecordGrant) (access.Grant, error) {
	out := access.Grant{Name: g.Name, Groups: access.Groups{All: g.Spec.Groups.All, Names: g.Spec.Groups.Names, Prefixes: g.Spec.Groups.Prefixes}}
	for _, s := range g.Spec.Subjects {
		out.Subjects = append(out.Subjects, access.Subject{Kind: access.SubjectKind(s.Kind), Issuer: s.Issuer, Namespace: s.Namespace, Name: s.Name})
	}
	for _, v := range g.Spec.Verbs {
		verb, err := access.ParseVerb(string(v))
		if err != nil {
			return out, err
		}
		out.Verbs = append(out.Verbs, verb)
	}
	return out, nil
}

// putTable writes a table where it says something else than the one that is there, with the next version; version is
// that of the table which etcd has then.
func putTable(ctx context.Context, placement fleet.Placement, table *access.Table, there fleet.Grants) (version int64, err error) {
	if there.Table != nil {
		before, err := access.ParseTable(there.Table)
		if err == nil {
			table.Version = before.Version
			if same(before, table) {
				return before.Version, nil
			}
		} else {
			// It cannot be used by anybody. Its version, where it can be read, is gone on from, so that versions only grow.
			var plain struct {
				Version int64 `json:"version"`
			}
			_ = json.Unmarshal(there.Table, &plain) // else from 0
			table.Version = plain.Version
		}
		table.Version++
	}
	text, err := table.Encode()
	if err != nil {
		return 0, err
	}
	return table.Version, placement.PutGrants(ctx, text, there.Revision)
}

// same tells whether two tables say the same, as they are in etcd.
func same(a, b *access.Table) bool {
	left, err := a.Encode()
	right, err2 := b.Encode()
	return err == nil && err2 == nil && bytes.Equal(left, right)
}

// tellGrant writes what became of a grant.
func (r *Reconciler) tellGrant(ctx context.Context, g *v1alpha1.RecordGrant, version int64, refused error) error {
	before := g.DeepCopy()
	g.Status.ObservedGeneration = g.Generation
	if refused != nil {
		g.Status.Table = 0
		step.SetFalse(&g.Status.Conditions, g.Generation, v1alpha1.ConditionReady, "Refused", refused.Error())
	} else {
		// A table that differs in other grants alone says nothing new of this one.
		if ready := meta.IsStatusConditionTrue(before.Status.Conditions, v1alpha1.ConditionReady); !ready || before.Status.ObservedGeneration != g.Generation || g.Status.Table == 0 {
			g.Status.Table = version
		}
		step.SetTrue(&g.Status.Conditions, g.Generation, v1alpha1.ConditionReady, "Compiled", "Gateways and shards read it from etcd")
	}
	if reflect.DeepEqual(before.Status, g.Status) {
		return nil
	}
	if _, err := step.WriteStatus(ctx, r.Client, before, g); err != nil && !passes(err) {
		return err
	}
	return nil
}

// lonelyGrants tells the grants of a store that is not there.
func (r *Reconciler) lonelyGrants(ctx context.Context, store types.NamespacedName) error {
	grants, err := r.grantsOf(ctx, store)
	if err != nil {
		return err
	}
	for i := range grants {
		g := &grants[i]
		before := g.DeepCopy()
		g.Status.ObservedGeneration, g.Status.Table = g.Generation, 0
		step.SetFalse(&g.Status.Conditions, g.Generation, v1alpha1.ConditionReady, "StoreNotFound",
			fmt.Sprintf("there is no RecordStore %s in namespace %s: make it, or correct spec.store", store.Name, store.Namespace))
		if _, err := step.WriteStatus(ctx, r.Client, before, g); err != nil && !passes(err) {
			return err
		}
	}
	return nil
}
