package registry_test

import (
	"testing"
	"testing/synctest"

	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
)

// TestLedgersOfTenants checks that a tenant's ledger, which records the tenant's usage in etcd, is replaced only if
// it has not changed since it was read. A read also returns the number of the tenant's groups. A store that does not
// exist has no ledgers, and ledgers do not appear in views.
func TestLedgersOfTenants(t *testing.T) { synctest.Test(t, ledgersOfTenants) }

func ledgersOfTenants(t *testing.T) {
	ctx := testContext(t)
	client := memetcdtest.New(t).Client(t)
	store := newStore(t, client)
	put := func(tenant, value string, revision int64, want bool) {
		t.Helper()
		if done, err := store.PutLedger(ctx, tenant, []byte(value), revision); err != nil || done != want {
			t.Fatalf("%s in the place of revision %d: %v, %v; wanted is %v", value, revision, done, err, want)
		}
	}
	put("a", "none", 0, false)
	mustInit(t, ctx, store, namedMeta())
	for _, name := range []string{"a-1", "a-2", "ab", "b-1"} {
		led(t, ctx, store, name, "s")
	}
	put("a", "one", 0, true)
	put("a", "two", 0, false)
	keys := make([]registry.TenantKey, 0, 60)
	// Reading this many ledgers takes more than one transaction.
	for range 29 {
		keys = append(keys, registry.TenantKey{Name: "a", Prefix: "a-"}, registry.TenantKey{Name: "b", Prefix: "b-"})
	}
	found, err := store.Ledgers(ctx, keys)
	if err != nil || len(found) != len(keys) {
		t.Fatalf("%d, %v", len(found), err)
	}
	for i := 0; i < len(found); i += 2 {
		if a, b := found[i], found[i+1]; string(a.Value) != "one" || a.Groups != 2 || a.Revision == 0 || b.Value != nil ||
			b.Groups != 1 || b.Revision != 0 {
			t.Fatalf("%+v, %+v", a, b)
		}
	}
	put("a", "two", found[0].Revision, true)
	put("a", "three", found[0].Revision, false)
	if v, err := store.View(ctx); err != nil || len(v.Groups) != 4 {
		t.Fatalf("%v, %v", v.Groups, err)
	}
	if weights, err := store.Weights(ctx, "of-tenants"); err != nil || len(weights) != 0 {
		t.Errorf("%v, %v", weights, err)
	}
}
