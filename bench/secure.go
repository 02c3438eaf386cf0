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

// link says how the servers that Sheaf is compared with are spoken to.
type link struct {
	server, client credentials.TransportCredentials
}

func plainLink() link {
	return link{server: insecure.NewCredentials(), client: insecure.NewCredentials()}
}

// tlsLink is mutual TLS as a store has it: both ends show a certificate of one authority, TLS 1.3 alone.
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

// authorities issue the certificates of a store. Those of nil issue none: its shards speak plaintext. Not for
// concurrent use. close must follow.
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

// issue makes the certificate of a process of the store that listens on loopback, and its key.
func (a *authorities) issue(of identity.Identity) (cert, key []byte, err error) {
	of.Store = a.store
	return a.authority.Issue(authority.Leaf{
		Identity: of, Addresses: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, Client: true, Now: time.Now(),
		Lifetime: authority.LeafLifetime,
	})
}

// shard lets a shard speak mutual TLS, and gives the credentials of its server. As in a store, both ends of a
// connection have to be the shards that they are taken for (shard.Config.Secure).
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

// close ends the looks at certificates. Connections stay.
func (a *authorities) close() {
	for _, source := range a.sources {
		source.Close()
	}
}
