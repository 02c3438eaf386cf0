package trust

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/certs"
)

// Keys of the Secret with a store's authorities. Certificates of the current ones may be there without their key: then
// they are trusted, and issue nothing.
const (
	keyOfBundle       = "ca.key"
	keyOfClientBundle = "client-ca.key"
	nextPrefix        = "next-" // of the same keys, while the authorities change
	// keyOfSource says who issues by them, as v1alpha1.TLSSource; absent: the operator, which has their keys.
	keyOfSource = "source"
)

// Lifetime bounds of what an operator issues.
const (
	leafLifetime = authority.LeafLifetime
	// renewAt is the share of its lifetime, in thirds, after which a leaf is renewed.
	renewThirds = 2
)

// Authorities are those of one store: of its processes and of its callers, and while they change, the next ones.
type Authorities struct {
	data map[string][]byte // of the Secret
	// cut: Merged authorities were written, and the operator ended before the status said so.
	cut bool
}

// NewAuthorities makes the first authorities of a store.
func NewAuthorities(store *v1alpha1.RecordStore, now time.Time) (*Authorities, error) {
	a := &Authorities{data: map[string][]byte{}}
	return a, a.make("", store, now)
}

// given makes authorities of another source than the operator the ones below a prefix: their certificates alone.
func (a *Authorities) given(prefix string, source v1alpha1.TLSSource, bundle, clientBundle []byte) {
	for _, key := range []string{keyOfBundle, keyOfClientBundle} {
		delete(a.data, prefix+key)
	}
	a.data[prefix+workload.KeyBundle], a.data[prefix+workload.KeyClientBundle] = bundle, clientBundle
	a.data[prefix+keyOfSource] = []byte(source)
}

// GivenAuthorities are the first ones of a store whose certificates another source makes.
func GivenAuthorities(found *Found) *Authorities {
	a := &Authorities{data: map[string][]byte{}}
	a.given("", found.Source, found.Bundle, found.ClientBundle)
	return a
}

// WithNextGiven are the same with those of another source than the operator as the next ones.
func (a *Authorities) WithNextGiven(found *Found) *Authorities {
	out := &Authorities{data: a.Data()}
	out.given(nextPrefix, found.Source, found.Bundle, found.ClientBundle)
	return out
}

// Merged are the current and the next ones together as the current ones, which issue nothing: while authorities change,
// others are to be the next ones.
func (a *Authorities) Merged() *Authorities {
	out := &Authorities{data: map[string][]byte{keyOfSource: a.data[keyOfSource]}}
	if out.data[keyOfSource] == nil {
		delete(out.data, keyOfSource)
	}
	for _, key := range []string{workload.KeyBundle, workload.KeyClientBundle} {
		out.data[key] = slices.Concat(a.data[key], a.data[nextPrefix+key])
	}
	return out
}

// Source of the current authorities, or of the next ones.
func (a *Authorities) Source(which Which) v1alpha1.TLSSource {
	prefix := ""
	if which == Next {
		prefix = nextPrefix
	}
	return cmp.Or(v1alpha1.TLSSource(a.data[prefix+keyOfSource]), v1alpha1.TLSFromOperator)
}

// isCut tells whether these are Merged ones of which the status does not know yet.
func (a *Authorities) isCut(status *v1alpha1.TLSStatus) bool {
	if !a.HasNext() || status.Phase != v1alpha1.TLSTrusting && status.Phase != v1alpha1.TLSIssuing {
		return false
	}
	bundle, err := bundleHash(a.data[workload.KeyBundle])
	clients, err2 := bundleHash(a.data[workload.KeyClientBundle])
	return err == nil && err2 == nil && bundle == status.Bundle && clients == status.ClientBundle
}

// issuing gives which authorities issue in a state.
func (a *Authorities) issuing(told Told) Which {
	if told.IssueBy == Next && a.HasNext() {
		return Next
	}
	return Current
}

// Issuer is the source of the authorities that issue in a state.
func (a *Authorities) Issuer(told Told) v1alpha1.TLSSource { return a.Source(a.issuing(told)) }

// Differs tells whether a source has other authorities than the current ones, or the next ones, are. found is nil for
// the operator.
func (a *Authorities) Differs(which Which, found *Found) (bool, error) {
	if a.cut {
		return true, nil
	}
	if found == nil {
		return a.Source(which) != v1alpha1.TLSFromOperator, nil
	}
	if a.Source(which) != found.Source {
		return true, nil
	}
	prefix := ""
	if which == Next {
		prefix = nextPrefix
	}
	for key, wanted := range map[string][]byte{workload.KeyBundle: found.Bundle,
		workload.KeyClientBundle: found.ClientBundle} {
		is, err := bundleHash(a.data[prefix+key])
		if err != nil {
			return false, fmt.Errorf("%s: %w", prefix+key, err)
		}
		if want, err := bundleHash(wanted); err != nil || is != want {
			return err == nil, err
		}
	}
	return false, nil
}

