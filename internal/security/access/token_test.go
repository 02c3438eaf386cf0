package access

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// pair is a private key and its id.
type pair struct {
	id      string
	private crypto.Signer
}

func newPair(t testing.TB, id string, curve elliptic.Curve) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return pair{id, key}
}

func keySet(t testing.TB, pairs ...pair) json.RawMessage {
	t.Helper()
	var set jose.JSONWebKeySet
	for _, p := range pairs {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: p.private.Public(), KeyID: p.id})
	}
	out, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func issuerOf(t testing.TB, url string, accounts bool) Issuer {
	t.Helper()
	return Issuer{URL: url, ServiceAccounts: accounts, Keys: keySet(t, newPair(t, "k", elliptic.P256()))}
}

// sign returns a signed token with the given claims.
func sign(t testing.TB, algorithm jose.SignatureAlgorithm, key any, id string, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	made, err := signer.Sign(body)
	if err != nil {
		t.Fatal(err)
	}
	out, err := made.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWhichTokensAreTaken(t *testing.T) {
	const cluster, people, audience = "https://kubernetes.default.svc", "https://id.example.org", "sheaf/prod/quotes"
	now := time.Now()
	one, two, foreign := newPair(t, "one", elliptic.P256()), newPair(t, "two", elliptic.P256()),
		newPair(t, "one", elliptic.P256())
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	byRSA := pair{"rsa", rsaKey}
	c, err := Compile(&Table{Version: 1, Audience: audience, Issuers: []Issuer{
		{URL: cluster, ServiceAccounts: true, Keys: keySet(t, one, byRSA)},
		{URL: people, GroupsClaim: "roles", Keys: keySet(t, two)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	claims := func(change ...any) map[string]any {
		out := map[string]any{"iss": cluster, "aud": []string{audience}, "sub": "system:serviceaccount:prod:loader",
			"exp": now.Add(time.Hour).Unix()}
		for i := 0; i < len(change); i += 2 {
			if out[change[i].(string)] = change[i+1]; change[i+1] == nil {
				delete(out, change[i].(string))
			}
		}
		return out
	}
	es := func(change ...any) string { return sign(t, jose.ES256, one.private, one.id, claims(change...)) }
	user := func(change ...any) string {
		return sign(t, jose.ES256, two.private, two.id, claims(append([]any{"iss", people, "sub", "ada"}, change...)...))
	}
	half := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	public, err := json.Marshal(one.private.Public())
	if err != nil {
		t.Fatal(err)
	}
	good := es()
	parts := strings.Split(good, ".")
	for name, tt := range map[string]struct{ token, who, words string }{
		"a ServiceAccount": {good, "serviceaccount/prod/loader", ""},
		"by RSA":           {sign(t, jose.RS256, rsaKey, "rsa", claims()), "serviceaccount/prod/loader", ""},
		"of two audiences": {es("aud", []string{"x", audience}), "serviceaccount/prod/loader", ""},
		"a user":           {user(), "oidc/https:%2F%2Fid.example.org/ada", ""},
		"a user with groups": {user("roles", []string{"ops", "dev"}), "oidc/https:%2F%2Fid.example.org/ada/ops/dev",
			""},
		"a user with one group": {user("roles", "ops"), "oidc/https:%2F%2Fid.example.org/ada/ops", ""},
		"a user named as an account": {user("sub", "system:serviceaccount:prod:loader"),
			"oidc/https:%2F%2Fid.example.org/system:serviceaccount:prod:loader", ""},
		"groups of another claim": {user("groups", []string{"ops"}), "oidc/https:%2F%2Fid.example.org/ada", ""},
		"groups that are none":    {user("roles", 7), "", "no list of names"},
		"without a signature":     {half(`{"alg":"none"}`) + "." + parts[1] + ".", "", "ES256 or RS256"},
		"by a shared secret": {sign(t, jose.HS256, append(public, make([]byte, 32)...), one.id, claims()), "",
			"ES256 or RS256"},
		"by PS256":                     {sign(t, jose.PS256, rsaKey, "rsa", claims()), "", "ES256 or RS256"},
		"by another key of that id":    {sign(t, jose.ES256, foreign.private, foreign.id, claims()), "", "signature"},
		"by an unknown key":            {sign(t, jose.ES256, foreign.private, "three", claims()), "", `no key "three"`},
		"without a key id":             {sign(t, jose.ES256, one.private, "", claims()), "", `no key ""`},
		"by the key of another issuer": {sign(t, jose.ES256, two.private, two.id, claims()), "", `no key "two"`},
		"changed":                      {parts[0] + "." + half(`{"iss":"`+cluster+`"}`) + "." + parts[2], "", "signature"},
		"for another audience":         {es("aud", []string{"sheaf/prod/other"}), "", "audience"},
		"for a longer audience":        {es("aud", audience+"-2"), "", "audience"},
		"for none":                     {es("aud", nil), "", "audience"},
		"ended":                        {es("exp", now.Add(-time.Second).Unix()), "", "expired"},
		"without an end":               {es("exp", nil), "", "expired"},
		"not yet":                      {es("nbf", now.Add(time.Hour).Unix()), "", "not before"},
		"of an unknown issuer":         {es("iss", "https://other.example.org"), "", "none of this store's"},
		"of no issuer":                 {es("iss", nil), "", "none of this store's"},
		"of no account":                {es("sub", "ada"), "", "no ServiceAccount"},
		"of an account without a name": {es("sub", "system:serviceaccount:prod:"), "", "no ServiceAccount"},
		"empty":                        {"", "", "ES256 or RS256"},
		"no token":                     {"a.b.c", "", "ES256 or RS256"},
		"too long":                     {strings.Repeat("a", tokenBytesMax+1), "", "at most"},
	} {
		for range 2 { // the second time, the token comes from the cache
			who, err := c.Token(tt.token, now)
			switch {
			case tt.who != "" && (err != nil || who.String() != tt.who || who.Expires.Unix() != now.Add(time.Hour).Unix()):
				t.Errorf("%s: %s, %v", name, who.String(), err)
			case tt.who == "" && (!errors.Is(err, ErrToken) || !strings.Contains(err.Error(), tt.words) || who.isKnown()):
				t.Errorf("%s: %s, %v", name, who.String(), err)
			}
		}
	}
	if _, err := c.Token(good, now.Add(2*time.Hour)); !errors.Is(err, ErrToken) ||
		!strings.Contains(err.Error(), "expired") {
		t.Error("a token that was taken before is taken after its end:", err)
	}
	if _, err := c.Token(es("jti", "another"), now.Add(2*time.Hour)); !errors.Is(err, ErrToken) ||
		!strings.Contains(err.Error(), "expired") {
		t.Error("a token is taken for the first time after its end:", err)
	}
}

// TestATokenIsCheckedEachDay checks that a token that is valid for more than a day is verified again after a day.
func TestATokenIsCheckedEachDay(t *testing.T) {
	const cluster, audience = "https://kubernetes.default.svc", "sheaf/prod/quotes"
	key := newPair(t, "one", elliptic.P256())
	c, err := Compile(&Table{Version: 1, Audience: audience, Issuers: []Issuer{{URL: cluster, ServiceAccounts: true,
		Keys: keySet(t, key)}}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	token := sign(t, jose.ES256, key.private, key.id, map[string]any{
		"iss": cluster, "aud": audience, "sub": "system:serviceaccount:prod:loader", "exp": now.Add(365 * 24 * time.Hour).
			Unix(),
	})
	who, err := c.Token(token, now)
	if err != nil || !who.Expires.Equal(now.Add(expiryMax)) {
		t.Fatalf("it is taken until %v: %v", who.Expires, err)
	}
	next := now.Add(expiryMax + time.Hour)
	if who, err = c.Token(token, next); err != nil || !who.Expires.Equal(next.Add(expiryMax)) {
		t.Errorf("a day later it is taken until %v: %v", who.Expires, err)
	}
}

func TestInvalidKeys(t *testing.T) {
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	private, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: newPair(t, "k", elliptic.P256()).private,
		KeyID: "k"}}})
	if err != nil {
		t.Fatal(err)
	}
	same := newPair(t, "k", elliptic.P256())
	for name, tt := range map[string]struct {
		keys  json.RawMessage
		words string
	}{
		"short":         {keySet(t, pair{"k", short}), "1024 bits"},
		"another curve": {keySet(t, newPair(t, "k", elliptic.P384())), "P-384"},
		"no id":         {keySet(t, newPair(t, "", elliptic.P256())), "kid: is required"},
		"an id twice":   {keySet(t, same, same), "given twice"},
		"private":       {private, "must be a public key"},
		"secret":        {json.RawMessage(`{"keys":[{"kty":"oct","kid":"k","k":"AAAA"}]}`), "must be a public key"},
		"no set":        {json.RawMessage(`[]`), "no JSON Web Key Set"},
		"none":          {json.RawMessage(`{}`), "has no key"},
	} {
		_, err := Compile(&Table{Version: 1, Audience: "a", Issuers: []Issuer{{URL: "https://a", Keys: tt.keys}}})
		if !errors.Is(err, ErrTable) || !strings.Contains(err.Error(), tt.words) ||
			!strings.Contains(err.Error(), "issuers[0].keys") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnusableKeysAreLeftOut(t *testing.T) {
	good := newPair(t, "good", elliptic.P256())
	keys, err := UsableKeys(keySet(t, newPair(t, "large", elliptic.P384()), good, newPair(t, "", elliptic.P256())))
	if err != nil {
		t.Fatal(err)
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(keys, &set); err != nil || len(set.Keys) != 1 || set.Keys[0].KeyID != "good" {
		t.Errorf("%s, %v", keys, err)
	}
	for bad, none := range map[string]bool{string(keySet(t, newPair(t, "large", elliptic.P384()))): true,
		`{"keys": []}`: true, `{}`: false, `null`: false, `[]`: false} {
		if _, err := UsableKeys(json.RawMessage(bad)); !errors.Is(err, ErrTable) || errors.Is(err, ErrNoKeys) != none {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func BenchmarkToken(b *testing.B) {
	one := newPair(b, "one", elliptic.P256())
	table := &Table{Version: 1, Audience: "a", Issuers: []Issuer{{URL: "https://a", ServiceAccounts: true,
		Keys: keySet(b, one)}}}
	token := sign(b, jose.ES256, one.private, "one", map[string]any{
		"iss": "https://a", "aud": "a", "sub": "system:serviceaccount:prod:loader", "exp": time.Now().Add(time.Hour).Unix(),
	})
	for name, kept := range map[string]bool{"kept": true, "checked": false} {
		b.Run(name, func(b *testing.B) {
			c, err := Compile(table)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if !kept {
					c.tokens.kept = nil
				}
				if _, err := c.Token(token, time.Now()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
