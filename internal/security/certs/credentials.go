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

// Expect returns nil if a peer has the identity that is expected. Otherwise it returns an error that names the
// expected identity.
type Expect func(peer identity.Identity) error

// Own returns an Expect for a process that belongs to the same store and has the given role. If name is not empty,
// the process must also have that name.
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
	Peer  identity.Identity // zero if the peer has presented no certificate
	Plain bool              // whether the connection has no TLS, because the mode allows that
	calls *ratelimit.Calls  // nil on the client's side of the connection
}

// Calls implements ratelimit.Counted.
func (i AuthInfo) Calls() *ratelimit.Calls { return i.calls }

// Knows reports whether the connection alone shows that its calls come from callers of the store: either the peer has
// a certificate of the store, or the mode of this process allows plaintext, which admits everybody.
func Knows(store identity.Store, info credentials.AuthInfo) bool {
	i, ok := info.(AuthInfo)
	return ok && (i.Plain || i.Peer.Store == store)
}

// Plain reports whether a call arrived without TLS. The caller is then unknown. Such calls exist only if the mode of
// this process admits them.
func Plain(ctx context.Context) bool {
	return infoOf(ctx).Plain
}

// infoOf returns the AuthInfo of the connection on which a call arrived. If there is none, it returns the zero value.
func infoOf(ctx context.Context) (info AuthInfo) {
	if p, ok := peer.FromContext(ctx); ok {
		info, _ = p.AuthInfo.(AuthInfo)
	}
	return info
}

// PeerOf returns the identity of the peer that has made a call. It returns false if the peer is unknown, if it has
// presented no certificate, or if the connection has no TLS.
func PeerOf(ctx context.Context) (identity.Identity, bool) {
	id := infoOf(ctx).Peer
	return id, id != identity.Identity{}
}

// ServerOptions are the options of Server.
type ServerOptions struct {
	// Anonymous means that callers without a certificate are accepted. Such callers may be identified in a different
	// way, or remain unknown. If a caller does present a certificate, it must be valid.
	Anonymous bool
	// HTTP means that the server speaks HTTP/1.1 instead of gRPC.
	HTTP bool
}

// Server returns credentials for a gRPC server.
func (s *Source) Server(o ServerOptions) credentials.TransportCredentials {
	return &transport{TransportCredentials: credentials.NewTLS(base()), source: s, server: o}
}

// Client returns credentials for a client that accepts a server only if expect returns nil for the server's identity.
// The server's address does not matter.
func (s *Source) Client(expect Expect) credentials.TransportCredentials {
	return &transport{TransportCredentials: credentials.NewTLS(base()), source: s, expect: expect}
}

// base returns the configuration that all connections share. Sessions are never resumed, so that each connection
// begins with the peer's certificate.
func base() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, NextProtos: []string{"h2"}}
}

// transport implements credentials that use the newest certificates in each handshake.
type transport struct {
	credentials.TransportCredentials // provides the methods that do not depend on certificates
	source                           *Source
	server                           ServerOptions
	expect                           Expect // used only on the client's side
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
	do := credentials.NewTLS(cfg).ServerHandshake
	if t.server.HTTP {
		do = shakeHTTP(cfg)
	}
	made, info, err := t.shake(tracked, x509.ExtKeyUsageClientAuth, do)
	if err != nil {
		return nil, nil, err
	}
	info.calls = new(ratelimit.Calls)
	return made, info, nil
}

// shakeHTTP returns a function that performs the handshake of a server for HTTP/1.1. The credentials of gRPC would
// accept only clients that speak HTTP/2.
func shakeHTTP(cfg *tls.Config) func(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg.NextProtos = []string{"http/1.1"}
	return func(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
		made := tls.Server(raw, cfg)
		if err := made.HandshakeContext(context.Background()); err != nil {
			return nil, nil, err
		}
		return made, credentials.TLSInfo{State: made.ConnectionState(),
			CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
	}
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

// shake performs a TLS handshake, and records its result.
func (t *transport) shake(tracked *conn, usage x509.ExtKeyUsage,
	do func(net.Conn) (net.Conn, credentials.AuthInfo, error)) (net.Conn, AuthInfo, error) {
	made, info, err := do(tracked)
	if err != nil {
		_ = tracked.Close() // gRPC closes it as well
		t.source.counts.handshakes.WithLabelValues(reasonOf(err)).Inc()
		return nil, AuthInfo{}, err
	}
	out := AuthInfo{TLSInfo: info.(credentials.TLSInfo)}
	if chain := out.State.PeerCertificates; len(chain) > 0 {
		// The handshake has already parsed this certificate.
		if out.Peer, err = identity.OfCertificate(chain[0]); err != nil {
			_ = made.Close()
			return nil, AuthInfo{}, err
		}
		tracked.peer.Store(&shown{chain: chain, usage: usage})
	}
	return made, out, nil
}

// unexpected wraps the error for a peer whose identity is not the expected one.
type unexpected struct{ error }

// Unwrap returns the error that Expect returned.
func (e *unexpected) Unwrap() error { return e.error }

// reasonOf returns one word that says why a handshake failed.
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
		return "expired" // x509 uses the same reason for certificates that are not valid yet
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return "usage"
	case errors.As(err, &other), errors.Is(err, identity.ErrName):
		return "identity"
	case err.Error() == "tls: client didn't provide a certificate":
		return "none"
	case errors.As(err, &remote) && remote.Op == "remote error":
		return "peer" // the peer has rejected this process's certificate
	}
	return "other"
}
