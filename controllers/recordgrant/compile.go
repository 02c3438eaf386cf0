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
// version. It returns the grants with the reasons, by name, and adds the tenants to refusedTenants. One bad object does
// not keep the others out of the table.
//
// An object that cannot be understood keeps its last state, which is the one in the table before. A grant that plainly
// gives less never gives more: of its last state, only the part that the new state still names remains in use.
func keepLast(next, before *access.Table, refusedTenants map[string]step.Outcome) map[string]step.Outcome {
	refused := map[string]step.Outcome{}
	if check(next, next.Grants, next.Tenants) == nil {
		return refused
	}
	grants := slices.Clone(next.Grants)
	next.Grants = next.Grants[:0]
	for _, g := range grants {
		if err := check(next, []access.Grant{g}, nil); err != nil {
			last := slices.IndexFunc(before.Grants, func(b access.Grant) bool { return b.Name == g.Name })
			if last >= 0 {
				g = stillNamed(before.Grants[last], g)
			}
			if last < 0 || check(next, []access.Grant{g}, nil) != nil {
				refused[g.Name] = refusal(err, "it is not in the table, and gives nothing")
				continue
			}
			refused[g.Name] = refusal(err, "the rights that it had in the last table, and still names, remain in use")
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
			if last < 0 {
				refusedTenants[t.Name] = refusal(err, "it is not in the table")
				continue
			}
			refusedTenants[t.Name] = refusal(err, "the last one that was in the table stays in use")
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

// refusal returns the outcome for an object that a table refuses. The argument words says what remains of the object.
func refusal(err error, words string) step.Outcome {
	return step.Fail("Refused", fmt.Sprintf("%v: %s", err, words))
}

// stillNamed returns the part of the last state of a grant that its new state names, too. It never gives a right that
// either of them does not give.
func stillNamed(last, next access.Grant) access.Grant {
	last.Subjects, last.Verbs = both(last.Subjects, next.Subjects), both(last.Verbs, next.Verbs)
	switch {
	case next.Groups.All: // includes all groups of the last state
	case last.Groups.All:
		last.Groups = next.Groups
	default:
		last.Groups = access.Groups{Names: both(last.Groups.Names, next.Groups.Names),
			Prefixes: both(last.Groups.Prefixes, next.Groups.Prefixes)}
	}
	return last
}

// both returns the elements of a that are also in b.
func both[T comparable](a, b []T) (out []T) {
	for _, v := range a {
		if slices.Contains(b, v) {
			out = append(out, v)
		}
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
