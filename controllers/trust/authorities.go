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

// Keys of the Secret that contains a store's authorities. The current authorities may be present as certificates
// without keys. Processes then trust them, but the operator cannot issue certificates with them.
const (
	keyOfBundle       = "ca.key"
	keyOfClientBundle = "client-ca.key"
	nextPrefix        = "next-" // prefix of the keys for the next authorities
	// keyOfSource is the key under which the Secret names the source that issues certificates signed by these authorities
	// (a v1alpha1.TLSSource). If the key is absent, the operator itself issues the certificates, and the Secret also
	// contains the private keys of the authorities.
	keyOfSource = "source"
)

// Limits on the lifetimes of certificates from the operator.
const (
	leafLifetime = authority.LeafLifetime
	// renewThirds says when a leaf certificate is renewed: once this many thirds of its lifetime have passed.
	renewThirds = 2
)

// Authorities are the authorities of one store: one for its processes and one for its callers. While the authorities
// change, the next ones are included.
type Authorities struct {
	data map[string][]byte // the data of the Secret
	// unrecorded is true if the operator wrote Merged authorities, but was stopped before it recorded them in the
	// status.
	unrecorded bool
}

// NewAuthorities returns the first authorities of a store. If found is not nil, they are the authorities of that
// source. Otherwise the operator creates them.
func NewAuthorities(found *Found, store *v1alpha1.RecordStore, now time.Time) (*Authorities, error) {
	a := &Authorities{data: map[string][]byte{}}
	return a, a.set("", found, store, now)
}

// WithNext returns a copy that also has next authorities. If found is not nil, they are the authorities of that
// source. Otherwise the operator creates them.
func (a *Authorities) WithNext(found *Found, store *v1alpha1.RecordStore, now time.Time) (*Authorities, error) {
	out := &Authorities{data: a.Data()}
	return out, out.set(nextPrefix, found, store, now)
}

// Adopted returns the authorities of a store that has lost the private keys of its current ones. They consist of the
// certificates in bundle and clientBundle, and of next authorities that will replace them. It chooses the next
// authorities in the same way as WithNext.
func Adopted(bundle, clientBundle []byte, found *Found, store *v1alpha1.RecordStore, now time.Time) (*Authorities,
	error) {
	a := &Authorities{data: map[string][]byte{workload.KeyBundle: bundle, workload.KeyClientBundle: clientBundle}}
	return a.WithNext(found, store, now)
}

// Merged returns a copy whose current authorities consist of both the current and the next ones. They are trusted,
// but issue no certificates. This is needed if the next authorities are themselves replaced before a change is
// complete.
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

// Source returns the source of the current or the next authorities.
func (a *Authorities) Source(which Which) v1alpha1.TLSSource {
	return cmp.Or(v1alpha1.TLSSource(a.data[which.prefix()+keyOfSource]), v1alpha1.TLSFromOperator)
}

// isUnrecorded reports whether these are Merged authorities that the status does not record yet.
func (a *Authorities) isUnrecorded(status *v1alpha1.TLSStatus) bool {
	if !a.HasNext() || status.Phase != v1alpha1.TLSTrusting && status.Phase != v1alpha1.TLSIssuing {
		return false
	}
	bundle, err := bundleHash(a.data[workload.KeyBundle])
	clients, err2 := bundleHash(a.data[workload.KeyClientBundle])
	return err == nil && err2 == nil && bundle == status.Bundle && clients == status.ClientBundle
}

// issuing returns whether the current or the next authorities issue certificates in the given state.
func (a *Authorities) issuing(told InUse) Which {
	if told.IssueBy == Next && a.HasNext() {
		return Next
	}
	return Current
}

// Issuer returns the source of the authorities that issue certificates in the given state.
func (a *Authorities) Issuer(told InUse) v1alpha1.TLSSource { return a.Source(a.issuing(told)) }

