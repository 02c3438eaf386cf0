package bench

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/internal/authority"
	"sheaf.dev/sheaf/internal/identity"
)

// link says how the servers that Sheaf is compared with are spoken to.
type link struct {
	server, client credentials.TransportCredentials
}

func plainLink() link {
	return link{server: insecure.NewCredentials(), client: insecure.NewCredentials()}
}

// tlsLink is mutual TLS as a store has it: both ends show a certificate of one authority, TLS 1.3 alone.
func tlsLink() (link, error) {
	a, err := authority.New("bench", time.Now(), authority.LeafLifetime)
	if err != nil {
		return link{}, err
	}
	id := identity.Identity{Store: identity.Store{Domain: "bench", Namespace: "bench", UID: uuid.New()}, Role: identity.Gateway}
	cert, key, err := a.Issue(authority.Leaf{
		Identity: id, Addresses: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, Client: true, Now: time.Now(), Lifetime: authority.LeafLifetime,
	})
	if err != nil {
		return link{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return link{}, fmt.Errorf("reading a certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.CertificatePEM())
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: roots, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
	}
	return link{server: credentials.NewTLS(cfg), client: credentials.NewTLS(cfg)}, nil
}
