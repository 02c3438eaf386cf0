package operator

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/must"
)

// storeFiles returns a function that creates certificates for one store, all signed by one authority.
func storeFiles(t *testing.T, mode certs.Mode) func(role identity.Role, name string) map[string][]byte {
	t.Helper()
	own, err := authority.New("test", time.Now(), time.Hour)
	must.OK(t, err)
	of := identity.Store{Domain: "cluster.local", Namespace: "prod", UID: uuid.New()}
	return func(role identity.Role, name string) map[string][]byte {
		cert, key, err := own.Issue(authority.Leaf{
			Identity: identity.Identity{Store: of, Role: role, Name: name}, Server: true, Client: true, Now: time.Now(),
			Lifetime: time.Hour,
		})
		must.OK(t, err)
		return map[string][]byte{
			certs.CertificateFile: cert, certs.KeyFile: key, certs.BundleFile: own.CertificatePEM(),
			certs.ModeFile: []byte(mode),
		}
	}
}

func sourceOf(t *testing.T, files map[string][]byte) *certs.Source {
	t.Helper()
	source, err := certs.InMemory(certs.Config{}, files)
	must.OK(t, err)
	t.Cleanup(source.Close)
	return source
}

// The operator connects to a shard over TLS if the store requires TLS, and accepts only the intended shard, because
// another shard may have received the address.
func TestShardIsVerifiedByName(t *testing.T) {
	files := storeFiles(t, certs.Required)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	server := grpc.NewServer(grpc.Creds(sourceOf(t, files(identity.Shard, "main-0")).Server(certs.ServerOptions{})))
	recordv1.RegisterAdminServiceServer(server, &fakeShard{name: "main-0"})
	go func() { _ = server.Serve(listener) }() // Serve returns when the server is stopped
	t.Cleanup(server.Stop)
	keys := NewKeys()
	t.Cleanup(keys.Close)
	s := NewShards(keys)
	t.Cleanup(s.Close)
	at := fleet.ShardAt{Store: "prod/quotes", Address: listener.Addr().String(), TLS: true}
	ask := func(name string) error {
		at.Name = name
		_, err := s.Describe(t.Context(), at)
		return err
	}
	if err := ask("main-0"); !errors.Is(err, fleet.ErrNoCredentials) {
		t.Errorf("it is asked before the operator has a certificate: %v", err)
	}
	at.TLS = false
	if err := ask("main-0"); err == nil || errors.Is(err, fleet.ErrNoCredentials) {
		t.Errorf("a shard that accepts only TLS is asked in plaintext: %v", err)
	}
	at.TLS = true
	must.OK(t, keys.Set("prod/quotes", files(identity.Operator, "")))
	if err := ask("main-0"); err != nil {
		t.Error(err)
	}
	if err := ask("main-1"); err == nil || !strings.Contains(err.Error(), "main-0") {
		t.Errorf("another shard answers: %v", err)
	}
	// A different store with the same name has a different UID and different authorities.
	must.OK(t, keys.Set("prod/quotes", storeFiles(t, certs.Required)(identity.Operator, "")))
	if err := ask("main-0"); err == nil {
		t.Error("a shard of another store answers")
	}
}

// playedGrants simulates a shard that uses version 7 of the grants table, and has received two tokens signed by unknown
// keys.
type playedGrants struct{}

func (playedGrants) Version() int64                { return 7 }
func (playedGrants) UnknownKeys() map[string]int64 { return map[string]int64{"https://a": 2} }

func TestProcessesReportTheirCertificates(t *testing.T) {
	source := sourceOf(t, storeFiles(t, certs.Both)(identity.Gateway, ""))
	with := httptest.NewServer(certs.Handle(source, playedGrants{}, http.NotFoundHandler()))
	t.Cleanup(with.Close)
	without := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(without.Close)
	asker := NewTransports()
	got, err := asker.Transport(t.Context(), with.Listener.Addr().String())
	status := source.Report()
	if err != nil || got.Mode != "both" || got.Bundle != status.Bundle || got.ClientBundle != status.ClientBundle ||
		!got.NotAfter.Equal(status.NotAfter) ||
		got.Identity != status.Identity || got.GrantsVersion == nil || *got.GrantsVersion != 7 ||
		got.UnknownKeys["https://a"] != 2 {
		t.Errorf("%+v, %v; it has %+v", got, err, status)
	}
	if _, err := asker.Transport(t.Context(), without.Listener.Addr().String()); err == nil ||
		!strings.Contains(err.Error(), "without certificates") {
		t.Errorf("one without certificates: %v", err)
	}
}
