package identity

import (
	"crypto/x509"
	"errors"
	"net/url"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/test/must"
)

var store = Store{Domain: "cluster.local", Namespace: "quotes",
	UID: uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")}

func TestNamesComeBack(t *testing.T) {
	const base = "spiffe://cluster.local/ns/quotes/store/6ba7b810-9dad-11d1-80b4-00c04fd430c8/"
	for uri, want := range map[string]Identity{
		base + "gateway":         {Store: store, Role: Gateway},
		base + "operator":        {Store: store, Role: Operator},
		base + "shard/main-0-0":  {Store: store, Role: Shard, Name: "main-0-0"},
		base + "etcd":            {Store: store, Role: Etcd},
		base + "archive":         {Store: store, Role: Archive},
		base + "admin/ada":       {Store: store, Role: Admin, Name: "ada"},
		base + "client/reader.2": {Store: store, Role: Client, Name: "reader.2"},
	} {
		got, err := Parse(uri)
		if err != nil || got != want {
			t.Errorf("%s: %v, %v", uri, got, err)
		}
		if got.String() != uri {
			t.Errorf("%s came back as %s", uri, got)
		}
		if got.IsComponent() != (want.Role != Client && want.Role != Admin && want.Role != Archive) {
			t.Errorf("%s: component %v", uri, got.IsComponent())
		}
	}
}

func TestOtherNamesAreRefused(t *testing.T) {
	const uid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	for _, uri := range []string{
		"", "quotes", "https://cluster.local/ns/quotes/store/" + uid + "/gateway",
		"spiffe://cluster.local", "spiffe://cluster.local/ns/quotes", "spiffe://cluster.local/ns/quotes/store/" + uid,
		"spiffe://Cluster.local/ns/quotes/store/" + uid + "/gateway",
		"spiffe://cluster.local/sa/quotes/store/" + uid + "/gateway",
		"spiffe://cluster.local/ns/quotes/pool/" + uid + "/gateway",
		"spiffe://cluster.local/ns/quotes/store/none/gateway",
		"spiffe://cluster.local/ns/quotes/store/00000000-0000-0000-0000-000000000000/gateway",
		// Only the lower-case spelling is valid.
		"spiffe://cluster.local/ns/quotes/store/6BA7B810-9DAD-11D1-80B4-00C04FD430C8/gateway",
		"spiffe://cluster.local/ns/quotes/store/" + uid + "/gateway/one",
		"spiffe://cluster.local/ns/quotes/store/" + uid + "/gateway/",
		"spiffe://cluster.local/ns/quotes/store/" + uid + "/archive/one",
		"spiffe://cluster.local/ns/quotes/store/" + uid + "/shard",
		"spiffe://cluster.local/ns/quotes/store/" + uid + "/shard/a/b",
		"spiffe://cluster.local/ns/quotes/store/" + uid + "/root",
		"spiffe://cluster.local/ns/../store/" + uid + "/gateway",
		"spiffe://cluster.local/ns/quotes/store/" + uid + "/gateway?x=1",
		"spiffe://cluster.local:80/ns/quotes/store/" + uid + "/gateway",
	} {
		if got, err := Parse(uri); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v, %v", uri, got, err)
		}
	}
	for _, i := range []Identity{
		{}, {Store: store}, {Store: store, Role: "root"}, {Store: store, Role: Shard},
		{Store: store, Role: Shard, Name: "a/b"},
		{Store: store, Role: Gateway, Name: "one"}, {Store: Store{Domain: "A b", Namespace: "q", UID: store.UID},
			Role: Gateway},
		{Store: Store{Domain: "a", Namespace: "q"}, Role: Gateway},
		{Store: Store{Domain: "a", UID: store.UID}, Role: Gateway},
		{Store: store, Role: Client, Name: ".."},
	} {
		if id, err := i.ID(); !errors.Is(err, ErrName) {
			t.Errorf("%v: %v, %v", i, id, err)
		}
	}
}

func TestACertificateHasOneName(t *testing.T) {
	one := Identity{Store: store, Role: Gateway}
	uri, err := url.Parse(one.String())
	must.OK(t, err)
	if got, err := OfCertificate(&x509.Certificate{URIs: []*url.URL{uri}}); err != nil || got != one {
		t.Error(got, err)
	}
	for _, uris := range [][]*url.URL{nil, {uri, uri}} {
		if _, err := OfCertificate(&x509.Certificate{URIs: uris}); !errors.Is(err, ErrName) {
			t.Error(uris, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("spiffe://cluster.local/ns/quotes/store/6ba7b810-9dad-11d1-80b4-00c04fd430c8/shard/a")
	f.Fuzz(func(t *testing.T, uri string) {
		i, err := Parse(uri)
		if err == nil && i.String() != uri {
			t.Errorf("%q is read as %s", uri, i)
		}
	})
}
