package shard

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

// The tests in this file run in real time, because they use a real etcd and real TLS connections.

// certificatesOf returns the TLS certificates of a process with the given identity.
func certificatesOf(t *testing.T, a *authority.Authority, id identity.Identity) *certs.Source {
	t.Helper()
	cert, key, err := a.Issue(authority.Leaf{Identity: id, Server: true, Client: true, Now: time.Now(),
		Lifetime: time.Hour})
	must(t, err)
	source, err := certs.InMemory(certs.Config{}, map[string][]byte{
		certs.CertificateFile: cert, certs.KeyFile: key, certs.BundleFile: a.CertificatePEM(),
	})
	must(t, err)
	t.Cleanup(source.Close)
	return source
}

// Three shards share a group over TLS, and ask each other for the contents of their volumes. A shard that responds
// under a different name than the requested one receives nothing, and its response is ignored.
func TestShardsAskEachOtherByName(t *testing.T) {
	store, ctx := newEtcd(t), t.Context()
	id := uuid.New()
	meta, err := store.InitMeta(ctx, placement.Meta{
		StoreUUID: id, Routing: placement.Routing{Mode: placement.Hash, Groups: 1}, Copies: 3, CreatedUTC: time.Now().UTC().
				Format(time.RFC3339),
	})
	must(t, err)
	a, err := authority.New("shards", time.Now(), authority.Lifetime)
	must(t, err)
	of := identity.Store{Domain: "cluster.local", Namespace: "prod", UID: id}
	shards := map[string]*fixture{}
	for _, name := range []string{"s1", "s2", "s3"} {
		f := &fixture{t: t, cfg: Config{
			Name: name, Dir: t.TempDir(), Listen: "127.0.0.1:0", Placement: store, SegmentBytes: 1 << 20, ReserveBytes: 16 << 20,
			Compaction: Compaction{Off: true}, ReportInterval: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		}}
		guard := f.cfg.Secure(certificatesOf(t, a, identity.Identity{Store: of, Role: identity.Shard, Name: name}))
		t.Cleanup(guard.Close)
		f.run()
		shards[name] = f
	}
	first := shards["s1"]

	// The copies of a group must exchange messages to agree on a record, so a put that succeeds proves that they do.
	gateway := certificatesOf(t, a, identity.Identity{Store: of, Role: identity.Gateway})
	first.eventually("a record is put", func() bool {
		if _, err := store.PlanOnce(ctx, id, meta.Policy()); err != nil {
			return false
		}
		for name, f := range shards {
			conn, err := grpc.NewClient(f.shard.Addr(), grpc.WithTransportCredentials(gateway.Client(gateway.Own(identity.Shard,
				name))))
			must(t, err)
			bound, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "sheaf-caller", "admin/a"),
				10*time.Second)
			_, err = recordv1.NewRecordServiceClient(conn).Put(bound, &recordv1.PutRequest{Key: key(1), Data: []byte("by TLS")})
			cancel()
			_ = conn.Close()
			if err == nil {
				return true
			}
		}
		return false
	})
	for asks, f := range shards {
		for asked, other := range shards {
			bound, cancel := context.WithTimeout(ctx, 2*time.Minute)
			found, err := f.shard.watcher.Ask(bound, placement.Shard{Name: asked, Address: other.shard.Addr()})
			if err != nil || found.Shard != asked || found.Store != id {
				t.Errorf("%s asks %s: %+v, %v", asks, asked, found, err)
			}
			wrong := "s9"
			_, err = f.shard.watcher.Ask(bound, placement.Shard{Name: wrong, Address: other.shard.Addr()})
			if want := fmt.Sprintf("the peer is spiffe://cluster.local/ns/prod/store/%s/shard/%s", id, asked); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%s asks %s for %s: %v, want %q", asks, asked, wrong, err, want)
			}
			cancel()
		}
	}

	// The shard does not ask shards of another store, even if the same authority has certified them, and it does not ask
	// processes other than shards.
	another := of
	another.UID = uuid.New()
	for name, peer := range map[string]identity.Identity{
		"another store": {Store: another, Role: identity.Shard, Name: "s2"}, "a gateway": {Store: of, Role: identity.Gateway},
	} {
		server := grpc.NewServer(grpc.Creds(certificatesOf(t, a, peer).Server(certs.ServerOptions{})))
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		go func() { _ = server.Serve(listener) }() // Serve ends when the server is stopped
		t.Cleanup(server.Stop)
		bound, cancel := context.WithTimeout(ctx, 2*time.Minute)
		_, err = first.shard.watcher.Ask(bound, placement.Shard{Name: "s2", Address: listener.Addr().String()})
		if err == nil || !strings.Contains(err.Error(), "the peer is "+peer.String()) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

// TestWhoCarriesOthers checks that only gateways and shards of the store itself may carry other callers' calls.
func TestWhoCarriesOthers(t *testing.T) {
	own := identity.Store{Domain: "d", Namespace: "n", UID: uuid.New()}
	other := identity.Store{Domain: "d", Namespace: "n", UID: uuid.New()}
	for _, c := range []struct {
		info credentials.AuthInfo
		want bool
	}{
		{certs.AuthInfo{Peer: identity.Identity{Store: own, Role: identity.Gateway}}, true},
		{certs.AuthInfo{Peer: identity.Identity{Store: own, Role: identity.Shard, Name: "s"}}, true},
		{certs.AuthInfo{Peer: identity.Identity{Store: other, Role: identity.Gateway}}, false},
		{certs.AuthInfo{Peer: identity.Identity{Store: own, Role: identity.Client, Name: "c"}}, false},
		{certs.AuthInfo{Peer: identity.Identity{Store: own, Role: identity.Admin, Name: "a"}}, false},
		{certs.AuthInfo{}, false},
		{certs.AuthInfo{Plain: true}, false},
		{nil, false},
	} {
		if got := carriesOthers(own, c.info); got != c.want {
			t.Errorf("%+v: %v", c.info, got)
		}
	}
}

// A shard fetches the groups of a restore only from a process with the role archive of its own store. Such a process is
// not taken for a shard, and a shard is not taken for such a process.
func TestOnlyTheArchiveOfTheStoreIsASource(t *testing.T) {
	a, err := authority.New("shards", time.Now(), authority.Lifetime)
	must(t, err)
	of := identity.Store{Domain: "cluster.local", Namespace: "prod", UID: uuid.New()}
	another := of
	another.UID = uuid.New()
	cfg := &Config{Placement: newRegistry(hash4, "s1"), Logger: slog.New(slog.DiscardHandler)}
	guard := cfg.Secure(certificatesOf(t, a, identity.Identity{Store: of, Role: identity.Shard, Name: "s1"}))
	t.Cleanup(guard.Close)
	for name, c := range map[string]struct {
		as            identity.Identity
		source, shard bool
	}{
		"the archive":            {identity.Identity{Store: of, Role: identity.Archive}, true, false},
		"another store's":        {identity.Identity{Store: another, Role: identity.Archive}, false, false},
		"the shard":              {identity.Identity{Store: of, Role: identity.Shard, Name: "s2"}, false, true},
		"a gateway":              {identity.Identity{Store: of, Role: identity.Gateway}, false, false},
		"another store's shard":  {identity.Identity{Store: another, Role: identity.Shard, Name: "s2"}, false, false},
		"a client named archive": {identity.Identity{Store: of, Role: identity.Client, Name: "archive"}, false, false},
	} {
		server := certificatesOf(t, a, c.as).Server(certs.ServerOptions{})
		for is, want := range map[string]bool{"the source": c.source, "shard s2": c.shard} {
			creds := cfg.SourceCredentials()
			if is == "shard s2" {
				creds = cfg.PeerCredentials("s2")
			}
			near, far := net.Pipe()
			go func() {
				_, _, _ = server.ServerHandshake(far) // if the client refuses the server, the handshake fails here, too
				_ = far.Close()
			}()
			_, _, err := creds.ClientHandshake(t.Context(), "s2", near)
			_ = near.Close()
			if (err == nil) != want || !want && !strings.Contains(err.Error(), "the peer is "+c.as.String()) {
				t.Errorf("%s is taken for %s: %v", name, is, err)
			}
			if cfg.SpeaksFor(context.Background(), "s2") {
				t.Error("a call without a certificate is taken for one of a shard")
			}
		}
	}
}
