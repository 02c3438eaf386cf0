package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/etcdserver"
	"sheaf.dev/sheaf/internal/test/loopback"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// rotating is a store of several processes. Its certificates, authorities, transport and tokens change during calls.
type rotating struct {
	t       *testing.T
	dir     string
	store   identity.Store
	members []*member
	// Number of certificates issued so far. Each certificate gets a longer lifetime than the one before, so that no two
	// expire at the same time.
	issued    int
	mode      certs.Mode
	etcd      string // addresses of etcd, as in the flag --etcd
	authority *authority.Authority
	key       *ecdsa.PrivateKey // key of the token issuer
	loads     []*load
	failures  chan error
}

// member is a process of the store or a caller that has a folder of certificates.
type member struct {
	folder   string
	identity identity.Identity
	process  *process // nil if the member is a caller
	cgroup   *memoryCgroup
	notAfter time.Time
}

// load is one kind of call, which is repeated until the test ends.
type load struct {
	name string
	done atomic.Int64
}

// loadPace is the interval between the calls of one load. The pauses leave enough processor time for changing the
// certificates, authorities, transport and tokens during the test.
const loadPace = 10 * time.Millisecond

const rotatingAudience = "sheaf/prod/quotes"

func startRotating(t *testing.T) *rotating {
	t.Helper()
	r, gateway, loader := startGranted(t, 0)
	r.call(gateway.process.server, loader)
	return r
}

// startGranted starts a gateway and two shards. The store's grant table names a token issuer, and lets the client
// loader use all records. startGranted makes no calls yet. The argument memory limits the memory of each process's
// cgroup, in bytes; 0 means no limit.
func startGranted(t *testing.T, memory int64) (r *rotating, gateway, loader *member) {
	t.Helper()
	return startGrantedAs(t, memory, "--groups", "2")
}

// startGrantedAs is like startGranted, but passes the flags in create to the gateway, which creates the store with
// them.
func startGrantedAs(t *testing.T, memory int64, create ...string) (r *rotating, gateway, loader *member) {
	t.Helper()
	r = &rotating{t: t, dir: t.TempDir(), store: identity.Store{Domain: "example.org", Namespace: "prod",
		UID: uuid.New()}, mode: certs.Required, failures: make(chan error, 1)}
	r.authority = r.newAuthority()
	var err error
	r.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	server, err := etcdserver.Start(t.TempDir())
	must(t, err)
	t.Cleanup(server.Close)
	r.etcd = strings.Join(server.Endpoints(), ",")
	common := []string{"--etcd", r.etcd, "--store", "quotes", "--etcd-insecure",
		"--tls-look", "20ms", "--audit-log", filepath.Join(r.dir, "audit.log")}
	gateway, loader = r.add("gateway", identity.Gateway, ""), r.add("loader", identity.Client, "loader")
	serveAs := func(m *member, args ...string) {
		listen, pages := loopback.Free(t), loopback.Free(t)
		args = append(append(args, "--listen", listen, "--http", pages, "--tls-dir", m.folder), common...)
		if memory == 0 {
			m.process = serve(t, args...)
		} else {
			m.cgroup = newMemoryCgroup(t, fmt.Sprintf("sheaf-%d-%s", os.Getpid(), filepath.Base(m.folder)), memory)
			m.process = m.cgroup.serve(nil, append([]string{sheafBinary}, args...)...)
		}
		m.process.server, m.process.http = listen, pages
	}
	serveAs(gateway, append([]string{"gateway", "--create"}, create...)...)
	gateway.process.waitReady(t)
	r.grant(server)
	for _, name := range []string{"a", "b"} {
		serveAs(r.add(name, identity.Shard, name), "shard", "--name", name, "--dir", t.TempDir())
	}
	for _, m := range r.members {
		if m.process != nil {
			eventually(t, func() bool {
				report, err := m.report()
				return err == nil && report.GrantsVersion != nil && *report.GrantsVersion == 1
			})
		}
	}
	r.token()
	return r, gateway, loader
}

