package operator

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// keySet is what an API server publishes: a key that signs, and others.
func keySet(t *testing.T, ids ...string) []byte {
	t.Helper()
	var set jose.JSONWebKeySet
	for _, id := range ids {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id, Algorithm: "ES256", Use: "sig"})
	}
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: "other", Algorithm: "ES384", Use: "sig"})
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTheIssuerOfTheClusterIsReadAgain(t *testing.T) {
	now, asked, away := time.Now(), 0, errors.New("the API server is away")
	fails, keys := error(nil), keySet(t, "one")
	c := &ClusterIssuer{now: func() time.Time { return now }, get: func(_ context.Context, path string) ([]byte, error) {
		asked++
		if path == "/openid/v1/jwks" {
			return keys, fails
		}
		return []byte(`{"issuer": "https://kubernetes.default.svc"}`), fails
	}}
	fails = away
	if _, err := c.Issuers(t.Context()); !errors.Is(err, away) {
		t.Fatalf("it was never read: %v", err)
	}
	fails = nil
	has := func(want string) {
		t.Helper()
		all, err := c.Issuers(t.Context())
		if err != nil || len(all) != 1 || all[0].URL != "https://kubernetes.default.svc" || !all[0].ServiceAccounts {
			t.Fatalf("%+v, %v", all, err)
		}
		if text := string(all[0].Keys); !strings.Contains(text, `"`+want+`"`) || strings.Contains(text, "other") {
			t.Errorf("the keys are %s, and must be %s", text, want)
		}
	}
	has("one")
	before := asked
	has("one")
	if asked != before {
		t.Error("it is asked again at once")
	}
	keys = keySet(t, "two")
	now = now.Add(issuersAge)
	has("two")
	now, fails = now.Add(24*time.Hour), away // the last keys stay
	has("two")
	fails = nil
	for _, bad := range []string{"", "{", `{"keys": []}`, `{"keys": [{"kid": "a", "alg": "HS256", "kty": "oct", "k": "AA"}]}`, `{"keys": [{"kid": "a", "alg": "ES256", "kty": "EC"}]}`} {
		keys = []byte(bad)
		if _, err := (&ClusterIssuer{now: c.now, get: c.get}).Issuers(t.Context()); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
