package recordgrant

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/security/access"
)

// TestOneBadGrantLeavesTheOthersInTheTable checks that an object that would make the table invalid does not keep other
// objects out of the table. What the previous table allows by such an object remains in use if the object still names
// it, and ends otherwise.
func TestOneBadGrantLeavesTheOthersInTheTable(t *testing.T) {
	grant := func(name string, change func(*v1alpha1.RecordGrantSpec)) v1alpha1.RecordGrant {
		out := v1alpha1.RecordGrant{Spec: v1alpha1.RecordGrantSpec{
			Verbs: []v1alpha1.GrantVerb{"get"}, Groups: v1alpha1.GrantGroups{All: true},
			Subjects: []v1alpha1.GrantSubject{{Kind: v1alpha1.GrantCertificate, Name: "reader"}},
		}}
		out.Name = name
		change(&out.Spec)
		return out
	}
	same := func(*v1alpha1.RecordGrantSpec) {}
	before := compile("prod", "quotes", []v1alpha1.RecordGrant{grant("changed", same)}, access.Issuer{})
	before.Issuers = nil
	kept, ended := []string{"changed", "good"}, []string{"good"}
	for name, c := range map[string]struct {
		change func(*v1alpha1.RecordGrantSpec)
		names  []string // names in the table
	}{
		"a verb of a later version": {func(s *v1alpha1.RecordGrantSpec) {
			s.Verbs = []v1alpha1.GrantVerb{"get", "dream"}
		}, kept},
		"a kind of a later version": {func(s *v1alpha1.RecordGrantSpec) {
			s.Subjects = append(s.Subjects, v1alpha1.GrantSubject{Kind: "Robot"})
		}, kept},
		"no verb":                             {func(s *v1alpha1.RecordGrantSpec) { s.Verbs = nil }, ended},
		"only a verb of a later version":      {func(s *v1alpha1.RecordGrantSpec) { s.Verbs[0] = "dream" }, ended},
		"no subject":                          {func(s *v1alpha1.RecordGrantSpec) { s.Subjects = nil }, ended},
		"another subject, of a later version": {func(s *v1alpha1.RecordGrantSpec) { s.Subjects[0].Kind = "Robot" }, ended},
		"a subject without a name":            {func(s *v1alpha1.RecordGrantSpec) { s.Subjects[0].Name = "" }, ended},
		"no groups": {func(s *v1alpha1.RecordGrantSpec) {
			s.Groups = v1alpha1.GrantGroups{}
		}, ended},
		"a name beyond every limit": {func(s *v1alpha1.RecordGrantSpec) {
			s.Subjects[0].Name = strings.Repeat("x", 1<<20)
		}, ended},
		"an odd prefix": {func(s *v1alpha1.RecordGrantSpec) {
			s.Groups = v1alpha1.GrantGroups{Prefixes: []v1alpha1.GrantGroupText{"\x00/.."}}
		}, ended},
	} {
		change := c.change
		t.Run(name, func(t *testing.T) {
			next := compile("prod", "quotes",
				[]v1alpha1.RecordGrant{grant("bad", change), grant("changed", change), grant("good", same)}, access.Issuer{})
			next.Issuers = nil
			next.Tenants = []access.Tenant{
				{Name: "t-bad", Prefix: "a-", Quotas: access.Quotas{Records: -1}},
				{Name: "t-good", Prefix: "b-", Quotas: access.Quotas{Records: 1}},
			}
			tenants := map[string]step.Outcome{}
			refused := keepLast(next, before, tenants)
			next.Version = 2
			if _, err := next.Encode(); err != nil {
				t.Fatal("the table is refused: ", err)
			}
			var names []string
			for _, g := range next.Grants {
				names = append(names, g.Name)
			}
			if !slices.Equal(names, c.names) || len(next.Tenants) != 1 || next.Tenants[0].Name != "t-good" {
				t.Errorf("in the table: %v, %+v", names, next.Tenants)
			}
			bad, changed, tenant := refused["bad"], refused["changed"], tenants["t-bad"]
			remains := "remain in use"
			if len(c.names) == 1 {
				remains = "gives nothing"
			}
			for out, words := range map[*step.Outcome]string{
				&bad: "it is not in the table", &changed: remains, &tenant: "it is not in the table",
			} {
				if out.Reason() != "Refused" || !strings.Contains(out.Message(), words) {
					t.Errorf("refused with %q, which does not say %q", out.Message(), words)
				}
			}
			if len(refused) != 2 || len(tenants) != 1 {
				t.Errorf("refused are %v and %v", refused, tenants)
			}
		})
	}
}

