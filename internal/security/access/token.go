package access

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
)

// algorithms are the signature algorithms that are accepted in tokens. Each key can be used with only one of them,
// which follows from the type of the key.
var algorithms = []jose.SignatureAlgorithm{jose.ES256, jose.RS256}

const (
	tokenBytesMax = 12 << 10
	callersKept   = 4096 // maximum number of callers in a CallerCache
	rsaBitsMin    = 2048
	accountPrefix = "system:serviceaccount:"
	// expiryMax limits how long a verified token is accepted without being verified again. It applies even to tokens
	// that expire later, because the key of a token may be withdrawn.
	expiryMax = 24 * time.Hour
)

// issuer is an issuer of tokens in its compiled form.
type issuer struct {
	url             string
	serviceAccounts bool
	groupsClaim     string
	audiences       []string
	keys            map[string]*oidc.StaticKeySet // keys by their ids
}

// takeIssuers checks the issuers of a table, and adds them to c.
func (c *Compiled) takeIssuers(t *Table) error {
	if len(t.Issuers) > issuersMax {
		return bad("issuers", "has %d: at most %d are allowed", len(t.Issuers), issuersMax)
	}
	if len(t.Issuers) > 0 || t.Audience != "" {
		if err := text("audience", t.Audience, textBytesMax); err != nil {
			return fmt.Errorf("%w: give that which tokens for this store are made for, as %s", err, audienceExample)
		}
	}
	for n := range t.Issuers {
		from, field := &t.Issuers[n], fmt.Sprintf("issuers[%d]", n)
		if err := text(field+".url", from.URL, textBytesMax); err != nil {
			return err
		}
		if u, err := url.Parse(from.URL); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			return bad(field+".url", "%.200q is no URL, such as https://kubernetes.default.svc", from.URL)
		}
		if c.issuers[from.URL] != nil {
			return bad(field+".url", "%.200q is given twice", from.URL)
		}
		if from.ServiceAccounts && from.GroupsClaim != "" {
			return bad(field+".groupsClaim", "is %.80q, and ServiceAccounts have no groups", from.GroupsClaim)
		}
		if len(from.Audiences) > audiencesMax {
			return bad(field+".audiences", "has %d: at most %d are allowed", len(from.Audiences), audiencesMax)
		}
		for i, audience := range from.Audiences {
			if err := text(fmt.Sprintf("%s.audiences[%d]", field, i), audience, textBytesMax); err != nil {
				return err
			}
		}
		made := &issuer{url: from.URL, serviceAccounts: from.ServiceAccounts, groupsClaim: from.GroupsClaim,
			keys: map[string]*oidc.StaticKeySet{}}
		if made.audiences = from.Audiences; len(made.audiences) == 0 {
			made.audiences = []string{t.Audience}
		}
		if made.groupsClaim == "" {
			made.groupsClaim = defaultGroups
		}
		if err := made.takeKeys(field+".keys", from.Keys); err != nil {
			return err
		}
		c.issuers[from.URL] = made
	}
	return nil
}

