package recordgrant

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/security/access"
)

// audience returns the audience of tokens for a store.
func audience(namespace, store string) string { return "sheaf/" + namespace + "/" + store }

// compile makes the grant table of a store, without its version and its tenants. issuer is the issuer of the
// cluster's ServiceAccounts.
func compile(namespace, store string, grants []v1alpha1.RecordGrant, issuer access.Issuer) *access.Table {
	table := &access.Table{Audience: audience(namespace, store), Issuers: []access.Issuer{issuer},
		Grants: []access.Grant{}}
	for i := range grants {
		table.Grants = append(table.Grants, grantOf(&grants[i]))
	}
	slices.SortFunc(table.Grants, func(a, b access.Grant) int { return cmp.Compare(a.Name, b.Name) })
	return table
}

// grantOf converts a RecordGrant to its form in the table. It keeps values that it cannot parse, so that the table's
// own checks refuse them.
func grantOf(g *v1alpha1.RecordGrant) access.Grant {
	out := access.Grant{Name: g.Name, Groups: access.Groups{All: g.Spec.Groups.All, Names: texts(g.Spec.Groups.Names),
		Prefixes: texts(g.Spec.Groups.Prefixes)}}
	for _, s := range g.Spec.Subjects {
		out.Subjects = append(out.Subjects, access.Subject{Kind: access.SubjectKind(s.Kind), Issuer: s.Issuer,
			Namespace: s.Namespace, Name: s.Name})
	}
	for _, v := range g.Spec.Verbs {
		verb, _ := access.ParseVerb(string(v)) // the table refuses an unknown verb
		out.Verbs = append(out.Verbs, verb)
	}
	return out
}

func texts(from []v1alpha1.GrantGroupText) (out []string) {
	for _, text := range from {
		out = append(out, string(text))
	}
	return out
}

// isSame reports whether two tables are equal except for their version.
func isSame(a, b *access.Table) bool {
	x, y := *a, *b
	x.Version, y.Version = 1, 1
	one, err := json.Marshal(x)
	other, also := json.Marshal(y)
	return err == nil && also == nil && bytes.Equal(one, other)
}
