package recordgrant

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/test/must"
)

// prodQuotes is the store of the tests in this file.
var prodQuotes = types.NamespacedName{Namespace: "prod", Name: "quotes"}

// grantsIn reconciles prodQuotes and returns the names of the grants in its table.
func (p *fakeAPI) grantsIn(t *testing.T, r *Reconciler) (names []string) {
	t.Helper()
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: prodQuotes}); err != nil {
		t.Fatal(err)
	}
	table, err := access.ParseTable(p.tables["prod"])
	must.OK(t, err)
	for _, g := range table.Grants {
		names = append(names, g.Name)
	}
	return names
}

// Grants that do not fit into a table are refused one by one, the youngest first. The removal of a right always reaches
// the table, and never removes another right.
func TestYoungestGrantsAreLeftOutOfFullTable(t *testing.T) {
	p := newPlays(t)
	var groups []v1alpha1.GrantGroupText
	for n := range 256 {
		groups = append(groups, v1alpha1.GrantGroupText(fmt.Sprintf("%0253d", n)))
	}
	// The oldest grants have the last names and are at the end of the list, so the test notices if they are chosen by
	// anything but age. Each has 131 KB.
	for n := 13; n > 0; n-- {
		p.add("prod", fmt.Sprintf("g%02d", 20-n), n)
		p.grants[len(p.grants)-1].Spec.Groups = v1alpha1.GrantGroups{Names: groups, Prefixes: groups}
	}
	r := p.reconciler()
	names := []string{"g10", "g11", "g12", "g13", "g14", "g15", "g16", "g17", "g18", "g19"}
	if got := p.grantsIn(t, r); !slices.Equal(got, names) {
		t.Fatalf("in the table are %q", got)
	}
	for i := range p.grants {
		g := &p.grants[i]
		compiled, force := p.compiledOf(g), p.condition(g, v1alpha1.ConditionInForce)
		if slices.Contains(names, g.Name) {
			if compiled.Status != metav1.ConditionTrue || force.Status == metav1.ConditionFalse {
				t.Errorf("%s: %+v, %+v", g.Name, compiled, force)
			}
		} else if compiled.Reason != "Refused" || !strings.Contains(compiled.Message, "it has 131") ||
			!strings.Contains(compiled.Message, "space for 139") || force.Status != metav1.ConditionFalse {
			t.Errorf("%s: %+v, %+v", g.Name, compiled, force)
		}
	}

	// The youngest grant is small, and would fit. It is left out nevertheless, because it would have to leave the table
	// again when an older grant fits.
	p.add("prod", "small", 100)
	if got := p.grantsIn(t, r); !slices.Equal(got, names) {
		t.Errorf("with a small one that is younger, in the table are %q", got)
	}
	p.grants = slices.DeleteFunc(p.grants, func(g v1alpha1.RecordGrant) bool { return g.Name == "g19" })
	if got := p.grantsIn(t, r); !slices.Equal(got, append([]string{"g09"}, names[:9]...)) {
		t.Errorf("after the end of the oldest, in the table are %q", got)
	}

	// A grant that is too large by itself, as a later version may allow, keeps no younger grant out of the table.
	p.grants = slices.DeleteFunc(p.grants, func(g v1alpha1.RecordGrant) bool { return g.Name < "g16" })
	p.add("prod", "huge", 0)
	huge := &p.grants[len(p.grants)-1].Spec
	for n := range 999 {
		huge.Subjects = append(huge.Subjects, v1alpha1.GrantSubject{Kind: v1alpha1.GrantCertificate,
			Name: fmt.Sprintf("%02000d", n)})
	}
	if got := p.grantsIn(t, r); !slices.Equal(got, []string{"g16", "g17", "g18", "small"}) {
		t.Errorf("with one that is too large on its own, in the table are %q", got)
	}
}

// While a table cannot be written, no condition says that grants are in force, regardless of earlier reports of the
// processes, because the table may still contain a removed right.
func TestUnwrittenTableIsNotInForce(t *testing.T) {
	p := newPlays(t)
	p.add("prod", "readers", 1)
	began := time.Unix(1_800_000_000, 0)
	now := began
	r := p.reconciler()
	r.Book, r.Now = &fleet.GrantBook{}, func() time.Time { return now }
	p.grantsIn(t, r)
	// expect reconciles a store whose grants were all in force, and compares the conditions of the store and of the
	// grant.
	expect := func(what, store, grant string) {
		t.Helper()
		r.Book.Put(prodQuotes, fleet.GrantsInForce{Good: true, Reason: "InForce"})
		p.grants[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionInForce, Status: metav1.ConditionTrue,
			Reason: "InForce"}}
		_, _ = r.Reconcile(t.Context(), ctrl.Request{NamespacedName: prodQuotes})
		of, _ := r.Book.Of(prodQuotes)
		if got := string(of.Status()) + " " + of.Reason; got != store {
			t.Errorf("%s: the store is %s, want %s: %s", what, got, store, of.Message)
		}
		if !of.Good && !strings.Contains(of.Message, "since "+began.UTC().Format(time.RFC3339)) {
			t.Errorf("%s: the store says %s", what, of.Message)
		}
		c := p.condition(&p.grants[0], v1alpha1.ConditionInForce)
		if got := string(c.Status) + " " + c.Reason; got != grant {
			t.Errorf("%s: the grant is %s, want %s: %s", what, got, grant, c.Message)
		}
	}
	written := p.tables["prod"]
	p.tables["prod"] = []byte("{")
	expect("the table is foreign", "False TableForeign", "False TableForeign")
	p.tables["prod"] = written
	expect("the table is readable again", "True InForce", "True InForce")
	p.noTable = context.DeadlineExceeded
	p.grants[0].Spec.Groups = v1alpha1.GrantGroups{Names: []v1alpha1.GrantGroupText{"a"}}
	expect("etcd did not answer once", "True InForce", "True InForce")
	now = now.Add(6 * time.Second)
	expect("etcd does not answer for 6 s", "Unknown APIError", "Unknown APIError")
	p.noTable = nil
	expect("etcd answers again", "True InForce", "True InForce")
	now, r.accounts.read = began, time.Time{}
	r.Keys = func(context.Context) (access.Issuer, error) { return access.Issuer{}, errors.New("forbidden") }
	expect("the keys of ServiceAccounts could not be read once", "True InForce", "True InForce")
	now = now.Add(6 * time.Second)
	expect("the keys of ServiceAccounts cannot be read for 6 s", "Unknown APIError", "Unknown APIError")
}