// takeKeys parses the issuer's keys from a JSON Web Key Set.
func (i *issuer) takeKeys(field string, encoded json.RawMessage) error {
	if len(encoded) > keysBytesMax {
		return bad(field, "has %d bytes, at most %d are allowed", len(encoded), keysBytesMax)
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(encoded, &set); err != nil {
		return bad(field, "is no JSON Web Key Set: %v", err)
	}
	for n, key := range set.Keys {
		field := fmt.Sprintf("%s.keys[%d]", field, n)
		if err := checkKey(field, key); err != nil {
			return err
		}
		if i.keys[key.KeyID] != nil {
			return bad(field+".kid", "%.80q is given twice", key.KeyID)
		}
		i.keys[key.KeyID] = &oidc.StaticKeySet{PublicKeys: []crypto.PublicKey{key.Key}}
	}
	if len(i.keys) == 0 {
		return bad(field, "has no key")
	}
	return nil
}

// checkKey returns an error if a key must not be used to verify tokens.
func checkKey(field string, key jose.JSONWebKey) error {
	if err := text(field+".kid", key.KeyID, textBytesMax); err != nil {
		return err
	}
	algorithm, err := algorithmOf(key.Key)
	switch {
	case err != nil:
		return bad(field, "(%.80q) %v", key.KeyID, err)
	case key.Use != "" && key.Use != "sig":
		return bad(field+".use", "is %.80q: must be sig, or left out", key.Use)
	case key.Algorithm != "" && key.Algorithm != string(algorithm):
		return bad(field+".alg", "is %.80q: must be %s, or left out", key.Algorithm, algorithm)
	}
	return nil
}

// ErrNoKeys means that the key set of an issuer is valid, but contains no key that may sign tokens. If the text is
// not a key set at all, the error is a different one.
var ErrNoKeys = errors.New("no keys")

// UsableKeys returns the part of a JSON Web Key Set that consists of keys that may sign tokens. It leaves out other
// keys that an issuer may have. It sorts the keys by id, so that equal sets result in equal bytes. Its errors wrap
// ErrTable. If the set is valid but has no key that may sign tokens, the error also wraps ErrNoKeys.
func UsableKeys(encoded json.RawMessage) (json.RawMessage, error) {
	var set, usable jose.JSONWebKeySet
	if err := json.Unmarshal(encoded, &set); err != nil {
		return nil, bad("keys", "is no JSON Web Key Set: %v", err)
	}
	for _, key := range set.Keys {
		if checkKey("keys", key) == nil {
			usable.Keys = append(usable.Keys, key)
		}
	}
	switch {
	case set.Keys == nil: // JSON that has no list of keys is not a key set
		return nil, bad("keys", "is no JSON Web Key Set: it has no keys")
	case len(usable.Keys) == 0:
		return nil, fmt.Errorf("%w: keys: %w: none of %d keys is one for ES256 or RS256 with a key id", ErrTable, ErrNoKeys,
			len(set.Keys))
	}
	slices.SortFunc(usable.Keys, func(a, b jose.JSONWebKey) int { return strings.Compare(a.KeyID, b.KeyID) })
	out, err := json.Marshal(usable)
	if err != nil {
		return nil, bad("keys", "%v", err)
	}
	return out, nil
}

// algorithmOf returns the only algorithm that may be used with a key.
func algorithmOf(key any) (jose.SignatureAlgorithm, error) {
	switch key := key.(type) {
	case *rsa.PublicKey:
		if key.N.BitLen() < rsaBitsMin {
			return "", fmt.Errorf("has %d bits: at least %d are needed", key.N.BitLen(), rsaBitsMin)
		}
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() {
			return "", fmt.Errorf("is of the curve %s: must be P-256, for ES256", key.Params().Name)
		}
		return jose.ES256, nil
	}
	return "", fmt.Errorf("is a %T: must be a public key for ES256 or RS256", key)
}

// ErrToken means that a token is not accepted. All errors about tokens wrap it. Their messages contain nothing from
// the token except names.
var ErrToken = errors.New("the token is not taken")

// UnknownKeyError means that a token was signed with a key that is not in the table's key set for its issuer.
type UnknownKeyError struct{ Issuer, Key string }

// Error implements error.
func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("the store has no key %.80q of the issuer %s", e.Key, e.Issuer)
}

