package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"time"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/authority"
	"sheaf.dev/sheaf/internal/certs"
	"sheaf.dev/sheaf/internal/workload"
)

// Keys of the Secret with a store's authorities. Certificates of the current ones may be there without their key: then
// they are trusted, and issue nothing.
const (
	keyOfBundle       = "ca.key"
	keyOfClientBundle = "client-ca.key"
	nextPrefix        = "next-" // of the same keys, while the authorities change
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
}

// NewAuthorities makes the first authorities of a store.
func NewAuthorities(store *v1alpha1.RecordStore, now time.Time) (*Authorities, error) {
	a := &Authorities{data: map[string][]byte{}}
	return a, a.make("", store, now)
}

// make both authorities below a prefix.
func (a *Authorities) make(prefix string, store *v1alpha1.RecordStore, now time.Time) error {
	for _, kind := range []struct{ words, cert, key string }{
		{"processes", workload.KeyBundle, keyOfBundle}, {"callers", workload.KeyClientBundle, keyOfClientBundle},
	} {
		name := fmt.Sprintf("%s of RecordStore %s/%s, %s", kind.words, store.Namespace, store.Name, now.UTC().Format(time.DateOnly))
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

// Parse reads the data of the Secret. Errors name the key of the Secret.
func Parse(data map[string][]byte) (*Authorities, error) {
	a := &Authorities{data: data}
	for _, key := range []string{workload.KeyBundle, workload.KeyClientBundle} {
		if _, err := BundleHash(data[key]); err != nil {
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

// Adopted are authorities of which only the certificates are left, with next ones to take their place.
func Adopted(bundle, clientBundle []byte, store *v1alpha1.RecordStore, now time.Time) (*Authorities, error) {
	a := &Authorities{data: map[string][]byte{workload.KeyBundle: bundle, workload.KeyClientBundle: clientBundle}}
	return a, a.make(nextPrefix, store, now)
}

// Data of the Secret. It holds keys.
func (a *Authorities) Data() map[string][]byte { return maps.Clone(a.data) }

// HasNext tells whether the next authorities were made.
func (a *Authorities) HasNext() bool {
	return a.data[nextPrefix+keyOfBundle] != nil && a.data[nextPrefix+keyOfClientBundle] != nil
}

// WithNext are the same with next ones.
func (a *Authorities) WithNext(store *v1alpha1.RecordStore, now time.Time) (*Authorities, error) {
	out := &Authorities{data: a.Data()}
	return out, out.make(nextPrefix, store, now)
}

// Settled are the next ones alone, as the current ones.
func (a *Authorities) Settled() *Authorities {
	out := &Authorities{data: map[string][]byte{}}
	for _, key := range []string{workload.KeyBundle, keyOfBundle, workload.KeyClientBundle, keyOfClientBundle} {
		out.data[key] = a.data[nextPrefix+key]
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
	if bundle, err = BundleHash(of); err != nil {
		return "", "", err
	}
	clientBundle, err = BundleHash(clients)
	return bundle, clientBundle, err
}

// errNoKey is the error of an authority that is trusted, and whose key is gone.
var errNoKey = errors.New("the key of the authority is missing: certificates are made again when the next authorities issue")

// issuer gives the authority that issues, of processes or of callers. Errors may be errNoKey.
func (a *Authorities) issuer(told Told, caller bool) (*authority.Authority, error) {
	prefix := ""
	if told.IssueBy == Next && a.HasNext() {
		prefix = nextPrefix
	}
	cert, key := workload.KeyBundle, keyOfBundle
	if caller {
		cert, key = workload.KeyClientBundle, keyOfClientBundle
	}
	if a.data[prefix+key] == nil {
		return nil, errNoKey
	}
	return authority.Parse(a.data[prefix+cert], a.data[prefix+key])
}

// BundleHash is certs.BundleHash of authorities in PEM, as processes tell it.
func BundleHash(bundle []byte) (string, error) {
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
