// Package authority issues the certificates of a store: the certificate of the store's own authority (ECDSA on
// P-256), and leaf certificates, each of which names one process. The package is used by the operator, by `sheaf dev
// --tls` and by tests.
package authority

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"sheaf.dev/sheaf/internal/security/identity"
)

// These are the lifetimes of certificates. A leaf is replaced after two thirds of its lifetime.
const (
	Lifetime     = 10 * 365 * 24 * time.Hour // lifetime of an authority
	LeafLifetime = 30 * 24 * time.Hour
	// backdating is how long before its issue a certificate becomes valid, so that a process accepts a new certificate
	// even if its clock is an hour slow.
	backdating = 2 * time.Hour
)

// These are the types of PEM blocks.
const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

// Authority signs leaf certificates. It is safe for concurrent use.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New creates an authority with a new key. The argument name is only for display. The argument now is the time at
// which the authority's lifetime begins.
func New(name string, now time.Time, lifetime time.Duration) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of an authority: %w", err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-backdating), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of an authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of an authority: %w", err)
	}
	return &Authority{cert: cert, key: key}, nil
}

// Parse restores an authority from the results of PEM, its certificate and its key.
func Parse(certificate, key []byte) (*Authority, error) {
	block, rest := pem.Decode(certificate)
	if block == nil || block.Type != pemCertificate || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the certificate of the authority is not one block CERTIFICATE in PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the certificate of the authority: %w", err)
	}
	if !cert.IsCA {
		return nil, fmt.Errorf("the certificate of %q may sign no others", cert.Subject)
	}
	if block, _ = pem.Decode(key); block == nil || block.Type != pemKey {
		return nil, errors.New("the key of the authority is not a block PRIVATE KEY in PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		// The parser's error is not included, because it may contain parts of the key.
		return nil, errors.New("the key of the authority is not in PKCS #8")
	}
	private, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the key of the authority is a %T: must be ECDSA", parsed)
	}
	if !private.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("the key is not that of the certificate of %q", cert.Subject)
	}
	return &Authority{cert: cert, key: private}, nil
}

// PEM returns the certificate and the key. The key is secret.
func (a *Authority) PEM() (certificate, key []byte, err error) {
	if key, err = keyPEM(a.key); err != nil {
		return nil, nil, err
	}
	return a.CertificatePEM(), key, nil
}

// CertificatePEM returns the authority's certificate. A process that accepts the leaves has to trust it.
func (a *Authority) CertificatePEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: a.cert.Raw})
}

// NotAfter returns the time at which the authority expires. All certificates that it has signed expire at that time
// or earlier.
func (a *Authority) NotAfter() time.Time { return a.cert.NotAfter }

// Leaf describes a certificate to issue.
type Leaf struct {
	Identity identity.Identity
	// DNSNames and Addresses are the names of the host, for callers that check these and not the identity.
	DNSNames  []string
	Addresses []net.IP
	// Server and Client are the usages that the certificate permits. At least one of them must be set.
	Server, Client bool
	Now            time.Time
	Lifetime       time.Duration
}

// Issue returns a new leaf certificate and its new key, in PEM. The leaf never outlives the authority.
func (a *Authority) Issue(leaf Leaf) (certificate, key []byte, err error) {
	fail := func(err error) ([]byte, []byte, error) {
		return nil, nil, fmt.Errorf("make a certificate for %s: %w", leaf.Identity, err)
	}
	id, err := leaf.Identity.ID()
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: string(leaf.Identity.Role)}, URIs: []*url.URL{id.URL()}, DNSNames: leaf.DNSNames,
		IPAddresses: leaf.Addresses,
		NotBefore:   leaf.Now.Add(-backdating), NotAfter: leaf.Now.Add(leaf.Lifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
	}
	if leaf.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if leaf.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	if len(template.ExtKeyUsage) == 0 {
		return fail(errors.New("it is for no server and no client"))
	}
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fail(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		return fail(err)
	}
	if key, err = keyPEM(private); err != nil {
		return fail(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}), key, nil
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}
