package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/must"
)

// The plugin's calls have an administrator's rights. Therefore it connects only to gateways of the store, and not to
// other processes that also have a certificate of the store.
func TestPluginConnectsOnlyToGateways(t *testing.T) {
	a, _ := newTestApp(t, "secure")
	of := identity.Store{Domain: "cluster.local", Namespace: "secure", UID: uuid.New()}
	own, callers := newAuthority(t), newAuthority(t)
	files := func(from *authority.Authority, role identity.Role, name string) map[string][]byte {
		cert, key, err := from.Issue(authority.Leaf{
			Identity: identity.Identity{Store: of, Role: role, Name: name}, Server: true, Client: true, Now: time.Now(),
			Lifetime: time.Hour,
		})
		must.OK(t, err)
		return map[string][]byte{
			certs.CertificateFile: cert, certs.KeyFile: key, certs.BundleFile: own.CertificatePEM(),
			certs.ClientBundleFile: callers.CertificatePEM(),
		}
	}
	store := &v1alpha1.RecordStore{ObjectMeta: metav1.ObjectMeta{Namespace: "secure", Name: "quotes"}}
	store.Status.TLS = &v1alpha1.TLSStatus{Transport: v1alpha1.TransportRequired}
	if _, _, err := a.credentials(t.Context(), store); err == nil || !strings.Contains(err.Error(), "quotes-admin-tls") {
		t.Errorf("without a Secret: %v", err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "secure", Name: "quotes-admin-tls"},
		Data: files(callers, identity.Admin, "admin")}
	must.OK(t, a.objects.Create(t.Context(), secret))
	speaks, done, err := a.credentials(t.Context(), store)
	must.OK(t, err)
	defer done()
	for name, want := range map[string]codes.Code{"gateway": codes.OK, "shard/main-0": codes.Unavailable} {
		role, shard, _ := strings.Cut(name, "/")
		conn, err := grpc.NewClient("passthrough:///"+serveHealth(t, files(own, identity.Role(role), shard)),
			grpc.WithTransportCredentials(speaks))
		must.OK(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
		cancel()
		if status.Code(err) != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
		_ = conn.Close()
	}
}

func newAuthority(t *testing.T) *authority.Authority {
	t.Helper()
	made, err := authority.New("test", time.Now(), time.Hour)
	must.OK(t, err)
	return made
}

// serveHealth serves health checks at a local address, over TLS only.
func serveHealth(t *testing.T, files map[string][]byte) string {
	t.Helper()
	source, err := certs.InMemory(certs.Config{}, files)
	must.OK(t, err)
	t.Cleanup(source.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	server := grpc.NewServer(grpc.Creds(source.Server(certs.ServerOptions{})))
	healthv1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }() // Serve returns when the server is stopped
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}
