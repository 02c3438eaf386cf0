package reloadtest

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/call/reload"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/must"
)

// pki issues certificates to a folder. The files are real files, as they are for a real client.
type pki struct {
	t         *testing.T
	authority *authority.Authority
	cert, key string // paths of the files
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	a, err := authority.New("a", time.Now(), 1000*time.Hour)
	must.OK(t, err)
	dir := t.TempDir()
	return &pki{t: t, authority: a, cert: filepath.Join(dir, "cert"), key: filepath.Join(dir, "key")}
}

func (p *pki) issue() (cert, key []byte) {
	p.t.Helper()
	id := identity.Identity{Store: identity.Store{Domain: "d", Namespace: "n", UID: uuid.UUID{1}}, Role: identity.Client,
		Name: "c"}
	cert, key, err := p.authority.Issue(authority.Leaf{Identity: id, Client: true, Server: true, DNSNames: []string{"h"},
		Now: time.Now(), Lifetime: time.Hour})
	must.OK(p.t, err)
	return cert, key
}

func (p *pki) write(cert, key []byte) {
	p.t.Helper()
	for name, content := range map[string][]byte{p.cert: cert, p.key: key} {
		must.OK(p.t, os.WriteFile(name, content, 0o600))
	}
}

func (p *pki) config() (*tls.Config, error) {
	pair, err := reload.Pair(p.cert, p.key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.authority.CertificatePEM())
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{pair}}, nil
}

// TestTheLastGoodFilesStayInUse replaces certificate files with bad ones. If a program starts with such files, its
// error must name each file that cannot be read or has expired. If a running program finds such files, it must
// continue to use the last good files, and must report each problem once. The connections are in memory, and the time
// is virtual.
func TestTheLastGoodFilesStayInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPKI(t)
		old := func() [2][]byte { cert, key := p.issue(); return [2][]byte{cert, key} }()
		time.Sleep(2 * time.Hour) // the certificate expires, even with the largest clock difference that is tolerated
		cert, key := p.issue()
		_, otherKey := p.issue()
		bad := map[string][2][]byte{
			"empty": {}, "half": {cert[:len(cert)/2], key}, "of two renewals": {cert, otherKey}, "whose time is over": old,
		}
		for name, files := range bad {
			p.write(files[0], files[1])
			if _, err := reload.Credentials(p.config, nil); err == nil || !strings.Contains(err.Error(), p.cert) {
				t.Errorf("files that are %s, at the start: %v", name, err)
			}
		}

		p.write(cert, key)
		good, err := p.config()
		must.OK(t, err)
		var told []error
		creds, err := reload.Credentials(p.config, func(err error) { told = append(told, err) })
		must.OK(t, err)
		connect := func(takes *tls.Config) error {
			near, far := net.Pipe()
			defer func() { _ = near.Close() }()
			go func() {
				takes = takes.Clone()
				takes.NextProtos = []string{"h2"} // gRPC requires this protocol for TLS
				server := tls.Server(far, takes)
				_ = server.HandshakeContext(t.Context())
				_ = far.Close()
			}()
			_, _, err := creds.Clone().ClientHandshake(t.Context(), "h", near)
			return err
		}
		for name, files := range bad {
			p.write(cert, key)
			if told = nil; connect(good) != nil || len(told) > 0 {
				t.Errorf("files that are right: %v", told)
			}
			p.write(files[0], files[1])
			for range 2 {
				if err := connect(good); err != nil {
					t.Errorf("files that are %s, later: %v", name, err)
				}
			}
			if len(told) != 1 || !strings.Contains(told[0].Error(), p.cert) {
				t.Errorf("files that are %s are told as %v", name, told)
			}
		}
		if err := connect(&tls.Config{MinVersion: tls.VersionTLS13}); err == nil || !strings.Contains(err.Error(), p.cert) {
			t.Errorf("a handshake that fails: %v", err)
		}
	})
}