// add creates a member with a certificate for the given role and name.
func (r *rotating) add(folder string, role identity.Role, name string) *member {
	r.t.Helper()
	m := &member{folder: filepath.Join(r.dir, folder), identity: identity.Identity{Store: r.store, Role: role, Name: name}}
	r.members = append(r.members, m)
	r.install(m, r.authority, r.authority)
	return m
}

// grant gives the certificate and the token of callers access to all records.
func (r *rotating) grant(server *etcdserver.Server) {
	c, err := server.Client()
	must(r.t, err)
	defer func() { must(r.t, c.Close()) }()
	store, err := registry.NewStore(c, "quotes", nil)
	must(r.t, err)
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: r.key.Public(), KeyID: "k"}}})
	must(r.t, err)
	table := access.Table{
		Version: 1, Audience: rotatingAudience, Issuers: []access.Issuer{{URL: "https://kubernetes.default.svc",
			ServiceAccounts: true, Keys: keys}},
		Grants: []access.Grant{{
			Name: "loaders", Verbs: []access.Verb{access.Get, access.Put, access.Scan, access.Watch},
			Groups: access.Groups{All: true},
			Subjects: []access.Subject{{Kind: access.Certificate, Name: "loader"},
				{Kind: access.ServiceAccount, Namespace: "prod", Name: "loader"}},
		}},
		Tenants: []access.Tenant{{Name: "team-a", Prefix: "team-a-", Quotas: access.Quotas{StoredBytes: 1 << 30,
			Records: 1e6, CallsPerSecond: 1e4, BytesPerSecond: 1 << 30, CallsAtOnce: 1e3}}},
	}
	text, err := table.Encode()
	must(r.t, err)
	must(r.t, store.PutAccess(r.t.Context(), text, 0))
}

func (r *rotating) newAuthority() *authority.Authority {
	a, err := authority.New("quotes", time.Now(), 24*time.Hour)
	must(r.t, err)
	return a
}

// install gives a member a new certificate, and the authorities with which it verifies others.
func (r *rotating) install(m *member, by *authority.Authority, trusted ...*authority.Authority) {
	r.t.Helper()
	r.issued++
	leaf := authority.Leaf{Identity: m.identity, Server: m.identity.IsComponent(), Client: true, Now: time.Now(),
		Lifetime: time.Hour + time.Duration(r.issued)*time.Minute,
		DNSNames: []string{"localhost"}, Addresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, key, err := by.Issue(leaf)
	must(r.t, err)
	var bundle []byte
	for _, a := range trusted {
		bundle = append(bundle, a.CertificatePEM()...)
	}
	must(r.t, certs.Install(m.folder, map[string][]byte{
		certs.CertificateFile: cert, certs.KeyFile: key, certs.BundleFile: bundle, certs.ModeFile: []byte(r.mode),
	}))
	m.notAfter = leaf.Now.Add(leaf.Lifetime)
}

// renewAll installs a new certificate for every member. It returns once each process uses its new certificate.
func (r *rotating) renewAll(by *authority.Authority, trusted ...*authority.Authority) {
	r.t.Helper()
	for _, m := range r.members {
		r.install(m, by, trusted...)
	}
	for _, m := range r.members {
		if m.process == nil {
			continue
		}
		eventually(r.t, func() bool {
			report, err := m.report()
			return err == nil && report.Mode == r.mode && report.NotAfter.Sub(m.notAfter).Abs() < 30*time.Second
		})
	}
}

// report returns a process's report about its certificates.
func (m *member) report() (out certs.Report, err error) {
	answer, err := http.Get("http://" + m.process.http + certs.ReportPath)
	if err != nil {
		return out, err
	}
	defer func() { _ = answer.Body.Close() }()
	return out, json.NewDecoder(answer.Body).Decode(&out)
}

// token writes a new token of the ServiceAccount.
func (r *rotating) token() {
	r.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: r.key, KeyID: "k"}},
		nil)
	must(r.t, err)
	claims, err := json.Marshal(map[string]any{"iss": "https://kubernetes.default.svc",
		"sub": "system:serviceaccount:prod:loader", "aud": rotatingAudience,
		"exp": time.Now().Add(time.Hour).Unix(), "jti": uuid.NewString()})
	must(r.t, err)
	signed, err := signer.Sign(claims)
	must(r.t, err)
	token, err := signed.CompactSerialize()
	must(r.t, err)
	next := filepath.Join(r.dir, "token.next")
	must(r.t, os.WriteFile(next, []byte(token), 0o600))
	must(r.t, os.Rename(next, filepath.Join(r.dir, "token")))
}

