package recordgrant

import (
	"slices"
	"strings"
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/security/access"
)

// TestOneBadGrantLeavesTheOthersInTheTable checks that objects which a table refuses keep no other object out, and that
// what the table before has of them stays in use.
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
	for name, change := range map[string]func(*v1alpha1.RecordGrantSpec){
		"a verb of a later version": func(s *v1alpha1.RecordGrantSpec) { s.Verbs = []v1alpha1.GrantVerb{"get", "dream"} },
		"no verb":                   func(s *v1alpha1.RecordGrantSpec) { s.Verbs = nil },
		"no subject":                func(s *v1alpha1.RecordGrantSpec) { s.Subjects = nil },
		"a kind of a later version": func(s *v1alpha1.RecordGrantSpec) { s.Subjects[0].Kind = "Robot" },
		"a subject without a name":  func(s *v1alpha1.RecordGrantSpec) { s.Subjects[0].Name = "" },
		"no groups":                 func(s *v1alpha1.RecordGrantSpec) { s.Groups = v1alpha1.GrantGroups{} },
		"a name beyond every limit": func(s *v1alpha1.RecordGrantSpec) { s.Subjects[0].Name = strings.Repeat("x", 1<<20) },
		"an odd prefix": func(s *v1alpha1.RecordGrantSpec) {
			s.Groups = v1alpha1.GrantGroups{Prefixes: []v1alpha1.GrantGroupText{"\x00/.."}}
		},
	} {
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
			if !slices.Equal(names, []string{"changed", "good"}) || len(next.Tenants) != 1 || next.Tenants[0].Name != "t-good" {
				t.Errorf("in the table: %v, %+v", names, next.Tenants)
			}
			bad, changed, tenant := refused["bad"], refused["changed"], tenants["t-bad"]
			for out, words := range map[*step.Outcome]string{
				&bad: "it is not in the table", &changed: "stays in use", &tenant: "it is not in the table",
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

// TestAKeptTenantDoesNotTakeAPrefixThatAnotherHasNow checks that a tenant whose new state is refused keeps its earlier
// one only where no other tenant has its prefix by now: the table would be refused as a whole otherwise.
func TestAKeptTenantDoesNotTakeAPrefixThatAnotherHasNow(t *testing.T) {
	bad, one := access.Quotas{Records: -1}, access.Quotas{Records: 1}
	for name, c := range map[string]struct {
		prefix string // of the other tenant
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