// Token verifies a token and returns the caller that it identifies. It caches the result, and sends no request to the
// issuer. Its errors wrap ErrToken.
func (c *Compiled) Token(raw string, now time.Time) (Caller, error) {
	fail := func(err error) (Caller, error) { return Caller{}, fmt.Errorf("%w: %w", ErrToken, err) }
	if !c.HasIssuers() {
		return fail(errors.New("the store has no issuers of tokens"))
	}
	if len(raw) > tokenBytesMax {
		return fail(fmt.Errorf("it has %d bytes, at most %d are allowed", len(raw), tokenBytesMax))
	}
	if caller, ok := c.tokens.Get(raw); ok && !now.After(caller.Expires) {
		return caller, nil
	}
	parsed, err := jose.ParseSignedCompact(raw, algorithms)
	if err != nil {
		return fail(fmt.Errorf("it is no token signed by ES256 or RS256: %w", err))
	}
	var named struct {
		Issuer string `json:"iss"`
	}
	if err := json.Unmarshal(parsed.UnsafePayloadWithoutVerification(), &named); err != nil {
		return fail(errors.New("it holds no claims"))
	}
	from := c.issuers[named.Issuer]
	if from == nil {
		return fail(fmt.Errorf("its issuer %.200q is none of this store's", named.Issuer))
	}
	id := parsed.Signatures[0].Header.KeyID
	key := from.keys[id]
	if key == nil {
		return fail(&UnknownKeyError{Issuer: from.url, Key: id})
	}
	verifier := oidc.NewVerifier(from.url, key, &oidc.Config{
		SkipClientIDCheck: true, SupportedSigningAlgs: []string{oidc.ES256, oidc.RS256}, Now: func() time.Time { return now },
	})
	token, err := verifier.Verify(context.Background(), raw)
	if err != nil {
		return fail(err)
	}
	if !slices.ContainsFunc(token.Audience, func(a string) bool { return slices.Contains(from.audiences, a) }) {
		return fail(fmt.Errorf("it is for the audience %.200q, and must be for %.200q", token.Audience, from.audiences))
	}
	caller, err := from.caller(token)
	if err != nil {
		return fail(err)
	}
	caller.Expires = token.Expiry
	if most := now.Add(expiryMax); most.Before(caller.Expires) {
		caller.Expires = most
	}
	c.tokens.Put(raw, caller)
	return caller, nil
}

// caller returns the caller that a verified token identifies.
func (i *issuer) caller(token *oidc.IDToken) (Caller, error) {
	if i.serviceAccounts {
		namespace, name, ok := strings.Cut(strings.TrimPrefix(token.Subject, accountPrefix), ":")
		if !ok || !strings.HasPrefix(token.Subject, accountPrefix) || namespace == "" || name == "" ||
			strings.Contains(name, ":") {
			return Caller{}, fmt.Errorf("its subject %.200q is no ServiceAccount", token.Subject)
		}
		return account(namespace, name), nil
	}
	if token.Subject == "" {
		return Caller{}, errors.New("it has no subject")
	}
	claims := map[string]json.RawMessage{}
	if err := token.Claims(&claims); err != nil {
		return Caller{}, err
	}
	var groups []string
	if claim, there := claims[i.groupsClaim]; there {
		var one string
		if err := json.Unmarshal(claim, &groups); err != nil {
			if err := json.Unmarshal(claim, &one); err != nil {
				return Caller{}, fmt.Errorf("its claim %.80q is no list of names", i.groupsClaim)
			}
			groups = []string{one}
		}
	}
	caller := user(i.url, token.Subject, groups)
	if len(caller.text) > CallerBytesMax {
		return Caller{}, fmt.Errorf("it names %d groups, which have more than %d bytes together", len(groups), CallerBytesMax)
	}
	return caller, nil
}

// CallerCache maps strings that identify callers, such as tokens, to these callers. It exists because the
// verification of a token takes 50 to 150 µs. It is safe for concurrent use.
type CallerCache struct {
	mu   sync.RWMutex
	kept map[string]Caller
}

// Get returns the caller that a string identifies. It returns false if the cache does not contain the string.
func (t *CallerCache) Get(text string) (Caller, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	caller, ok := t.kept[text]
	return caller, ok
}

// Put adds a caller and the string that identifies it. If the cache is full, Put first empties it; entries that are
// still in use are soon added again.
func (t *CallerCache) Put(text string, caller Caller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept == nil || len(t.kept) >= callersKept {
		t.kept = map[string]Caller{}
	}
	t.kept[strings.Clone(text)] = caller
}
