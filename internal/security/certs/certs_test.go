package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/must"
)

var (
	one = identity.Store{Domain: "cluster.local", Namespace: "quotes",
		UID: uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")}
	two = identity.Store{Domain: "cluster.local", Namespace: "quotes",
		UID: uuid.MustParse("6ba7b811-9dad-11d1-80b4-00c04fd430c8")}
	gate  = identity.Identity{Store: one, Role: identity.Gateway}
	shard = identity.Identity{Store: one, Role: identity.Shard, Name: "main-0"}
)

func newAuthority(t *testing.T, name string) *authority.Authority {
	t.Helper()
	a, err := authority.New(name, time.Now(), authority.Lifetime)
	must.OK(t, err)
	return a
}

// leaf describes a certificate that is valid for one day, for both servers and clients.
func leaf(id identity.Identity) authority.Leaf {
	return authority.Leaf{Identity: id, Server: true, Client: true, Now: time.Now(), Lifetime: 24 * time.Hour}
}

// certFiles returns the files of a certificate folder that contains a new leaf and the trusted authorities.
func certFiles(t *testing.T, by *authority.Authority, l authority.Leaf, trusted ...*authority.Authority) files {
	t.Helper()
	cert, key, err := by.Issue(l)
	must.OK(t, err)
	out := files{CertificateFile: cert, KeyFile: key, BundleFile: nil}
	for _, a := range trusted {
		out[BundleFile] = append(out[BundleFile], a.CertificatePEM()...)
	}
	return out
}

// mount writes files into a folder in the same layout in which the kubelet mounts a Secret.
func mount(t *testing.T, dir string, all files) {
	t.Helper()
	must.OK(t, Install(dir, all))
}

// clock is a clock that a test can shift. Its zero value shows the actual time.
type clock struct{ shift atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.shift.Load())) }

// open creates a Source that checks its folder only when the test calls look.
func open(t *testing.T, all files, c *clock) (*Source, string) {
	t.Helper()
	dir := t.TempDir()
	mount(t, dir, all)
	s, err := Open(Config{Dir: dir, Every: time.Hour, Now: c.now})
	must.OK(t, err)
	t.Cleanup(s.Close)
	return s, dir
}

// health is a health server that sends the identity of each caller to a channel.
type health struct {
	healthv1.UnimplementedHealthServer
	callers chan identity.Identity
}

func (h *health) Check(ctx context.Context, _ *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	who, _ := PeerOf(ctx)
	h.callers <- who
	return &healthv1.HealthCheckResponse{}, nil
}

// Watch sends one response, and then keeps the stream open.
func (h *health) Watch(_ *healthv1.HealthCheckRequest,
	stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	if err := stream.Send(&healthv1.HealthCheckResponse{}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// serve starts a server with the given credentials. It returns the server's address and a channel with its callers.
func serve(t *testing.T, creds credentials.TransportCredentials) (address string, callers chan identity.Identity) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	server, callers := grpc.NewServer(grpc.Creds(creds)), make(chan identity.Identity, 1)
	healthv1.RegisterHealthServer(server, &health{callers: callers})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String(), callers
}

func dial(t *testing.T, address string, creds credentials.TransportCredentials) healthv1.HealthClient {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds))
	must.OK(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return healthv1.NewHealthClient(cc)
}

func check(t *testing.T, address string, creds credentials.TransportCredentials) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := dial(t, address, creds).Check(ctx, &healthv1.HealthCheckRequest{})
	return err
}

func anybody(identity.Identity) error { return nil }

// as returns the credentials of a client that accepts any server.
func as(t *testing.T, all files, change func(*tls.Config)) credentials.TransportCredentials {
	t.Helper()
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}
	if all != nil {
		pair, err := tls.X509KeyPair(all[CertificateFile], all[KeyFile])
		must.OK(t, err)
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	if change != nil {
		change(cfg)
	}
	return credentials.NewTLS(cfg)
}

