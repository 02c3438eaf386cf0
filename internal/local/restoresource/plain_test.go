package restoresource

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/bubbletest"
)

// On Kubernetes, each process has certificates, and a file that says whether the store uses them. Shards of a store
// without TLS connect in plaintext, and its source answers them.
func TestAStoreWithoutTLSIsRestored(t *testing.T) {
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		a, err := authority.New("store", time.Now(), authority.Lifetime)
		if err != nil {
			t.Fatal(err)
		}
		of := identity.Store{Domain: "cluster.local", Namespace: "prod", UID: newStore}
		cert, key, err := a.Issue(authority.Leaf{Identity: identity.Identity{Store: of, Role: identity.Archive},
			Server: true, Client: true, Now: time.Now(), Lifetime: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		s := newSite(t, network)
		for mode, want := range map[certs.Mode]codes.Code{certs.Plaintext: codes.OK, certs.Both: codes.OK,
			certs.Required: codes.Unavailable} {
			own, err := certs.InMemory(certs.Config{}, map[string][]byte{certs.CertificateFile: cert, certs.KeyFile: key,
				certs.BundleFile: a.CertificatePEM(), certs.ModeFile: []byte(mode)})
			if err != nil {
				t.Fatal(err)
			}
			s.own = own
			s.start()
			_, manifest, err := call(t.Context(), s.dial(nil), startOf(s.model.Groups[0]))
			if status.Code(err) != want || err == nil && len(manifest) == 0 {
				t.Errorf("mode %s: a manifest of %d bytes, %v, want %v", mode, len(manifest), err, want)
			}
			s.stop()
			own.Close()
		}
	})
}
