package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/security/ratelimit"
)

// Expect returns nil if a peer has the expected identity. Otherwise it returns an error that names the expected
// identity.
type Expect func(peer identity.Identity) error

// Own returns an Expect for a process of the same store with the given role. If name is not empty, the process must
// also have that name.
func (s *Source) Own(role identity.Role, name string) Expect {
	want := identity.Identity{Store: s.Identity().Store, Role: role, Name: name}
	return func(peer identity.Identity) error {
		named := peer
		if name == "" {
			named.Name = ""
		}
		if named != want {
			return fmt.Errorf("the peer is %s, and has to be %s of the store %s", peer, role, want.UID)
		}
		return nil
	}
}

// AuthInfo describes the peer of a connection.
type AuthInfo struct {
	credentials.TLSInfo
	Peer  identity.Identity // the zero value if the peer has presented no certificate
	Plain bool              // the connection has no TLS, which the mode allows
	calls *ratelimit.Calls  // nil at the client's end of the connection
}

// Calls implements ratelimit.Counted.
func (i AuthInfo) Calls() *ratelimit.Calls { return i.calls }

// Knows reports whether the connection itself shows that its calls come from the store's callers. It does if the peer
// has a certificate of the store, or if the mode of this process accepts plaintext from everybody.
func Knows(store identity.Store, info credentials.AuthInfo) bool {
	i, ok := info.(AuthInfo)
	return ok && (i.Plain || i.Peer.Store == store)
}

// Plain reports whether a call arrived without TLS. The caller of such a call is unknown, and the mode of this process
// admits all such callers.
func Plain(ctx context.Context) bool {
	return infoOf(ctx).Plain
}

// infoOf returns the AuthInfo of the peer that made a call. It returns the zero value if the peer is unknown.
func infoOf(ctx context.Context) (info AuthInfo) {
	if p, ok := peer.FromContext(ctx); ok {
		info, _ = p.AuthInfo.(AuthInfo)
	}
	return info
}

// PeerOf returns the identity that made a call. It returns false if the peer is unknown, if it has no certificate, or
// if the connection has no TLS.
func PeerOf(ctx context.Context) (identity.Identity, bool) {
	id := infoOf(ctx).Peer
	return id, id != identity.Identity{}
}

// ServerOptions are the options of Server.
type ServerOptions struct {
	// Anonymous admits callers that present no certificate. Another mechanism may identify such callers, or they remain
	// unknown. A certificate that is presented must still be valid.
	Anonymous bool
}

// Server returns the credentials of a gRPC server.
func (s *Source) Server(o ServerOptions) credentials.TransportCredentials {
	return &transport{TransportCredentials: credentials.NewTLS(base()), source: s, server: o}
}

// Client returns the credentials of a client that accepts a server only if expect returns nil for the server's
// identity. The address of the server does not matter.
func (s *Source) Client(expect Expect) credentials.TransportCredentials {
	return &transport{TransportCredentials: credentials.NewTLS(base()), source: s, expect: expect}
}

// base returns the configuration shared by all connections. Sessions are not resumed, so that a peer presents its
// certificate each time.
func base() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, NextProtos: []string{"h2"}}
}

// transport implements credentials that use the newest certificates for each handshake.
type transport struct {
	credentials.TransportCredentials // for the methods that need no certificate
	source                           *Source
	server                           ServerOptions
	expect                           Expect // used only by a client
}

func (t *transport) Clone() credentials.TransportCredentials {
	out := *t
	out.TransportCredentials = t.TransportCredentials.Clone()
	return &out
}

func (t *transport) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	tracked := t.source.track(raw)
	m := t.source.current.Load()
	if m.mode != Required {
		secure, err := tracked.isTLS()
		if err != nil {
			_ = tracked.Close()
			return nil, nil, err
		}
		if !secure {
			return tracked, plaintext(tracked), nil
		}
	}
	cfg := base()
	cfg.Certificates, cfg.ClientCAs, cfg.Time = []tls.Certificate{*m.server}, m.all, t.source.cfg.Now
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	if t.server.Anonymous {
		cfg.ClientAuth = tls.VerifyClientCertIfGiven
	}
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return nil
		}
		_, err := m.verify(state.PeerCertificates, t.source.cfg.Now(), x509.ExtKeyUsageClientAuth)
		return err
	}
	made, info, err := t.shake(tracked, x509.ExtKeyUsageClientAuth, credentials.NewTLS(cfg).ServerHandshake)
	if err != nil {
		return nil, nil, err
	}
	info.calls = new(ratelimit.Calls)
	return made, info, nil
}

// plaintext returns the AuthInfo of a connection that has no TLS.
func plaintext(c *conn) AuthInfo {
	c.plain.Store(true)
	return AuthInfo{Plain: true, calls: new(ratelimit.Calls), TLSInfo: credentials.TLSInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}}}
}

func (t *transport) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	tracked := t.source.track(raw)
	m := t.source.current.Load()
	if m.mode == Plaintext {
		return tracked, plaintext(tracked), nil
	}
	cfg := base()
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return m.client, nil }
	// Go's own check compares host names. VerifyConnection, which always runs, does the whole verification instead.
	cfg.InsecureSkipVerify = true //nolint:gosec // see above
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		id, err := identity.OfCertificate(state.PeerCertificates[0])
		if err != nil {
			return err
		}
		if _, err := m.verify(state.PeerCertificates, t.source.cfg.Now(), x509.ExtKeyUsageServerAuth); err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
		}
		if err := t.expect(id); err != nil {
			return &unexpected{err}
		}
		return nil
	}
	made, info, err := t.shake(tracked, x509.ExtKeyUsageServerAuth,
		func(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
			return credentials.NewTLS(cfg).ClientHandshake(ctx, authority, raw)
		})
	if err != nil {
		return nil, nil, err
	}
	return made, info, nil
}

// shake performs a handshake, and records its result.
func (t *transport) shake(tracked *conn, usage x509.ExtKeyUsage,
	do func(net.Conn) (net.Conn, credentials.AuthInfo, error)) (net.Conn, AuthInfo, error) {
	made, info, err := do(tracked)
	if err != nil {
		_ = tracked.Close() // gRPC also closes it
		t.source.counts.handshakes.WithLabelValues(reasonOf(err)).Inc()
		return nil, AuthInfo{}, err
	}
	out := AuthInfo{TLSInfo: info.(credentials.TLSInfo)}
	if chain := out.State.PeerCertificates; len(chain) > 0 {
		if out.Peer, err = identity.OfCertificate(chain[0]); err != nil { // the handshake has already parsed this certificate
			_ = made.Close()
			return nil, AuthInfo{}, err
		}
		tracked.peer.Store(&shown{chain: chain, usage: usage})
	}
	return made, out, nil
}

// unexpected is the error for a peer whose identity differs from the expected one.
type unexpected struct{ error }

// Unwrap returns the error that Expect returned.
func (e *unexpected) Unwrap() error { return e.error }

// reasonOf returns one word that describes why a handshake failed.
func reasonOf(err error) string {
	var (
		record    tls.RecordHeaderError
		remote    *net.OpError
		authority x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		other     *unexpected
	)
	switch {
	case errors.As(err, &record):
		return "plaintext"
	case errors.As(err, &authority):
		return "authority"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "expired" // or not valid yet
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return "usage"
	case errors.As(err, &other), errors.Is(err, identity.ErrName):
		return "identity"
	case err.Error() == "tls: client didn't provide a certificate":
		return "none"
	case errors.As(err, &remote) && remote.Op == "remote error":
		return "peer" // the peer has rejected the certificate of this process
	}
	return "other"
}
