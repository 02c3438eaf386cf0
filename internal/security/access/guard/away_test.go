package guard

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/test/etcdserver"
)

// TestAnHourWithoutEtcd checks the decisions during an hour in which neither etcd nor any other process can be
// reached. Callers with a grant are still served, even if their tokens are issued during that hour. Callers whose
// grants were removed before that hour are still refused, and tokens are no longer accepted after they expire.
func TestAnHourWithoutEtcd(t *testing.T) {
	server, err := etcdserver.Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	c, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	tables, err := registry.NewStore(c, "quotes", nil)
	if err != nil {
		t.Fatal(err)
	}
	meta := placement.Meta{StoreUUID: uuid.New(), Routing: placement.Routing{Mode: placement.Named}, Copies: 1}
	if _, err := tables.InitMeta(t.Context(), meta); err != nil {
		t.Fatal(err)
	}
	var clock atomic.Int64 // Unix time in seconds
	begin := time.Now()
	clock.Store(begin.Unix())
	s := serveWith(t, nil, func(cfg *Config) {
		cfg.Now = func() time.Time { return time.Unix(clock.Load(), 0) }
		cfg.Key = tables.SigningKey
		cfg.Follow = func(ctx context.Context, take func([]byte)) {
			for found := range tables.WatchAccess(ctx) {
				take(found.Table)
			}
		}
	})

	const cluster, audience = "https://kubernetes.default.svc", "sheaf/prod/quotes"
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k"}}})
	if err != nil {
		t.Fatal(err)
	}
	token := func(account string, ends time.Time) string {
		t.Helper()
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		claims, err := json.Marshal(map[string]any{"iss": cluster, "aud": audience,
			"sub": "system:serviceaccount:prod:" + account, "exp": ends.Unix()})
		if err != nil {
			t.Fatal(err)
		}
		signed, err := signer.Sign(claims)
		if err != nil {
			t.Fatal(err)
		}
		out, err := signed.CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	byToken := func(token string) codes.Code {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
		_, err := s.record.Get(ctx, &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: "a"}})
		return status.Code(err)
	}
	put := func(version int64, subjects ...access.Subject) {
		t.Helper()
		table := access.Table{Version: version, Audience: audience,
			Issuers: []access.Issuer{{URL: cluster, ServiceAccounts: true, Keys: keys}},
			Grants: []access.Grant{{Name: "g", Subjects: subjects, Verbs: []access.Verb{access.Get},
				Groups: access.Groups{Names: []string{"a"}}}}}
		text, err := table.Encode()
		if err != nil {
			t.Fatal(err)
		}
		there, err := tables.Access(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := tables.PutAccess(t.Context(), text, there.Revision); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); s.Version() != version; {
			if time.Now().After(deadline) {
				t.Fatalf("table %d is not taken", version)
			}
			time.Sleep(time.Millisecond)
		}
	}
	stays, goes := access.Subject{Kind: access.Certificate, Name: "stays"},
		access.Subject{Kind: access.Certificate, Name: "goes"}
	account := func(name string) access.Subject {
		return access.Subject{Kind: access.ServiceAccount, Namespace: "prod", Name: name}
	}
	put(1, stays, goes, account("stays"), account("goes"))
	short, long, gone := token("stays", begin.Add(30*time.Minute)), token("stays", begin.Add(3*time.Hour)),
		token("goes", begin.Add(3*time.Hour))
	check := func(when string, want map[string]codes.Code) {
		t.Helper()
		for who, got := range map[string]codes.Code{
			"client/stays": s.get(t, "client/stays", "a"), "client/goes": s.get(t, "client/goes", "a"),
			"client/stays in another group": s.get(t, "client/stays", "b"),
			"admin/ada":                     s.get(t, "admin/ada", "a"), "short": byToken(short), "long": byToken(long),
			"gone":       byToken(gone),
			"issued now": byToken(token("stays", time.Unix(clock.Load(), 0).Add(10*time.Minute))),
		} {
			if got != want[who] {
				t.Errorf("%s, %s: %s, and must be %s", when, who, got, want[who])
			}
		}
	}
	const ok, denied, unknown = codes.OK, codes.PermissionDenied, codes.Unauthenticated
	want := map[string]codes.Code{"client/stays": ok, "client/goes": ok, "client/stays in another group": denied,
		"admin/ada": ok, "short": ok, "long": ok, "gone": ok, "issued now": ok}
	check("with all grants", want)
	put(2, stays, account("stays"))
	want["client/goes"], want["gone"] = denied, denied
	check("where some were taken away", want)

	server.Close()
	for n := range 61 {
		clock.Store(begin.Add(time.Duration(n) * time.Minute).Unix())
		if n == 31 {
			want["short"] = unknown
		}
		if n%10 == 0 || n == 31 {
			check("without etcd, after "+(time.Duration(n)*time.Minute).String(), want)
		}
	}
	if s.Version() != 2 {
		t.Errorf("table %d decides", s.Version())
	}
	if log := s.log.String(); strings.Contains(log, "ERROR") {
		t.Error(log)
	}
}
