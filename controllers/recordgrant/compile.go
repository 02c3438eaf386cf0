package recordgrant

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/access"
)

// Audience that tokens for a store are made for.
func Audience(namespace, store string) string { return "sheaf/" + namespace + "/" + store }

// compile makes the table of grants of a store, but for its version and its tenants. issuer is that of the cluster's ServiceAccounts.
func compile(namespace, store string, grants []v1alpha1.RecordGrant, issuer access.Issuer) *access.Table {
	table := &access.Table{Audience: Audience(namespace, store), Issuers: []access.Issuer{issuer}, Grants: []access.Grant{}}
	for i := range grants {
		table.Grants = append(table.Grants, grantOf(&grants[i]))
	}
	slices.SortFunc(table.Grants, func(a, b access.Grant) int { return cmp.Compare(a.Name, b.Name) })
	return table
}

// grantOf is a RecordGrant as the table has it. What cannot be read is left for the table's own checks to refuse.
func grantOf(g *v1alpha1.RecordGrant) access.Grant {
	out := access.Grant{Name: g.Name, Groups: access.Groups{All: g.Spec.Groups.All, Names: texts(g.Spec.Groups.Names), Prefixes: texts(g.Spec.Groups.Prefixes)}}
	for _, s := range g.Spec.Subjects {
		out.Subjects = append(out.Subjects, access.Subject{Kind: access.SubjectKind(s.Kind), Namespace: s.Namespace, Name: s.Name})
	}
	for _, v := range g.Spec.Verbs {
		verb, _ := access.ParseVerb(string(v)) // one that is none is refused by the table
		out.Verbs = append(out.Verbs, verb)
	}
	return out
}

// tenantsOf are RecordTenants as the table has them, and why one is not in it, by name. Of two that could have a group in
// common the older one counts.
func tenantsOf(routing v1alpha1.RoutingMode, tenants []v1alpha1.RecordTenant) (out []access.Tenant, refused map[string]step.Outcome) {
	refused = map[string]step.Outcome{}
	older := slices.Clone(tenants)
	slices.SortFunc(older, func(a, b v1alpha1.RecordTenant) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for i := range older {
		t := &older[i]
		if routing != v1alpha1.RoutingNamed {
			refused[t.Name] = step.Fail("HashRouting", "the RecordStore is of Hash routing, in which groups are nobody's: tenants need Named routing")
			continue
		}
		next := append(slices.Clone(out), tenantOf(t))
		if one, other, overlap := access.OverlapOf(next); overlap {
			before := &next[min(one, other)]
			refused[t.Name] = step.Fail("PrefixOverlaps", fmt.Sprintf("prefix %s and that of the older RecordTenant %s, %s, have groups in common: choose another one, or delete one of both",
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
		StoredBytes: bytes(q.StoredBytes), Records: number(q.Records), CallsPerSecond: number(q.CallsPerSecond), BytesPerSecond: bytes(q.BytesPerSecond),
		CallsAtOnce: number(q.CallsAtOnce),
	}}
}

func texts(from []v1alpha1.GrantGroupText) (out []string) {
	for _, text := range from {
		out = append(out, string(text))
	}
	return out
}

// isSame tells whether two tables differ in nothing but their version.
func isSame(a, b *access.Table) bool {
	x, y := *a, *b
	x.Version, y.Version = 1, 1
	one, err := json.Marshal(x)
	other, also := json.Marshal(y)
	return err == nil && also == nil && bytes.Equal(one, other)
}
