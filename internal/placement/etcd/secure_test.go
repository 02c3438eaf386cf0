package etcd_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/loopback"
	"sheaf.dev/sheaf/internal/test/must"
)

// secured is a trio whose members have different host addresses on this machine, and share one certificate.
type secured struct {
	*trio
	by    *authority.Authority
	store identity.Store
	dir   string // folder of the members' certificates
	ips   []net.IP
}

// files returns the certificate files for a process, by file name.
func (s *secured) files(id identity.Identity, mode certs.Mode) map[string][]byte {
	s.t.Helper()
	leaf := authority.Leaf{Identity: id, Server: true, Client: true, Now: time.Now(), Lifetime: time.Hour}
	if id.Role == identity.Etcd {
		leaf.Addresses = s.ips
	}
	cert, key, err := s.by.Issue(leaf)
	must.OK(s.t, err)
	return map[string][]byte{certs.CertificateFile: cert, certs.KeyFile: key, certs.BundleFile: s.by.CertificatePEM(),
		certs.ModeFile: []byte(mode)}
}

// become changes the mode in the members' shared folder.
func (s *secured) become(mode certs.Mode) {
	s.t.Helper()
	must.OK(s.t, certs.Install(s.dir, s.files(identity.Identity{Store: s.store, Role: identity.Etcd}, mode)))
}

// source opens the members' folder, as each member does at its start.
func (s *secured) source() *certs.Source {
	s.t.Helper()
	source, err := certs.Open(certs.Config{Dir: s.dir})
	must.OK(s.t, err)
	s.t.Cleanup(source.Close)
	return source
}

// as returns an etcd client that acts as a process with the given identity and mode.
func (s *secured) as(id identity.Identity, mode certs.Mode) *clientv3.Client {
	s.t.Helper()
	source, err := certs.InMemory(certs.Config{}, s.files(id, mode))
	must.OK(s.t, err)
	s.t.Cleanup(source.Close)
	var endpoints []string
	for _, cfg := range s.configs {
		endpoints = append(endpoints, cfg.ListenClient)
	}
	return dial(s.t, etcd.ClientConfig{Endpoints: endpoints, Credentials: etcd.Credentials(source)})
}

// newSecured starts a trio in the given mode. If the mode is empty, the trio has no certificates.
func newSecured(t *testing.T, mode certs.Mode) *secured {
	t.Helper()
	by, err := authority.New("parts", time.Now(), authority.Lifetime)
	must.OK(t, err)
	s := &secured{trio: &trio{t: t, configs: map[string]etcd.MemberConfig{}, members: map[string]*etcd.Member{}}, by: by,
		dir:   t.TempDir(),
		store: identity.Store{Domain: "cluster.local", Namespace: "quotes", UID: uuid.New()}}
	_, peer, _ := net.SplitHostPort(loopback.Free(t))
	cluster := map[string]string{}
	for n, name := range []string{"a", "b", "c"} {
		cfg, ip := memberConfig(t, name), fmt.Sprintf("127.0.0.%d", n+2)
		s.ips = append(s.ips, net.ParseIP(ip))
		cfg.Cluster, cfg.Rejoin, cfg.JoinTimeout = cluster, true, time.Minute
		_, plain, _ := net.SplitHostPort(cfg.ListenPeer)
		cfg.ListenPeer = net.JoinHostPort(ip, plain)
		cfg.ListenPeerTLS = net.JoinHostPort(ip, peer)
		s.configs[name], cluster[name] = cfg, cfg.ListenPeer
	}
	s.become(mode)
	failed := make(chan error, 3)
	started := make(chan *etcd.Member, 3)
	for name, cfg := range s.configs {
		cfg.Certs = s.source()
		go func() {
			m, err := etcd.StartMember(context.Background(), cfg)
			if err != nil {
				failed <- fmt.Errorf("%s: %w", name, err)
				return
			}
			started <- m
		}()
	}
	var all []*etcd.Member
	for range s.configs {
		select {
		case err := <-failed:
			t.Fatal(err)
		case m := <-started:
			all = append(all, m)
		}
	}
	for _, m := range all {
		s.members[m.Status().Name] = m
	}
	t.Cleanup(func() {
		for _, m := range s.members {
			m.Close()
		}
	})
	for name, cfg := range s.configs {
		cfg.Existing = true
		s.configs[name] = cfg
	}
	return s
}

// restart restarts a member with the current content of its folder.
func (s *secured) restart(name string) {
	s.t.Helper()
	s.stop(name)
	cfg := s.configs[name]
	cfg.Certs = s.source()
	s.configs[name] = cfg
	s.start(name)
}