func TestAServerAcceptsOnlyItsOwnCallers(t *testing.T) {
	a, b := newAuthority(t, "a"), newAuthority(t, "b")
	strict, _ := open(t, certFiles(t, a, leaf(shard), a), &clock{})
	open, _ := open(t, certFiles(t, a, leaf(shard), a), &clock{})
	late, early, server := leaf(gate), leaf(gate), leaf(gate)
	late.Now = time.Now().Add(-48 * time.Hour)
	early.Now = time.Now().Add(24 * time.Hour) // the validity begins some time before the certificate is issued
	server.Client = false
	nobody := identity.Identity{}
	for _, tt := range []struct {
		name        string
		creds       credentials.TransportCredentials
		refused     string // reason under which the refusal is counted; empty if the call succeeds
		anonymous   string // same as refused, for a server that accepts clients without certificates
		who, whoToo identity.Identity
	}{
		{name: "a gateway", creds: as(t, certFiles(t, a, leaf(gate), a), nil), who: gate, whoToo: gate},
		{name: "nobody", creds: as(t, nil, nil), refused: "none", whoToo: nobody},
		{name: "plaintext", creds: insecure.NewCredentials(), refused: "plaintext", anonymous: "plaintext"},
		{name: "another authority", creds: as(t, certFiles(t, b, leaf(gate), b), nil), refused: "authority",
			anonymous: "authority"},
		{name: "its time is over", creds: as(t, certFiles(t, a, late, a), nil), refused: "expired",
			anonymous: "expired"},
		{name: "its time has not come", creds: as(t, certFiles(t, a, early, a), nil), refused: "expired",
			anonymous: "expired"},
		{name: "for servers alone", creds: as(t, certFiles(t, a, server, a), nil), refused: "usage", anonymous: "usage"},
		{name: "an older TLS", creds: as(t, certFiles(t, a, leaf(gate), a), func(c *tls.Config) {
			c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		}),
			refused: "other", anonymous: "other"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, by := range []struct {
				source  *Source
				o       ServerOptions
				refused string
				who     identity.Identity
			}{{strict, ServerOptions{}, tt.refused, tt.who}, {open, ServerOptions{Anonymous: true}, tt.anonymous, tt.whoToo}} {
				address, callers := serve(t, by.source.Server(by.o))
				before := refusals(by.source)
				err := check(t, address, tt.creds)
				if (err == nil) != (by.refused == "") {
					t.Fatalf("%+v: %v", by.o, err)
				}
				if err == nil {
					if who := <-callers; who != by.who {
						t.Errorf("%+v: the caller is %v", by.o, who)
					}
					continue
				}
				if status.Code(err) != codes.Unavailable || len(callers) > 0 {
					t.Errorf("%+v: %v", by.o, err)
				}
				for refusals(by.source)[by.refused] == before[by.refused] {
					// The caller may get the refusal before the metric counts it. The loop ends at the latest with the test's time
					// limit.
					runtime.Gosched()
				}
				for reason, n := range refusals(by.source) {
					if reason != by.refused && n > before[reason] {
						t.Errorf("%+v: refused as %s: %v times", by.o, reason, n-before[reason])
					}
				}
			}
		})
	}
}

// refusals returns how many connections a Source has refused, by reason.
func refusals(s *Source) map[string]float64 {
	out := map[string]float64{}
	for _, reason := range []string{"none", "plaintext", "authority", "expired", "usage", "identity", "peer", "other"} {
		out[reason] = testutil.ToFloat64(s.counts.handshakes.WithLabelValues(reason))
	}
	return out
}

func TestAClientAcceptsOnlyTheServerItMeans(t *testing.T) {
	a, b := newAuthority(t, "a"), newAuthority(t, "b")
	source, _ := open(t, certFiles(t, a, leaf(gate), a), &clock{})
	client, late := leaf(shard), leaf(shard)
	client.Server = false
	late.Now = time.Now().Add(-48 * time.Hour)
	foreign, other := shard, shard
	foreign.Store = two
	other.Name = "main-1"
	for _, tt := range []struct {
		name    string
		by      *authority.Authority
		leaf    authority.Leaf
		refused string
	}{
		{"the shard", a, leaf(shard), ""},
		{"another shard", a, leaf(other), "identity"},
		{"a shard of another store", a, leaf(foreign), "identity"},
		{"a gateway", a, leaf(gate), "identity"},
		{"another authority", b, leaf(shard), "authority"},
		{"its time is over", a, late, "expired"},
		{"for clients alone", a, client, "usage"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := certFiles(t, tt.by, tt.leaf, a)
			pair, err := tls.X509KeyPair(all[CertificateFile], all[KeyFile])
			must.OK(t, err)
			address, callers := serve(t, credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13,
				Certificates: []tls.Certificate{pair}}))
			before := refusals(source)
			err = check(t, address, source.Client(source.Own(identity.Shard, "main-0")))
			if (err == nil) != (tt.refused == "") || len(callers) > 0 != (tt.refused == "") {
				t.Fatal(err)
			}
			for reason, n := range refusals(source) {
				if (n > before[reason]) != (reason == tt.refused) {
					t.Errorf("refused as %s: %v times", reason, n-before[reason])
				}
			}
		})
	}
	t.Run("plaintext", func(t *testing.T) {
		address, callers := serve(t, insecure.NewCredentials())
		if err := check(t, address, source.Client(anybody)); err == nil || len(callers) > 0 {
			t.Error(err)
		}
	})
}

