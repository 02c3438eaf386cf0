package recordgrant

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/test/fleettest"
)

// For any set of RecordGrants and RecordTenants, the usable ones are in the table, and each of the others is refused
// with a reason.
func TestAbsurdGrantsLeaveATable(t *testing.T) {
	words := []string{"get", "put", "Certificate", "Anybody", "ServiceAccount", "OIDC", "https://idp.example.org", "team-",
		"team-a-", "other-"}
	fleettest.Absurdly(t, words, func(a *fleettest.Absurd) {
		// The loop compiles two tables, one after the other. The second one may keep entries of the first one for objects
		// that have become invalid.
		var before *access.Table
		for version := int64(1); version <= 2; version++ {
			var grants []v1alpha1.RecordGrant
			var tenants []v1alpha1.RecordTenant
			for n := range 4 {
				made := metav1.ObjectMeta{Name: fmt.Sprintf("o%d", n)}
				g, of := v1alpha1.RecordGrant{ObjectMeta: made}, v1alpha1.RecordTenant{ObjectMeta: made}
				a.Fill(&g.Spec)
				a.Fill(&of.Spec)
				a.Fill(&of.CreationTimestamp)
				grants, tenants = append(grants, g), append(tenants, of)
			}
			table := compile("prod", "quotes", grants, access.Issuer{})
			table.Issuers, table.Version = nil, version
			var refusedTenants map[string]step.Outcome
			table.Tenants, refusedTenants = tenantsOf(v1alpha1.RoutingNamed, tenants)
			dropUnknown(table)
			if before == nil {
				before = &access.Table{}
			}
			refused := keepLast(table, before, refusedTenants)
			fit(table, grants, refused)
			if _, err := table.Encode(); err != nil {
				t.Fatalf("the table is refused: %v", err)
			}
			for name, out := range refused {
				if out.Reason() == "" || out.Message() == "" {
					t.Fatalf("%s is refused without a reason", name)
				}
			}
			in := map[string]bool{}
			for _, of := range table.Tenants {
				in[of.Name] = true
			}
			for _, of := range tenants {
				if out, is := refusedTenants[of.Name]; !in[of.Name] && (!is || out.Reason() == "") {
					t.Fatalf("tenant %s is neither in the table nor refused", of.Name)
				}
			}
			before = table
		}
	})
}
