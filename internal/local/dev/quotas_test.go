package dev

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/security/access"
)

// Quotas apply in a running store, both through the gateway and directly at the shard. If a rate is exceeded, the Go
// client waits, within its deadline. If stored data exceeds a quota, the client reports an error immediately.
func TestTheClientWaitsForRatesAndReportsWhatIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startGranted(t, "a-1", "b-1")
		c := callTLS(t, g.Dev, false)
		const calls = 20
		everything := []access.Grant{toCertificate("anybody", access.Groups{All: true}, allVerbs...)}
		everything[0].Subjects = []access.Subject{{Kind: access.Anybody}}
		g.set(access.Table{Grants: everything, Tenants: []access.Tenant{{Name: "team-a", Prefix: "a-",
			Quotas: access.Quotas{CallsPerSecond: calls}}}})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		limited := func(key client.Key) error { // waits until the shard has the table
			short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			_, err := c.Get(short, key, nil)
			return err
		}
		var exceeded *client.Error
		var began time.Time // start of the first call after the quota was used up
		last := func() error {
			began = time.Now()
			return limited(client.Key{ID: 1, Group: "a-1"})
		}
		for !errors.As(last(), &exceeded) || !errors.Is(exceeded, client.ErrQuotaExceeded) {
			if ctx.Err() != nil {
				t.Fatal("the quota does not hold")
			}
		}
		if exceeded.RetryAfter <= 0 || exceeded.Metadata["tenant"] != "team-a" ||
			exceeded.Metadata["quota"] != "callsPerSecond" || errors.Is(exceeded, client.ErrOverloaded) {
			t.Errorf("%v, %+v", exceeded, exceeded)
		}
		for range calls {
			if _, err := c.Put(ctx, client.Key{ID: 1, Group: "a-1"}, []byte("x"), nil); err != nil {
				t.Fatalf("the client does not wait for the rate: %v", err)
			}
		}
		if took := time.Since(began); took < time.Second/4 {
			t.Errorf("%d calls took %v, of %d in a second", calls, took, calls)
		}
		if _, err := c.Put(ctx, client.Key{ID: 1, Group: "b-1"}, []byte("x"), nil); err != nil {
			t.Errorf("another tenant: %v", err)
		}

		g.set(access.Table{Grants: everything, Tenants: []access.Tenant{{Name: "team-a", Prefix: "a-",
			Quotas: access.Quotas{Records: 2}}}})
		var stored error
		for id := int64(10); stored == nil && ctx.Err() == nil; id++ {
			_, stored = c.Put(ctx, client.Key{ID: id, Group: "a-1"}, []byte("x"), nil)
		}
		if !errors.As(stored, &exceeded) || !errors.Is(stored, client.ErrQuotaExceeded) || exceeded.RetryAfter != 0 ||
			errors.Is(stored, client.ErrOutcomeUnknown) {
			t.Fatalf("%v", stored)
		}
		out := c.BatchPut(ctx, []client.PutItem{{Key: client.Key{ID: 1000, Group: "a-1"}},
			{Key: client.Key{ID: 1000, Group: "b-1"}}, {Key: client.Key{ID: 1, Group: "a-1"}}})
		if !errors.Is(out[0].Err, client.ErrQuotaExceeded) || out[1].Err != nil || out[2].Err != nil {
			t.Errorf("%v, %v, %v", out[0].Err, out[1].Err, out[2].Err)
		}
	})
}
