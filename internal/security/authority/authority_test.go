package authority

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/must"
)

var shard = identity.Identity{
	Store: identity.Store{Domain: "cluster.local", Namespace: "quotes",
		UID: uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")},
	Role: identity.Shard, Name: "main-0",
}

func TestLeavesNameOneProcess(t *testing.T) {
	now := time.Now()
	made, err := New("quotes", now, 48*time.Hour)
	must.OK(t, err)
	cert, key, err := made.PEM()
	must.OK(t, err)
	a, err := Parse(cert, key) // a Secret holds the authority in this form
	if err != nil || !a.NotAfter().Equal(made.NotAfter()) {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.CertificatePEM())
	for _, tt := range []struct {
		server, client bool
		usages         []x509.ExtKeyUsage
	}{
		{true, true, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}},
		{true, false, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}},
		{false, true, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
	} {
		cert, key, err := a.Issue(Leaf{
			Identity: shard, DNSNames: []string{"main-0.quotes.svc"}, Addresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			Server: tt.server, Client: tt.client, Now: now, Lifetime: LeafLifetime,
		})
		must.OK(t, err)
		pair, err := tls.X509KeyPair(cert, key)
		must.OK(t, err)
		if id, err := identity.OfCertificate(pair.Leaf); err != nil || id != shard {
			t.Error(id, err)
		}
		if !pair.Leaf.NotAfter.Equal(a.NotAfter()) {
			t.Errorf("a leaf lasts until %v, its authority until %v", pair.Leaf.NotAfter, a.NotAfter())
		}
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}})
			if (err == nil) != (usage == tt.usages[0] || usage == tt.usages[len(tt.usages)-1]) {
				t.Errorf("%+v, usage %v: %v", tt, usage, err)
			}
		}
		hourBehind := x509.VerifyOptions{Roots: roots, KeyUsages: tt.usages[:1], CurrentTime: now.Add(-time.Hour)}
		if _, err := pair.Leaf.Verify(hourBehind); err != nil {
			t.Errorf("a process whose clock is an hour behind: %v", err)
		}
		for _, host := range []string{"main-0.quotes.svc", "127.0.0.1"} {
			if err := pair.Leaf.VerifyHostname(host); err != nil {
				t.Error(err)
			}
		}
		if _, err := Parse(cert, key); err == nil || !strings.Contains(err.Error(), "may sign no others") {
			t.Error(err)
		}
	}
}

func TestInvalidAuthorities(t *testing.T) {
	a, errA := New("a", time.Now(), Lifetime)
	b, errB := New("b", time.Now(), Lifetime)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	cert, key, _ := a.PEM()
	_, otherKey, _ := b.PEM()
	for name, tt := range map[string]struct{ cert, key []byte }{
		"nothing":          {nil, nil},
		"no key":           {cert, nil},
		"a key of another": {cert, otherKey},
		"swapped":          {key, cert},
		"two certificates": {append(append([]byte{}, cert...), cert...), key},
		"half a key":       {cert, key[:len(key)/2]},
		"half of it":       {cert[:len(cert)/2], key},
	} {
		if _, err := Parse(tt.cert, tt.key); err == nil {
			t.Errorf("%s is taken", name)
		} else if strings.Contains(err.Error(), string(key[40:60])) {
			t.Errorf("%s: the error holds the key", name)
		}
	}
	if _, _, err := a.Issue(Leaf{Identity: shard, Now: time.Now(), Lifetime: time.Hour}); err == nil {
		t.Error("a leaf for nothing is made")
	}
	if _, _, err := a.Issue(Leaf{Server: true, Now: time.Now(), Lifetime: time.Hour}); err == nil {
		t.Error("a leaf for nobody is made")
	}
}
