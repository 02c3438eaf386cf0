package recordgrant

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/security/access"
)

// If somebody removes keys from a ConfigMap, the next table does not contain them, not even if the operator has just
// started. If the ConfigMap cannot be read or parsed, the last known keys remain in use.
func TestRemovedKeysAreNoLongerUsed(t *testing.T) {
	for name, c := range map[string]struct {
		keys string
		err  error
		kept bool
	}{
		"the ConfigMap is deleted":       {"", apierrors.NewNotFound(schema.GroupResource{}, "keys"), false},
		"it has no jwks.json":            {"", nil, false},
		"the set is empty":               {`{"keys": []}`, nil, false},
		"no key may sign":                {`{"keys": [{"kty": "oct", "k": "AA", "kid": "k"}]}`, nil, false},
		"it is no set":                   {`{"error": "later"}`, nil, true},
		"it is no JSON":                  {`<html>`, nil, true},
		"the API server does not answer": {"", apierrors.NewInternalError(errors.New("etcd")), true},
	} {
		for _, fresh := range []bool{false, true} {
			p := newPlays(t)
			p.issuers = []v1alpha1.TokenIssuer{{URL: "https://idp.example.org",
				KeysFrom: &v1alpha1.KeysFrom{ConfigMapName: "keys"}}}
			p.add("prod", "people", 1)
			p.grants[0].Spec.Subjects = []v1alpha1.GrantSubject{{Kind: v1alpha1.GrantOIDC, Issuer: p.issuers[0].URL, Name: "x"}}
			now, cluster := time.Unix(1_800_000_000, 0), p.keys
			started := func() *Reconciler {
				r := p.reconciler()
				r.Now = func() time.Time { return now }
				r.Keys = func(context.Context) (access.Issuer, error) {
					return access.Issuer{URL: "https://kubernetes.default.svc", ServiceAccounts: true, Keys: cluster}, nil
				}
				return r
			}
			r := started()
			if got := p.grantsIn(t, r); len(got) != 1 {
				t.Fatalf("at first, in the table are %q", got)
			}
			if now = now.Add(time.Hour); fresh {
				r = started()
			}
			p.keys, p.noKeys = []byte(c.keys), c.err
			if got := p.grantsIn(t, r); len(got) == 1 != c.kept {
				t.Errorf("%s, just started is %v: in the table are %q", name, fresh, got)
			}
			if got := p.compiledOf(&p.grants[0]); (got.Reason == "IssuerUnknown") == c.kept {
				t.Errorf("%s, just started is %v: %s: %s", name, fresh, got.Reason, got.Message)
			}
		}
	}
}

// TestReasonForMissingKeysIsReported checks that the message of an earlier failure disappears when the keys of an
// issuer are removed.
func TestReasonForMissingKeysIsReported(t *testing.T) {
	p := newPlays(t)
	issuer := &v1alpha1.TokenIssuer{URL: "https://idp.example.org", KeysFrom: &v1alpha1.KeysFrom{ConfigMapName: "keys"}}
	now, s, r := time.Unix(1_800_000_000, 0), &keySource{}, p.reconciler()
	r.Now = func() time.Time { return now }
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{apierrors.NewInternalError(errors.New("etcd")), "etcd"},
		{apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, "keys"), "there is no ConfigMap"},
		// The last successful answer was that there is no ConfigMap.
		{apierrors.NewInternalError(errors.New("etcd")), "there is no ConfigMap"},
	} {
		p.noKeys = c.err
		if _, failed := s.current(t.Context(), r, "prod", issuer); !strings.Contains(failed, c.want) {
			t.Errorf("%v: %q, want %q", c.err, failed, c.want)
		}
		now = now.Add(time.Hour)
	}
}