// TestAnAuthorityChangesUnderOpenConnections replaces an authority in three steps. First, both authorities are
// trusted. Then the new authority issues the certificates. Finally, the old authority is no longer trusted. Processes
// that follow each step can communicate with each other at any time. A process that has missed the steps is refused.
func TestAnAuthorityChangesUnderOpenConnections(t *testing.T) {
	a, b := newAuthority(t, "a"), newAuthority(t, "b")
	server, serverDir := open(t, certFiles(t, a, leaf(shard), a), &clock{})
	client, clientDir := open(t, certFiles(t, a, leaf(gate), a), &clock{})
	address, callers := serve(t, server.Server(ServerOptions{}))
	expect := client.Own(identity.Shard, "main-0")
	watch := func(creds credentials.TransportCredentials) grpc.ServerStreamingClient[healthv1.HealthCheckResponse] {
		t.Helper()
		stream, err := dial(t, address, creds).Watch(t.Context(), &healthv1.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		must.OK(t, err)
		return stream
	}
	answered := func() {
		t.Helper()
		must.OK(t, check(t, address, client.Client(expect)))
		<-callers
	}
	stays := watch(as(t, certFiles(t, a, leaf(gate), a), nil)) // this client's files never change
	bundles := []string{server.Report().Bundle}
	for _, step := range []struct {
		by      *authority.Authority
		trusted []*authority.Authority
	}{{a, []*authority.Authority{a, b}}, {b, []*authority.Authority{b, a}}, {b, []*authority.Authority{b}}} {
		goes := watch(client.Client(expect))
		mount(t, serverDir, certFiles(t, step.by, leaf(shard), step.trusted...))
		server.look()
		if len(step.trusted) > 1 {
			answered() // this client has not noticed the change yet
		}
		mount(t, clientDir, certFiles(t, step.by, leaf(gate), step.trusted...))
		client.look()
		server.look()
		answered()
		if err := client.Report().Error; err != "" {
			t.Fatal(err)
		}
		if now := server.Report().Bundle; now != client.Report().Bundle {
			t.Errorf("bundles differ: %s, %s", now, client.Report().Bundle)
		} else {
			bundles = append(bundles, now)
		}
		_ = goes.CloseSend()
	}
	if bundles[1] != bundles[2] || bundles[0] == bundles[1] || bundles[2] == bundles[3] || bundles[0] == bundles[3] {
		t.Errorf("bundles: %v", bundles)
	}
	if _, err := stays.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("a connection of the old authority: %v", err)
	}
	if n := testutil.ToFloat64(server.counts.closed); n == 0 {
		t.Error("no connection was closed")
	}
	if err := check(t, address, as(t, certFiles(t, a, leaf(gate), a), nil)); err == nil {
		t.Error("the old authority is still trusted")
	}
}

func TestAConnectionEndsWithItsPeersCertificate(t *testing.T) {
	a, c := newAuthority(t, "a"), &clock{}
	server, dir := open(t, certFiles(t, a, leaf(shard), a), c)
	address, _ := serve(t, server.Server(ServerOptions{}))
	stream, err := dial(t, address, as(t, certFiles(t, a, leaf(gate), a), nil)).
		Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	must.OK(t, err)
	longer := leaf(shard)
	longer.Lifetime = 30 * 24 * time.Hour
	mount(t, dir, certFiles(t, a, longer, a))
	server.look()
	if n := testutil.ToFloat64(server.counts.closed); n != 0 {
		t.Fatal("a connection was closed while its peer's certificate was good")
	}
	c.shift.Store(int64(25 * time.Hour))
	server.look()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
}

