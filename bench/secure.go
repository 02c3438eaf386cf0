package bench

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

// link holds the credentials of both ends of a connection to the servers that Sheaf is compared with.
type link struct {
	server, client credentials.TransportCredentials
}

func plainLink() link {
	return link{server: insecure.NewCredentials(), client: insecure.NewCredentials()}
}

// tlsLink returns a link with mutual TLS as in a store. Both ends present a certificate from one authority, and only
// TLS 1.3 is allowed.
func tlsLink() (link, error) {
	a, err := newAuthorities()
	if err != nil {
		return link{}, err
	}
	cert, key, err := a.issue(identity.Identity{Role: identity.Gateway})
	if err != nil {
		return link{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return link{}, fmt.Errorf("reading a certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.authority.CertificatePEM())
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: roots, ClientCAs: roots,
		ClientAuth: tls.RequireAndVerifyClientCert,
	}
	return link{server: credentials.NewTLS(cfg), client: credentials.NewTLS(cfg)}, nil
}

// authorities issue the certificates for a store's processes. A nil *authorities issues no certificates, and its shards
// speak plaintext. authorities is not safe for concurrent use. The caller must call close.
type authorities struct {
	authority *authority.Authority
	store     identity.Store
	sources   []*certs.Source
}

func newAuthorities() (*authorities, error) {
	a, err := authority.New("bench", time.Now(), authority.LeafLifetime)
	if err != nil {
		return nil, err
	}
	return &authorities{authority: a, store: identity.Store{Domain: "bench", Namespace: "bench", UID: uuid.New()}}, nil
}

// issue creates a certificate and its key for a process of the store that listens on loopback.
func (a *authorities) issue(of identity.Identity) (cert, key []byte, err error) {
	of.Store = a.store
	return a.authority.Issue(authority.Leaf{
		Identity: of, Addresses: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, Client: true, Now: time.Now(),
		Lifetime: authority.LeafLifetime,
	})
}

// shard makes a shard use mutual TLS, and returns the credentials for the shard's server. As in a store, each end of
// a connection checks that the other end is the expected shard (shard.Config.Secure).
func (a *authorities) shard(opts *peer.Options) (credentials.TransportCredentials, error) {
	if a == nil {
		return insecure.NewCredentials(), nil
	}
	cert, key, err := a.issue(identity.Identity{Role: identity.Shard, Name: opts.Shard})
	if err != nil {
		return nil, err
	}
	source, err := certs.InMemory(certs.Config{}, map[string][]byte{
		certs.CertificateFile: cert, certs.KeyFile: key, certs.BundleFile: a.authority.CertificatePEM(),
	})
	if err != nil {
		return nil, err
	}
	a.sources = append(a.sources, source)
	opts.Credentials = func(shard string) credentials.TransportCredentials {
		return source.Client(source.Own(identity.Shard, shard))
	}
	opts.SpeaksFor = func(ctx context.Context, shard string) bool {
		caller, ok := certs.PeerOf(ctx)
		return ok && caller == identity.Identity{Store: a.store, Role: identity.Shard, Name: shard}
	}
	return source.Server(certs.ServerOptions{}), nil
}

// close stops watching the certificate files. Open connections remain open.
func (a *authorities) close() {
	for _, source := range a.sources {
		source.Close()
	}
}