// If a grant cannot be parsed, its last state remains in use, but without the subjects, verbs and groups that the new
// state does not name. Somebody may have removed them in the very change that cannot be parsed.
func TestRightsRemovedFromInvalidGrantEnd(t *testing.T) {
	texts := func(of ...v1alpha1.GrantGroupText) []v1alpha1.GrantGroupText { return of }
	reader := v1alpha1.GrantSubject{Kind: v1alpha1.GrantCertificate, Name: "reader"}
	writer := v1alpha1.GrantSubject{Kind: v1alpha1.GrantCertificate, Name: "writer"}
	some := v1alpha1.GrantGroups{Names: texts("a", "b"), Prefixes: texts("c-", "d-")}
	last := v1alpha1.RecordGrantSpec{Subjects: []v1alpha1.GrantSubject{reader, writer},
		Verbs: []v1alpha1.GrantVerb{"get", "put"}, Groups: some}
	const all = `[{Certificate   reader} {Certificate   writer}] [get put] {false [a b] [c- d-]}`
	for name, c := range map[string]struct {
		before v1alpha1.GrantGroups
		change func(*v1alpha1.RecordGrantSpec)
		want   string // the grant that the new table must contain
	}{
		"nothing is taken out": {some, func(*v1alpha1.RecordGrantSpec) {}, all},
		"a subject": {some, func(s *v1alpha1.RecordGrantSpec) { s.Subjects = s.Subjects[:1] },
			`[{Certificate   reader}] [get put] {false [a b] [c- d-]}`},
		"a verb": {some, func(s *v1alpha1.RecordGrantSpec) { s.Verbs = s.Verbs[:1] },
			`[{Certificate   reader} {Certificate   writer}] [get] {false [a b] [c- d-]}`},
		"groups": {some, func(s *v1alpha1.RecordGrantSpec) {
			s.Groups = v1alpha1.GrantGroups{Names: texts("b", "new"), Prefixes: texts("d-", "new-")}
		}, `[{Certificate   reader} {Certificate   writer}] [get put] {false [b] [d-]}`},
		"all groups": {some, func(s *v1alpha1.RecordGrantSpec) {
			s.Groups = v1alpha1.GrantGroups{Names: texts("new")}
		}, ""},
		"the other groups": {v1alpha1.GrantGroups{All: true}, func(*v1alpha1.RecordGrantSpec) {}, all},
		"nothing, and all groups are added": {some, func(s *v1alpha1.RecordGrantSpec) {
			s.Groups = v1alpha1.GrantGroups{All: true}
		}, all},
	} {
		grant := v1alpha1.RecordGrant{Spec: *last.DeepCopy()}
		grant.Name, grant.Spec.Groups = "g", c.before
		before := compile("prod", "quotes", []v1alpha1.RecordGrant{grant}, access.Issuer{})
		grant.Spec.Groups = *some.DeepCopy()
		c.change(&grant.Spec)
		grant.Spec.Verbs = append(slices.Clone(grant.Spec.Verbs), "dream")
		next := compile("prod", "quotes", []v1alpha1.RecordGrant{grant}, access.Issuer{})
		before.Issuers, next.Issuers = nil, nil
		if refused := keepLast(next, before, nil)["g"]; refused.Reason() != "Refused" {
			t.Errorf("%s: %s: %s", name, refused.Reason(), refused.Message())
		}
		got := ""
		for _, g := range next.Grants {
			got += fmt.Sprintf("%v %v %v", g.Subjects, g.Verbs, g.Groups)
		}
		if got != c.want {
			t.Errorf("%s: the table has %q, want %q", name, got, c.want)
		}
	}
}

// TestKeptTenantDoesNotTakeOtherTenantsPrefix checks when a tenant whose new state is refused keeps its earlier
// state. It may do so only if no other tenant has its prefix by now, because two tenants with the same prefix would
// make the whole table invalid.
func TestKeptTenantDoesNotTakeOtherTenantsPrefix(t *testing.T) {
	bad, one := access.Quotas{Records: -1}, access.Quotas{Records: 1}
	for name, c := range map[string]struct {
		prefix string // prefix of the other tenant
		kept   bool
	}{
		"taken": {"a-", false}, "a part of it taken": {"a-1-", false}, "free": {"c-", true},
	} {
		before := &access.Table{Tenants: []access.Tenant{{Name: "moves", Prefix: "a-", Quotas: one}}}
		next := &access.Table{Tenants: []access.Tenant{
			{Name: "moves", Prefix: "b-", Quotas: bad}, {Name: "other", Prefix: c.prefix, Quotas: one},
		}}
		refused := map[string]step.Outcome{}
		keepLast(next, before, refused)
		next.Version = 1
		if _, err := next.Encode(); err != nil {
			t.Errorf("%s: the table is refused: %v", name, err)
		}
		if out := refused["moves"]; len(next.Tenants) == 2 != c.kept || out.Reason() != "Refused" {
			t.Errorf("%s: in the table: %+v; refused: %v", name, next.Tenants, refused)
		}
	}
}