// badFolders returns folders that are unusable for all kinds of reasons, each with a word that the error must contain.
func badFolders(t *testing.T, a *authority.Authority) map[string]struct {
	files files
	says  string
} {
	t.Helper()
	good, other := certFiles(t, a, leaf(shard), a), certFiles(t, a, leaf(shard), a)
	with := func(change func(f files)) files {
		out := maps.Clone(good)
		change(out)
		return out
	}
	late, early := leaf(shard), leaf(shard)
	late.Now = time.Now().Add(-48 * time.Hour)
	early.Now = time.Now().Add(24 * time.Hour) // the validity begins some time before the certificate is issued
	clientOnly := leaf(shard)
	clientOnly.Server = false
	out := map[string]struct {
		files files
		says  string
	}{
		"no certificate":  {with(func(f files) { delete(f, CertificateFile) }), "tls.crt is missing"},
		"no key":          {with(func(f files) { delete(f, KeyFile) }), "tls.key is missing"},
		"no bundle":       {with(func(f files) { delete(f, BundleFile) }), "ca.crt is missing"},
		"an empty bundle": {with(func(f files) { f[BundleFile] = []byte{} }), "ca.crt holds no certificate"},
		"a half bundle": {with(func(f files) {
			f[BundleFile] = append(f[BundleFile], f[BundleFile][:200]...)
		}), "half written"},
		"a bundle with a leaf": {with(func(f files) { f[BundleFile] = f[CertificateFile] }), "none of an authority"},
		"a bundle with a key":  {with(func(f files) { f[BundleFile] = f[KeyFile] }), "only certificates"},
		"half a certificate": {with(func(f files) {
			f[CertificateFile] = f[CertificateFile][:200]
		}), "tls.crt and tls.key"},
		"half a key":            {with(func(f files) { f[KeyFile] = f[KeyFile][:100] }), "tls.crt and tls.key"},
		"another key":           {with(func(f files) { f[KeyFile] = other[KeyFile] }), "private key does not match"},
		"another authority":     {certFiles(t, newAuthority(t, "b"), leaf(shard), a), "unknown authority"},
		"its time is over":      {certFiles(t, a, late, a), "expired"},
		"its time has not come": {certFiles(t, a, early, a), "not yet valid"},
		"for clients alone":     {certFiles(t, a, clientOnly, a), "tls.crt: as a certificate of servers"},
		"a client key missing": {with(func(f files) {
			f[ClientCertificateFile] = f[CertificateFile]
		}), "client.key is missing"},
	}
	twoNames := maps.Clone(good)
	gateway := certFiles(t, a, leaf(gate), a)
	twoNames[ClientCertificateFile], twoNames[ClientKeyFile] = gateway[CertificateFile], gateway[KeyFile]
	out["two names"] = struct {
		files files
		says  string
	}{twoNames, "client.crt names"}
	return out
}

func TestUnusableFiles(t *testing.T) {
	a := newAuthority(t, "a")
	for name, tt := range badFolders(t, a) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mount(t, dir, tt.files)
			if s, err := Open(Config{Dir: dir}); err == nil {
				s.Close()
				t.Error("a process starts with them")
			} else if !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), dir) ||
				strings.Contains(err.Error(), privateKeyPart(tt.files)) {
				t.Error(err)
			}

			good := certFiles(t, a, leaf(shard), a)
			s, dir := open(t, good, &clock{})
			before := s.Report()
			mount(t, dir, tt.files)
			s.look()
			s.look()
			now := s.Report()
			if !strings.Contains(now.Error, tt.says) || now.Error == "" || now.Bundle != before.Bundle ||
				now.Read != before.Read {
				t.Errorf("%+v", now)
			}
			if n := testutil.ToFloat64(s.counts.reloadErrors); n != 2 {
				t.Errorf("%v errors are counted", n)
			}
			mount(t, dir, certFiles(t, a, leaf(shard), a))
			if s.look(); s.Report().Error != "" {
				t.Error(s.Report().Error)
			}
		})
	}
	if _, err := Open(Config{Dir: filepath.Join(t.TempDir(), "none")}); err == nil ||
		!strings.Contains(err.Error(), "ca.crt is missing") {
		t.Error(err)
	}
}