// dial connects a client with the certificate in a folder, or with the token and the authorities in that folder.
func (r *rotating) dial(gateway, folder string, direct, byToken bool) (*client.Client, error) {
	files := client.TLSFiles{CA: filepath.Join(folder, certs.BundleFile)}
	cfg := client.Config{Addresses: []string{gateway}, Direct: direct}
	if byToken {
		cfg.CallCredentials = client.Token(filepath.Join(r.dir, "token"))
	} else {
		files.Cert, files.Key = filepath.Join(folder, certs.CertificateFile), filepath.Join(folder, certs.KeyFile)
	}
	var err error
	if cfg.Credentials, err = client.TLS(files); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	return client.Dial(ctx, cfg)
}

// call starts calls of all kinds: some go through the gateway with a certificate, others go directly to shards with a
// token. They stop when the test ends.
func (r *rotating) call(gateway string, loader *member) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	var under sync.WaitGroup
	for _, byToken := range []bool{false, true} {
		c, err := r.dial(gateway, loader.folder, byToken, byToken)
		must(r.t, err)
		r.t.Cleanup(func() { _ = c.Close() })
		for id := range int64(20) { // creates both groups, and waits until each has a shard
			within, over := context.WithTimeout(ctx, 5*time.Minute)
			_, err := c.Put(within, client.Key{ID: id}, nil, nil)
			over()
			must(r.t, err)
		}
		by, id := "certificate", int64(1000)
		if byToken {
			by, id = "token", 2000
		}
		for what, do := range callsOf(c, id) {
			l := r.load(what + " by " + by)
			under.Go(func() {
				pace := time.NewTicker(loadPace)
				defer pace.Stop()
				for ctx.Err() == nil {
					<-pace.C
					call, over := context.WithTimeout(ctx, time.Minute)
					err := do(call)
					over()
					if err != nil && ctx.Err() == nil {
						r.fail(fmt.Errorf("%s: %w", l.name, err))
					}
					l.done.Add(1)
				}
			})
		}
		l := r.load("watch by " + by)
		under.Go(func() {
			for _, err := range c.Watch(ctx, "0", nil) {
				if err != nil && ctx.Err() == nil {
					r.fail(fmt.Errorf("%s: %w", l.name, err))
				}
				l.done.Add(1)
			}
		})
	}
	r.t.Cleanup(func() {
		cancel()
		under.Wait()
	})
}

func (r *rotating) load(name string) *load {
	l := &load{name: name}
	r.loads = append(r.loads, l)
	return l
}

// callsOf returns a function for each kind of call that ends without being cancelled. The functions use records with
// consecutive ids, starting at id.
func callsOf(c *client.Client, id int64) map[string]func(ctx context.Context) error {
	large := bytes.Repeat([]byte("large"), 250_000)
	return map[string]func(ctx context.Context) error{
		"put and get": func(ctx context.Context) error {
			if _, err := c.Put(ctx, client.Key{ID: id}, []byte("x"), nil); err != nil {
				return err
			}
			_, err := c.Get(ctx, client.Key{ID: id}, nil)
			return err
		},
		"batch": func(ctx context.Context) error {
			for _, outcome := range c.BatchPut(ctx, []client.PutItem{{Key: client.Key{ID: id + 1}, Data: []byte("y")},
				{Key: client.Key{ID: id + 2}, Data: []byte("z")}}) {
				if outcome.Err != nil {
					return outcome.Err
				}
			}
			return nil
		},
		"upload and download": func(ctx context.Context) error {
			if _, err := c.Upload(ctx, client.Key{ID: id + 3}, bytes.NewReader(large), nil); err != nil {
				return err
			}
			var got bytes.Buffer
			if _, err := c.Download(ctx, client.Key{ID: id + 3}, &got, nil); err != nil {
				return err
			}
			if !bytes.Equal(got.Bytes(), large) {
				return io.ErrUnexpectedEOF
			}
			return nil
		},
	}
}