// make both authorities below a prefix.
func (a *Authorities) make(prefix string, store *v1alpha1.RecordStore, now time.Time) error {
	delete(a.data, prefix+keyOfSource)
	for _, kind := range []struct{ words, cert, key string }{
		{"processes", workload.KeyBundle, keyOfBundle}, {"callers", workload.KeyClientBundle, keyOfClientBundle},
	} {
		name := fmt.Sprintf("%s of RecordStore %s/%s, %s", kind.words, store.Namespace, store.Name, now.UTC().
			Format(time.DateOnly))
		made, err := authority.New(name, now, authority.Lifetime)
		if err != nil {
			return err
		}
		if a.data[prefix+kind.cert], a.data[prefix+kind.key], err = made.PEM(); err != nil {
			return err
		}
	}
	return nil
}

// parse reads the data of the Secret. Errors name the key of the Secret.
func parse(data map[string][]byte) (*Authorities, error) {
	a := &Authorities{data: data}
	for _, key := range []string{workload.KeyBundle, workload.KeyClientBundle} {
		if _, err := bundleHash(data[key]); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	for _, pair := range [][2]string{{workload.KeyBundle, keyOfBundle}, {workload.KeyClientBundle, keyOfClientBundle}} {
		for _, prefix := range []string{"", nextPrefix} {
			if data[prefix+pair[1]] == nil {
				continue
			}
			if _, err := authority.Parse(data[prefix+pair[0]], data[prefix+pair[1]]); err != nil {
				return nil, fmt.Errorf("%s and %s: %w", prefix+pair[0], prefix+pair[1], err)
			}
		}
	}
	return a, nil
}

// Adopted are authorities of which only the certificates are left, with next ones to take their place: new ones, or
// where found is not nil, those.
func Adopted(bundle, clientBundle []byte, found *Found, store *v1alpha1.RecordStore, now time.Time) (*Authorities,
	error) {
	a := &Authorities{data: map[string][]byte{workload.KeyBundle: bundle, workload.KeyClientBundle: clientBundle}}
	if found != nil {
		return a.WithNextGiven(found), nil
	}
	return a, a.make(nextPrefix, store, now)
}

// Data of the Secret. It holds keys.
func (a *Authorities) Data() map[string][]byte { return maps.Clone(a.data) }

// HasNext tells whether the next authorities were made.
func (a *Authorities) HasNext() bool {
	return a.data[nextPrefix+workload.KeyBundle] != nil && a.data[nextPrefix+workload.KeyClientBundle] != nil
}

// WithNext are the same with next ones.
func (a *Authorities) WithNext(store *v1alpha1.RecordStore, now time.Time) (*Authorities, error) {
	out := &Authorities{data: a.Data()}
	return out, out.make(nextPrefix, store, now)
}

// Settled are the next ones alone, as the current ones.
func (a *Authorities) Settled() *Authorities {
	out := &Authorities{data: map[string][]byte{}}
	for _, key := range []string{workload.KeyBundle, keyOfBundle, workload.KeyClientBundle, keyOfClientBundle,
		keyOfSource} {
		if content, there := a.data[nextPrefix+key]; there {
			out.data[key] = content
		}
	}
	return out
}

// Bundles that a state has processes trust, in PEM. Where the next authorities have taken the place of the current ones
// already, these are both.
func (a *Authorities) Bundles(told Told) (bundle, clientBundle []byte) {
	return a.bundle(told, workload.KeyBundle), a.bundle(told, workload.KeyClientBundle)
}

func (a *Authorities) bundle(told Told, key string) []byte {
	var out []byte
	if told.Current || !a.HasNext() {
		out = append(out, a.data[key]...)
	}
	if told.Next && a.HasNext() {
		out = append(out, a.data[nextPrefix+key]...)
	}
	return out
}

// Hashes of the bundles that a state has processes trust.
func (a *Authorities) Hashes(told Told) (bundle, clientBundle string, err error) {
	of, clients := a.Bundles(told)
	if bundle, err = bundleHash(of); err != nil {
		return "", "", err
	}
	clientBundle, err = bundleHash(clients)
	return bundle, clientBundle, err
}

// errNoKey is the error of an authority that is trusted, and whose key is gone.
var errNoKey = errors.New(
	"the key of the authority is missing: certificates are made again when the next authorities issue")

// issuer gives the authority that issues, of processes or of callers. Errors may be errNoKey.
func (a *Authorities) issuer(told Told, caller bool) (*authority.Authority, error) {
	prefix := a.issuingPrefix(told)
	cert, key := workload.KeyBundle, keyOfBundle
	if caller {
		cert, key = workload.KeyClientBundle, keyOfClientBundle
	}
	if a.data[prefix+key] == nil {
		return nil, errNoKey
	}
	return authority.Parse(a.data[prefix+cert], a.data[prefix+key])
}

func (a *Authorities) issuingPrefix(told Told) string {
	if a.issuing(told) == Next {
		return nextPrefix
	}
	return ""
}

// bundleHash is certs.BundleHash of authorities in PEM, as processes tell it.
func bundleHash(bundle []byte) (string, error) {
	certificates, err := certificatesOf(bundle)
	if err != nil {
		return "", err
	}
	return certs.BundleHash(certificates), nil
}

// certificatesOf reads PEM of certificates and nothing else, at least one.
func certificatesOf(text []byte) (all []*x509.Certificate, err error) {
	for rest := text; len(bytes.TrimSpace(rest)) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("what follows certificate %d is no certificate in PEM", len(all))
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(all)+1, err)
		}
		all = append(all, cert)
	}
	if len(all) == 0 {
		return nil, errors.New("there is no certificate in PEM")
	}
	return all, nil
}