// privateKeyPart returns a part of the private key in a folder. No error may contain it.
func privateKeyPart(f files) string {
	if len(f[KeyFile]) < 90 {
		return "no key"
	}
	return string(f[KeyFile][40:60])
}

func TestAProcessStaysWhoItIs(t *testing.T) {
	a := newAuthority(t, "a")
	s, dir := open(t, certFiles(t, a, leaf(shard), a), &clock{})
	mount(t, dir, certFiles(t, a, leaf(gate), a))
	if s.look(); s.Report().Error == "" || s.Identity() != shard {
		t.Errorf("%v is %v", s.Report().Error, s.Identity())
	}
}

func TestACertificateForEachUsage(t *testing.T) {
	a := newAuthority(t, "a")
	asServer, asClient := leaf(shard), leaf(shard)
	asServer.Client, asClient.Server = false, false
	asClient.Lifetime = time.Hour
	all, shown := certFiles(t, a, asServer, a), certFiles(t, a, asClient, a)
	all[ClientCertificateFile], all[ClientKeyFile] = shown[CertificateFile], shown[KeyFile]
	s, _ := open(t, all, &clock{})
	address, callers := serve(t, s.Server(ServerOptions{}))
	if err := check(t, address, s.Client(s.Own(identity.Shard, ""))); err != nil || <-callers != shard {
		t.Error(err)
	}
	if until := time.Until(s.Report().NotAfter); until > time.Hour {
		t.Errorf("the first certificate ends in %v", until)
	}
}

func TestOneSetOfFilesIsKept(t *testing.T) {
	a, dir := newAuthority(t, "a"), filepath.Join(t.TempDir(), "tls")
	for range 3 {
		mount(t, dir, certFiles(t, a, leaf(shard), a))
	}
	folders, err := filepath.Glob(filepath.Join(dir, dataFolder+"*"))
	if err != nil || len(folders) != 1 {
		t.Error(folders, err)
	}
	if err := Install(filepath.Join(dir, CertificateFile), nil); err == nil {
		t.Error("a file is taken for a folder")
	}
	// If an earlier Install was interrupted, it leaves such a link behind.
	must.OK(t, os.Symlink("nowhere", filepath.Join(dir, "..next")))
	mount(t, dir, certFiles(t, a, leaf(shard), a))
	s, err := Open(Config{Dir: dir})
	must.OK(t, err)
	s.Close()
}

// TestFilesAreReplacedUnderAReader replaces files while a process reads them. The process must find either the
// complete old set or the complete new one.
func TestFilesAreReplacedUnderAReader(t *testing.T) {
	a, dir, done := newAuthority(t, "a"), t.TempDir(), make(chan struct{})
	mount(t, dir, certFiles(t, a, leaf(shard), a))
	sets := []files{certFiles(t, a, leaf(shard), a), certFiles(t, a, leaf(shard), a)}
	go func() {
		defer close(done)
		for n := range 200 {
			if err := Install(dir, sets[n%2]); err != nil {
				t.Error(err)
			}
		}
	}()
	for {
		found, err := readFiles(dir)
		if err == nil {
			_, err = found.material(time.Now())
		}
		must.OK(t, err)
		select {
		case <-done:
			return
		default:
		}
	}
}

// TestTheFolderIsFollowed checks that a Source notices changes of its folder by itself, without the test calling
// look.
func TestTheFolderIsFollowed(t *testing.T) {
	a := newAuthority(t, "a")
	dir := t.TempDir()
	mount(t, dir, certFiles(t, a, leaf(shard), a))
	s, err := Open(Config{Dir: dir, Every: time.Millisecond})
	must.OK(t, err)
	defer s.Close()
	next := leaf(shard)
	next.Lifetime = time.Hour
	mount(t, dir, certFiles(t, a, next, a))
	for time.Until(s.Report().NotAfter) > time.Hour {
		// The loop waits until the Source has noticed the change. It ends at the latest with the test's time limit.
		time.Sleep(time.Millisecond)
	}
}

func TestChainsLeadToTheirAuthority(t *testing.T) {
	if err := verify([]*x509.Certificate{{}}, x509.NewCertPool(), time.Now(), x509.ExtKeyUsageAny); err == nil {
		t.Error("an empty certificate is good")
	}
}
