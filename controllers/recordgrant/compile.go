package recordgrant

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/security/access"
)

func audience(namespace, store string) string { return "sheaf/" + namespace + "/" + store }

// compile builds the grant table of a store, without its version and its tenants. The argument issuer is the issuer of
// the cluster's ServiceAccounts.
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

// keepLast removes from a table the grants and tenants that would make it invalid, such as a grant with a verb of a
// later version. It returns the removed grants with the reasons, by name, and adds the removed tenants to
// refusedTenants. An invalid object does not prevent the others from being in the table.
//
// A removed object keeps its last valid state, which is its state in the previous table. A grant keeps only the rights
// that both its last and its new state name, so that a revoked right always ends.
func keepLast(next, before *access.Table, refusedTenants map[string]step.Outcome) map[string]step.Outcome {
	refused := map[string]step.Outcome{}
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
				return !overlaps // another tenant may have taken the prefix in the meantime
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

// check returns an error if a table with these grants and tenants would be invalid. It compiles a copy of the given
// table in which they replace all other grants and tenants.
func check(of *access.Table, grants []access.Grant, tenants []access.Tenant) error {
	alone := *of
	alone.Version, alone.Grants, alone.Tenants = 1, grants, tenants
	_, err := access.Compile(&alone)
	return err
}

// refusal returns the outcome for an object that would make the table invalid. The argument words describes the part of
// the object that stays in the table.
func refusal(err error, words string) step.Outcome {
	return step.Fail(reasonRefused, fmt.Sprintf("%v: %s", err, words))
}

// stillNamed returns the rights that a grant gives in both its last and its next state.
func stillNamed(last, next access.Grant) access.Grant {
	last.Subjects, last.Verbs = intersect(last.Subjects, next.Subjects), intersect(last.Verbs, next.Verbs)
	switch {
	case next.Groups.All: // all groups include the groups of the last state
	case last.Groups.All:
		last.Groups = next.Groups
	default:
		last.Groups = access.Groups{Names: intersect(last.Groups.Names, next.Groups.Names),
			Prefixes: intersect(last.Groups.Prefixes, next.Groups.Prefixes)}
	}
	return last
}

// intersect returns the elements of a that are also in b.
func intersect[T comparable](a, b []T) (out []T) {
	for _, v := range a {
		if slices.Contains(b, v) {
			out = append(out, v)
		}
	}
	return out
}

// fit removes the youngest grants from a table that is too large for etcd, and adds them to refused. Without this,
// etcd would refuse the whole table, and no change would take effect, not even the removal of a right. The choice
// depends only on the age of the grants, so removing one right never removes another. fit reports whether the table
// was too large.
func fit(table *access.Table, grants []v1alpha1.RecordGrant, refused map[string]step.Outcome) (tooLarge bool) {
	others := *table
	others.Version, others.Grants = math.MaxInt64, []access.Grant{} // the longest possible version
	room := access.TableBytesMax - jsonBytes(others)
	size, sum := make(map[string]int, len(table.Grants)), 0
	for i := range table.Grants {
		n := jsonBytes(table.Grants[i]) + 1 // one byte for the comma
		size[table.Grants[i].Name] = n
		sum += n
	}
	if sum <= room {
		return false
	}
	byAge := make([]*v1alpha1.RecordGrant, 0, len(grants))
	for i := range grants {
		if size[grants[i].Name] > 0 {
			byAge = append(byAge, &grants[i])
		}
	}
	slices.SortFunc(byAge, func(a, b *v1alpha1.RecordGrant) int { return byCreation(a, b) })
	in, older := map[string]bool{}, 0
	for _, g := range byAge {
		n := size[g.Name]
		if n > room || older+n > room {
			refused[g.Name] = step.Fail(reasonRefused, fmt.Sprintf("it has %d bytes in the table of grants, which has space "+
				"for %d bytes of RecordGrants, and older ones need %d: it is not in the table, and gives nothing. Delete "+
				"RecordGrants that are not needed, or name groups by shorter prefixes", n, max(room, 0), older))
		} else {
			in[g.Name] = true
		}
		if n <= room { // a grant that is too large by itself must not keep younger grants out
			older += n
		}
	}
	table.Grants = slices.DeleteFunc(table.Grants, func(g access.Grant) bool { return !in[g.Name] })
	return true
}

// byCreation compares objects by their age, the oldest first, and then by name.
func byCreation(a, b metav1.Object) int {
	one, other := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	return cmp.Or(one.Compare(other.Time), cmp.Compare(a.GetName(), b.GetName()))
}

// jsonBytes returns the size of part, when encoded as JSON. It returns 0 if the part cannot be encoded, because Encode
// then reports the error.
func jsonBytes(part any) int {
	text, err := json.Marshal(part)
	if err != nil {
		return 0
	}
	return len(text)
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
