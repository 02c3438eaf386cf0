package trust

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/test/must"
)

// bundleOf creates an authority and returns its certificate in PEM.
func bundleOf(t *testing.T, name string) []byte {
	t.Helper()
	a, err := authority.New(name, time.Now(), authority.Lifetime)
	must.OK(t, err)
	return a.CertificatePEM()
}

// A store changes from the operator's authorities to those of a source, and then to those of another source. After
// each step the test checks which authorities are trusted, which of them have keys, and whether an interrupted change
// is recognized.
func TestAuthoritiesOfOtherSources(t *testing.T) {
	store := &v1alpha1.RecordStore{}
	own, err := NewAuthorities(nil, store, time.Now())
	must.OK(t, err)
	a, b := bundleOf(t, "a"), bundleOf(t, "b")
	foundA := &Found{Source: v1alpha1.TLSFromCertManager, Bundle: a, ClientBundle: a}
	foundB := &Found{Source: v1alpha1.TLSFromCertManager, Bundle: b, ClientBundle: b}
	differs := func(as *Authorities, which Which, found *Found) bool {
		t.Helper()
		out, err := as.Differs(which, found)
		must.OK(t, err)
		return out
	}
	withNext := func(as *Authorities, found *Found) *Authorities {
		t.Helper()
		out, err := as.WithNext(found, store, time.Now())
		if err == nil {
			out, err = parse(out.Data())
		}
		must.OK(t, err)
		return out
	}
	if differs(own, Current, nil) || !differs(own, Current, foundA) {
		t.Error("the operator's own differ from what they are, or not from those of a source")
	}
	next := withNext(own, foundA)
	if next.Source(Current) != v1alpha1.TLSFromOperator || next.Source(Next) != v1alpha1.TLSFromCertManager ||
		differs(next, Next, foundA) || !differs(next, Next, foundB) || !differs(next, Next, nil) {
		t.Errorf("%s and then %s", next.Source(Current), next.Source(Next))
	}
	trusting, issuing := State{Phase: v1alpha1.TLSTrusting}.InUse(), State{Phase: v1alpha1.TLSIssuing}.InUse()
	bundle, _ := next.Bundles(trusting)
	if want := slices.Concat(own.data[workload.KeyBundle], a); !bytes.Equal(bundle, want) {
		t.Errorf("while both are trusted: %s", bundle)
	}
	if _, err := next.issuer(issuing, false); !errors.Is(err, errNoKey) ||
		next.Issuer(issuing) != v1alpha1.TLSFromCertManager {
		t.Errorf("the key of a source's authority: %v", err)
	}

	// The operator starts a change of authorities. Then the spec names another issuer, and the operator stops after it
	// has written the Secret but before it has written the status.
	status := &v1alpha1.TLSStatus{Phase: v1alpha1.TLSIssuing}
	if status.Bundle, status.ClientBundle, err = next.Hashes(issuing); err != nil {
		t.Fatal(err)
	}
	merged := withNext(next.Merged(), foundB)
	if bundle, _ = merged.Bundles(State{}.InUse()); !bytes.Equal(bundle, slices.Concat(own.data[workload.KeyBundle], a)) {
		t.Errorf("merged: %s", bundle)
	}
	if next.isUnrecorded(status) || !merged.isUnrecorded(status) {
		t.Error("a change that was cut off is not seen, or one is seen that was not")
	}
	merged.unrecorded = true
	if !differs(merged, Next, foundB) {
		t.Error("a change that was cut off goes on to issue before processes trust the next authorities")
	}
	settled, err := parse(merged.Promoted().Data())
	must.OK(t, err)
	if settled.Source(Current) != v1alpha1.TLSFromCertManager || settled.HasNext() || differs(settled, Current, foundB) ||
		len(settled.Data()) != 3 {
		t.Errorf("settled: %d keys, %s", len(settled.Data()), settled.Source(Current))
	}
	back := withNext(settled, nil).Promoted()
	if back.Source(Current) != v1alpha1.TLSFromOperator || len(back.Data()) != 4 {
		t.Errorf("back: %d keys, %s", len(back.Data()), back.Source(Current))
	}
}

func TestUnionHasEachAuthorityOnce(t *testing.T) {
	a, b := bundleOf(t, "a"), bundleOf(t, "b")
	one, err := union(slices.Concat(a, b, a))
	must.OK(t, err)
	two, err := union(slices.Concat(b, []byte("\n"), a))
	if err != nil || !bytes.Equal(one, two) || bytes.Count(one, []byte("BEGIN")) != 2 {
		t.Errorf("%s and %s: %v", one, two, err)
	}
	if none, err := union([]byte("\n\n")); none != nil || err != nil {
		t.Errorf("%s: %v", none, err)
	}
}