// Only processes of the store may use its etcd, and only members of that etcd may connect to each other.
func TestEtcdIsForItsOwnStore(t *testing.T) {
	t.Parallel()
	s := newSecured(t, certs.Required)
	other := s.store
	other.UID = uuid.New()
	for _, c := range []struct {
		id   identity.Identity
		want codes.Code
	}{
		{identity.Identity{Store: s.store, Role: identity.Shard, Name: "main-0"}, codes.OK},
		{identity.Identity{Store: s.store, Role: identity.Gateway}, codes.OK},
		{identity.Identity{Store: s.store, Role: identity.Operator}, codes.OK},
		{identity.Identity{Store: s.store, Role: identity.Client, Name: "ada"}, codes.PermissionDenied},
		{identity.Identity{Store: s.store, Role: identity.Admin, Name: "ada"}, codes.PermissionDenied},
	} {
		client := s.as(c.id, certs.Required)
		_, err := client.Get(testContext(t), "k")
		if status.Code(err) != c.want {
			t.Errorf("%s reads: %v", c.id, err)
		}
		// This checks a streaming call, such as a watch.
		ctx, cancel := context.WithCancel(testContext(t))
		w, open := <-client.Watch(ctx, "k", clientv3.WithCreatedNotify())
		cancel()
		if good := open && w.Err() == nil && w.Created; good != (c.want == codes.OK) {
			t.Errorf("%s watches: %+v", c.id, w)
		}
	}
	// This caller belongs to another store with the same authority. Normally, the client itself notices that the etcd
	// belongs to a different store. If the client does not check that, etcd has to reject it.
	foreign, err := certs.InMemory(certs.Config{}, s.files(identity.Identity{Store: other, Role: identity.Shard,
		Name: "main-0"}, certs.Required))
	must.OK(t, err)
	t.Cleanup(foreign.Close)
	anybody := foreign.Client(func(identity.Identity) error { return nil })
	if _, err := dial(t, etcd.ClientConfig{Endpoints: []string{s.configs["a"].ListenClient}, Credentials: anybody}).
		Get(testContext(t), "k"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("another store's shard: %v", err)
	}
	// Neither the client port nor the peer port accepts connections that do not use TLS.
	for _, address := range []string{s.configs["a"].ListenClient, s.configs["a"].ListenPeerTLS} {
		if answer, err := (&http.Client{Timeout: 5 * time.Second}).Get("http://" + address + "/version"); err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode < 400 {
				t.Errorf("%s without TLS: %s", address, answer.Status)
			}
		}
	}
	if conn, err := net.DialTimeout("tcp", s.configs["a"].ListenPeer, time.Second); err == nil {
		_ = conn.Close()
		t.Error("the port of members without TLS is open")
	}
	// A shard is not accepted as a peer, although its certificate comes from the same authority.
	all := s.files(identity.Identity{Store: s.store, Role: identity.Shard, Name: "main-0"}, certs.Required)
	pair, err := tls.X509KeyPair(all[certs.CertificateFile], all[certs.KeyFile])
	must.OK(t, err)
	round := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		InsecureSkipVerify: true}}} //nolint:gosec // only the server's check of the client matters
	if answer, err := round.Get("https://" + s.configs["a"].ListenPeerTLS + "/members"); err == nil {
		_ = answer.Body.Close()
		t.Errorf("a shard speaks to the port of members: %s", answer.Status)
	}
}

// A member with a new disk can join the others even halfway through the switch to TLS, when some members still have
// their old address.
func TestAMemberRejoinsHalfwayToTLS(t *testing.T) {
	if testing.Short() {
		t.Skip("short: restarts members of etcd again and again")
	}
	t.Parallel()
	s := newSecured(t, certs.Plaintext)
	s.become(certs.Both)
	s.restart("b")
	s.stop("c")
	cfg := s.configs["c"]
	cfg.Dir = t.TempDir()
	cfg.Certs = s.source()
	s.configs["c"] = cfg
	s.start("c")
	put(t, s.as(identity.Identity{Store: s.store, Role: identity.Gateway}, certs.Both), "k", "v")
}

func TestCertificatesOfMembersAreChecked(t *testing.T) {
	t.Parallel()
	s := &secured{trio: &trio{t: t}, dir: t.TempDir(), store: identity.Store{Domain: "cluster.local", Namespace: "quotes",
		UID: uuid.New()}}
	var err error
	if s.by, err = authority.New("parts", time.Now(), authority.Lifetime); err != nil {
		t.Fatal(err)
	}
	s.become(certs.Required)
	source := s.source()
	for says, change := range map[string]func(*etcd.MemberConfig){
		"TLS is empty":             func(c *etcd.MemberConfig) { c.Certs = source },
		"of use with certificates": func(c *etcd.MemberConfig) { c.ListenPeerTLS = "127.0.0.1:1" },
		"or single files, not both": func(c *etcd.MemberConfig) {
			c.Certs, c.ClientTLS.Cert, c.ClientTLS.Key = source, "a", "b"
		},
		"give host:port":          func(c *etcd.MemberConfig) { c.Certs, c.ListenPeerTLS = source, "127.0.0.1" },
		"on an IP, not on a name": func(c *etcd.MemberConfig) { c.Certs, c.ListenPeerTLS = source, "example.org:1" },
		"shard/main-0, and this is etcd": func(c *etcd.MemberConfig) {
			shard, err := certs.InMemory(certs.Config{}, s.files(identity.Identity{Store: s.store, Role: identity.Shard,
				Name: "main-0"}, certs.Required))
			must.OK(t, err)
			t.Cleanup(shard.Close)
			c.Certs, c.ListenPeerTLS = shard, "127.0.0.1:1"
		},
	} {
		cfg := memberConfig(t, "a")
		change(&cfg)
		if m, err := etcd.StartMember(testContext(t), cfg); err == nil || !strings.Contains(err.Error(), says) {
			if err == nil {
				m.Close()
			}
			t.Errorf("%q: %v", says, err)
		}
	}
}