// Differs compares the authorities of a source, found, with the current or the next ones, and reports whether they
// differ. The argument found is nil if the source is the operator.
func (a *Authorities) Differs(which Which, found *Found) (bool, error) {
	if a.unrecorded {
		return true, nil
	}
	if found == nil {
		return a.Source(which) != v1alpha1.TLSFromOperator, nil
	}
	if a.Source(which) != found.Source {
		return true, nil
	}
	prefix := which.prefix()
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

// set replaces the authorities for processes and for callers, whose keys in the Secret begin with prefix. If found is
// not nil, the new ones are those of that source, without their private keys. Otherwise the operator creates them.
func (a *Authorities) set(prefix string, found *Found, store *v1alpha1.RecordStore, now time.Time) error {
	if found != nil {
		delete(a.data, prefix+keyOfBundle)
		delete(a.data, prefix+keyOfClientBundle)
		a.data[prefix+workload.KeyBundle], a.data[prefix+workload.KeyClientBundle] = found.Bundle, found.ClientBundle
		a.data[prefix+keyOfSource] = []byte(found.Source)
		return nil
	}
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

// parse reads the data of the Secret. Errors name the key in the Secret.
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

// Data returns the data of the Secret, which includes private keys.
func (a *Authorities) Data() map[string][]byte { return maps.Clone(a.data) }

// HasNext reports whether the next authorities exist.
func (a *Authorities) HasNext() bool {
	return a.data[nextPrefix+workload.KeyBundle] != nil && a.data[nextPrefix+workload.KeyClientBundle] != nil
}

// Promoted returns a copy in which the next authorities have become the current ones. The copy leaves out the
// previously current authorities.
func (a *Authorities) Promoted() *Authorities {
	out := &Authorities{data: map[string][]byte{}}
	for _, key := range []string{workload.KeyBundle, keyOfBundle, workload.KeyClientBundle, keyOfClientBundle,
		keyOfSource} {
		if content, there := a.data[nextPrefix+key]; there {
			out.data[key] = content
		}
	}
	return out
}

// Bundles returns, in PEM, the authorities that processes trust in the given state. If there are no next authorities,
// it returns the current ones in every state, because the next ones may already have become the current ones.
func (a *Authorities) Bundles(told InUse) (bundle, clientBundle []byte) {
	return a.bundle(told, workload.KeyBundle), a.bundle(told, workload.KeyClientBundle)
}

func (a *Authorities) bundle(told InUse, key string) []byte {
	var out []byte
	if told.Current || !a.HasNext() {
		out = append(out, a.data[key]...)
	}
	if told.Next && a.HasNext() {
		out = append(out, a.data[nextPrefix+key]...)
	}
	return out
}

// Hashes returns the hashes of the bundles that processes trust in the given state.
func (a *Authorities) Hashes(told InUse) (bundle, clientBundle string, err error) {
	of, clients := a.Bundles(told)
	if bundle, err = bundleHash(of); err != nil {
		return "", "", err
	}
	clientBundle, err = bundleHash(clients)
	return bundle, clientBundle, err
}

// errNoKey means that the key of a trusted authority is lost.
var errNoKey = errors.New(
	"the key of the authority is missing: certificates are made again when the next authorities issue")

// issuer returns the authority that issues certificates for processes or for callers. The error may be errNoKey.
func (a *Authorities) issuer(told InUse, caller bool) (*authority.Authority, error) {
	prefix := a.issuing(told).prefix()
	cert, key := workload.KeyBundle, keyOfBundle
	if caller {
		cert, key = workload.KeyClientBundle, keyOfClientBundle
	}
	if a.data[prefix+key] == nil {
		return nil, errNoKey
	}
	return authority.Parse(a.data[prefix+cert], a.data[prefix+key])
}

// prefix returns the prefix of the Secret's keys for the current or the next authorities.
func (w Which) prefix() string {
	if w == Next {
		return nextPrefix
	}
	return ""
}

// bundleHash returns certs.BundleHash of authorities in PEM, in the format of the processes' reports.
func bundleHash(bundle []byte) (string, error) {
	certificates, err := certificatesOf(bundle)
	if err != nil {
		return "", err
	}
	return certs.BundleHash(certificates), nil
}

// certificatesOf parses PEM that contains at least one certificate and no other blocks.
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