// checkGreeting checks whether a gateway accepts the certificate in a folder. The gateway sends its first bytes only
// after it has verified the certificate.
func (r *rotating) checkGreeting(gateway, folder string) error {
	r.t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(folder, certs.CertificateFile), filepath.Join(folder, certs.KeyFile))
	must(r.t, err)
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		InsecureSkipVerify: true, NextProtos: []string{"h2"}}}
	conn, err := dialer.DialContext(ctx, "tcp", gateway)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	at, _ := ctx.Deadline()
	must(r.t, conn.SetDeadline(at))
	_, err = conn.Read(make([]byte, 1))
	return err
}

func (r *rotating) fail(err error) {
	select {
	case r.failures <- err:
	default:
	}
}

// awaitAllCalls waits until each kind of call has been made at least twice, so that the second call began after
// awaitAllCalls was called.
func (r *rotating) awaitAllCalls() {
	r.t.Helper()
	var before []int64
	for _, l := range r.loads {
		before = append(before, l.done.Load())
	}
	for i, l := range r.loads {
		eventually(r.t, func() bool {
			select {
			case err := <-r.failures:
				r.t.Fatal("a call has failed: ", err)
			default:
			}
			return l.done.Load() >= before[i]+2
		})
	}
}

// Certificates, authorities, tokens and the transport change during calls of all kinds. No process restarts, and no
// call fails, except for calls that the client repeats automatically. A caller whose certificate was issued by a
// dropped authority is refused. `make soak-proc` repeats each kind of change between 10 and 100 times.
func TestNothingFailsWhileSecretsChange(t *testing.T) {
	t.Parallel()
	leaves, authorities, tokens := 2, 1, 1
	if soaktest.Long() {
		leaves, authorities, tokens = 100, 10, 20
	}
	r := startRotating(t)
	r.awaitAllCalls()
	gateway := r.members[0].process.server
	old := &member{folder: filepath.Join(r.dir, "old"), identity: r.members[1].identity}
	r.install(old, r.authority, r.authority)
	for n := range leaves {
		if r.renewAll(r.authority, r.authority); n%5 == 4 || n == leaves-1 {
			r.awaitAllCalls()
		}
	}
	for n := range tokens {
		if r.token(); n%2 == 1 || n == tokens-1 {
			r.awaitAllCalls()
		}
	}
	for range authorities {
		next := r.newAuthority()
		r.renewAll(r.authority, r.authority, next)
		r.renewAll(next, r.authority, next)
		// The next step shuts out callers that still use their old files, so all callers must be using the new ones by now.
		r.awaitAllCalls()
		r.renewAll(next, next)
		r.awaitAllCalls()
		r.authority = next
	}
	for _, r.mode = range []certs.Mode{certs.Both, certs.Plaintext, certs.Both, certs.Required} {
		r.renewAll(r.authority, r.authority)
		r.awaitAllCalls()
	}
	if err := r.checkGreeting(gateway, r.members[1].folder); err != nil {
		t.Errorf("a certificate of now: %v", err)
	}
	if err := r.checkGreeting(gateway, old.folder); err == nil {
		t.Error("a certificate of an authority that was dropped is taken")
	}
	calls := int64(0)
	for _, l := range r.loads {
		calls += l.done.Load()
	}
	for _, m := range r.members {
		if m.process == nil {
			continue
		}
		select {
		case <-m.process.ended:
			t.Errorf("%s has ended: %s", m.identity, m.process.stderr)
		default:
		}
	}
	t.Logf("%d changes of certificates, %d of the authority, %d of tokens, TLS off and on: %d calls, none failed", leaves,
		authorities, tokens, calls)
}
