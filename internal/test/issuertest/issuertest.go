// Package issuertest acts as a cert-manager issuer in tests: it signs the requests that cert-manager makes for
// Certificates.
package issuertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/identity"
)

// Certificate holds the fields of a cert-manager Certificate that Sign needs.
type Certificate struct {
	Metadata struct {
		Name       string `json:"name"`
		Namespace  string `json:"namespace"`
		Generation int64  `json:"generation"`
	} `json:"metadata"`
	Spec struct {
		SecretName     string `json:"secretName"`
		SecretTemplate struct {
			Labels map[string]string `json:"labels"`
		} `json:"secretTemplate"`
		URIs      []string `json:"uris"`
		DNSNames  []string `json:"dnsNames"`
		Usages    []string `json:"usages"`
		Duration  string   `json:"duration"`
		IssuerRef struct {
			Name  string `json:"name"`
			Kind  string `json:"kind"`
			Group string `json:"group"`
		} `json:"issuerRef"`
	} `json:"spec"`
}

// Parse reads a Certificate from JSON.
func Parse(text []byte) (*Certificate, error) {
	out := &Certificate{}
	return out, json.Unmarshal(text, out)
}

// Sign issues the certificate that a Certificate requests, and returns the data for its Secret.
func Sign(a *authority.Authority, c *Certificate, now time.Time) (map[string][]byte, error) {
	if len(c.Spec.URIs) != 1 {
		return nil, fmt.Errorf("certificate %s asks for %d URIs", c.Metadata.Name, len(c.Spec.URIs))
	}
	id, err := identity.Parse(c.Spec.URIs[0])
	if err != nil {
		return nil, err
	}
	lifetime, err := time.ParseDuration(c.Spec.Duration)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", c.Metadata.Name, err)
	}
	leaf := authority.Leaf{
		Identity: id, DNSNames: c.Spec.DNSNames, Now: now, Lifetime: lifetime,
		Server: slices.Contains(c.Spec.Usages, "server auth"), Client: slices.Contains(c.Spec.Usages, "client auth"),
	}
	if leaf.Server && leaf.Client {
		return nil, errors.New("this issuer puts one usage into each certificate, as public authorities do")
	}
	cert, key, err := a.Issue(leaf)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": a.CertificatePEM()}, nil
}
