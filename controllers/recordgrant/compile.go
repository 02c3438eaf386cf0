package recordgrant

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
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

// keepLast takes the grants and tenants out of a table that cannot be in one, such as a grant with a verb of a later
// version. What the table before has of them stays in use. It returns the grants with the reasons, by name, and adds
// the tenants to refused. One bad object does not keep the others out of the table.
func keepLast(next, before *access.Table, refusedTenants map[string]step.Outcome) map[string]step.Outcome {
	if check(next, next.Grants, next.Tenants) == nil {
		return nil
	}
	refused := map[string]step.Outcome{}
	grants := slices.Clone(next.Grants)
	next.Grants = next.Grants[:0]
	for _, g := range grants {
		if err := check(next, []access.Grant{g}, nil); err != nil {
			last := slices.IndexFunc(before.Grants, func(b access.Grant) bool {
				return b.Name == g.Name && check(next, []access.Grant{b}, nil) == nil
			})
			refused[g.Name] = refusal(err, last >= 0)
			if last < 0 {
				continue
			}
			g = before.Grants[last]
		}
		next.Grants = append(next.Grants, g)
	}
	tenants := slices.Clone(next.Tenants)
	next.Tenants = next.Tenants[:0]
	for _, t := range tenants {
		if err := check(next, nil, []access.Tenant{t}); err != nil {
			last := slices.IndexFunc(before.Tenants, func(b access.Tenant) bool {
				if b.Name != t.Name {
					return false
				}
				others := slices.DeleteFunc(slices.Clone(tenants), func(o access.Tenant) bool { return o.Name == t.Name })
				_, _, overlaps := access.OverlapOf(append(others, b))
				return !overlaps // another tenant may have its prefix now
			})
			refusedTenants[t.Name] = refusal(err, last >= 0)
			if last < 0 {
				continue
			}
			t = before.Tenants[last]
		}
		next.Tenants = append(next.Tenants, t)
	}
	return refused
}

// check returns why a table with the issuers of the table of, and with these grants and tenants, would be refused.
func check(of *access.Table, grants []access.Grant, tenants []access.Tenant) error {
	alone := *of
	alone.Version, alone.Grants, alone.Tenants = 1, grants, tenants
	_, err := access.Compile(&alone)
	return err
}

func refusal(err error, hasLast bool) step.Outcome {
	words := "it is not in the table"
	if hasLast {
		words = "the last one that was in the table stays in use"
	}
	return step.Fail("Refused", fmt.Sprintf("%v: %s", err, words))
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
