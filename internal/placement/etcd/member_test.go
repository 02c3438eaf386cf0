package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/test/loopback"
	"sheaf.dev/sheaf/internal/test/must"
)

func memberConfig(t *testing.T, name string) etcd.MemberConfig {
	return etcd.MemberConfig{Name: name, Dir: filepath.Join(t.TempDir(), "etcd"), ListenClient: loopback.Free(t),
		ListenPeer: loopback.Free(t), Token: "t1"}
}

func startMember(t *testing.T, cfg etcd.MemberConfig) *etcd.Member {
	t.Helper()
	m, err := etcd.StartMember(testContext(t), cfg)
	must.OK(t, err)
	t.Cleanup(m.Close)
	return m
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// again repeats an action until it succeeds. If a member's disk stalls, the members elect another leader, and in the
// meantime they refuse calls that they would accept a moment later. etcd's clients do not retry writes by themselves.
func again(t *testing.T, what string, do func(context.Context) error) {
	t.Helper()
	ctx := testContext(t)
	for {
		err := do(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func put(t *testing.T, client *clientv3.Client, key, value string) {
	t.Helper()
	again(t, "put "+key, func(ctx context.Context) error {
		_, err := client.Put(ctx, key, value)
		return err
	})
}

func dial(t *testing.T, cfg etcd.ClientConfig) *clientv3.Client {
	t.Helper()
	client, err := etcd.Dial(cfg)
	must.OK(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestMemberKeepsItsDataAndItsFolder(t *testing.T) {
	cfg := memberConfig(t, "a")
	m := startMember(t, cfg)
	put(t, dial(t, etcd.ClientConfig{Endpoints: []string{m.Endpoint()}}), "k", "v")
	m.Close()

	cfg.Existing = true // as operators do once the cluster has been formed
	m = startMember(t, cfg)
	again(t, "ready", m.Ready)
	out, err := dial(t, etcd.ClientConfig{Endpoints: []string{m.Endpoint()}}).Get(testContext(t), "k")
	if err != nil || len(out.Kvs) != 1 || string(out.Kvs[0].Value) != "v" {
		t.Errorf("after a restart: %v, %v", out, err)
	}
	if st := m.Status(); !st.IsLeader || st.Revision < 2 || st.DBBytes == 0 || st.Token != "t1" {
		t.Errorf("status: %+v", st)
	}
	m.Close()

	for name, change := range map[string]func(*etcd.MemberConfig){
		"token": func(c *etcd.MemberConfig) { c.Token = "t2" },
		"name":  func(c *etcd.MemberConfig) { c.Name = "b" },
	} {
		other := cfg
		change(&other)
		if _, err := etcd.StartMember(testContext(t), other); !errors.Is(err, etcd.ErrOtherCluster) {
			t.Errorf("another %s: error %v", name, err)
		}
	}
	must.OK(t, os.Remove(filepath.Join(cfg.Dir, "sheaf-etcd.json")))
	if _, err := etcd.StartMember(testContext(t), cfg); !errors.Is(err, etcd.ErrOtherCluster) {
		t.Errorf("a folder without a claim: error %v", err)
	}
}

func TestMemberListensOnAllAddresses(t *testing.T) {
	cfg := memberConfig(t, "a")
	cfg.AdvertiseClient, cfg.AdvertisePeer = cfg.ListenClient, cfg.ListenPeer
	port := func(address string) string { return address[strings.LastIndex(address, ":"):] }
	cfg.ListenClient, cfg.ListenPeer = port(cfg.ListenClient), port(cfg.ListenPeer)
	m := startMember(t, cfg)
	again(t, "ready", m.Ready)
	put(t, dial(t, etcd.ClientConfig{Endpoints: []string{cfg.AdvertiseClient}}), "k", "v")
}

func TestAnEmptyMemberFormsNoNewCluster(t *testing.T) {
	cfg := memberConfig(t, "a")
	cfg.Existing = true
	if _, err := etcd.StartMember(testContext(t), cfg); !errors.Is(err, etcd.ErrEmptyExisting) {
		t.Errorf("alone: error %v", err)
	}
	cfg.Cluster = map[string]string{"a": cfg.ListenPeer, "b": loopback.Free(t), "c": loopback.Free(t)}
	if _, err := etcd.StartMember(testContext(t), cfg); !errors.Is(err, etcd.ErrEmptyExisting) {
		t.Errorf("with members that do not answer: error %v", err)
	}
	// A folder that was once used and then wiped also counts as empty.
	if names, err := os.ReadDir(cfg.Dir); err == nil {
		for _, name := range names {
			t.Logf("left: %s", name.Name())
		}
	}
	if _, err := etcd.StartMember(testContext(t), cfg); !errors.Is(err, etcd.ErrEmptyExisting) {
		t.Errorf("again: error %v", err)
	}
}

func TestThreeMembersSurviveTheLossOfOne(t *testing.T) {
	t.Parallel()
	cluster := map[string]string{}
	configs := map[string]etcd.MemberConfig{}
	for _, name := range []string{"a", "b", "c"} {
		configs[name] = memberConfig(t, name)
		cluster[name] = configs[name].ListenPeer
	}
	type started struct {
		name string
		m    *etcd.Member
		err  error
	}
	results := make(chan started, 3)
	for name, cfg := range configs {
		cfg.Cluster = cluster
		configs[name] = cfg
		go func() {
			m, err := etcd.StartMember(context.Background(), cfg)
			results <- started{name, m, err}
		}()
	}
	members := map[string]*etcd.Member{}
	var endpoints []string
	for range configs {
		r := <-results
		if r.err != nil {
			t.Fatal(r.err)
		}
		t.Cleanup(r.m.Close)
		members[r.name] = r.m
		endpoints = append(endpoints, r.m.Endpoint())
	}
	client := dial(t, etcd.ClientConfig{Endpoints: endpoints})
	put(t, client, "k", "1")
	members["a"].Close()
	put(t, client, "k", "2") // two of the three members are enough for a quorum
	cfg := configs["a"]
	cfg.Existing = true
	m := startMember(t, cfg)
	out, err := dial(t, etcd.ClientConfig{Endpoints: []string{m.Endpoint()}}).Get(testContext(t), "k")
	if err != nil || len(out.Kvs) != 1 || string(out.Kvs[0].Value) != "2" {
		t.Errorf("the member that came back: %v, %v", out, err)
	}
}

func TestMemberTakesSnapshotsAndKeepsTheNewest(t *testing.T) {
	cfg := memberConfig(t, "a")
	cfg.Snapshots = etcd.SnapshotConfig{Dir: filepath.Join(t.TempDir(), "snapshots"), Every: time.Hour, Keep: 2}
	m := startMember(t, cfg)
	for i := range 3 {
		old := filepath.Join(cfg.Snapshots.Dir, fmt.Sprintf("a-2026010%dT000000Z.snapshot", i+1))
		must.OK(t, errors.Join(os.MkdirAll(cfg.Snapshots.Dir, 0o700), os.WriteFile(old, nil, 0o600)))
	}
	foreign := filepath.Join(cfg.Snapshots.Dir, "a-mine.snapshot")
	must.OK(t, os.WriteFile(foreign, nil, 0o600))
	taken, err := m.Snapshot()
	must.OK(t, err)
	content, err := os.ReadFile(taken.File)
	if err != nil || int64(len(content)) != taken.Bytes {
		t.Fatalf("%d bytes, %v; want %d", len(content), err, taken.Bytes)
	}
	database, sum := content[:len(content)-sha256.Size], content[len(content)-sha256.Size:]
	if want := sha256.Sum256(database); string(sum) != string(want[:]) || len(database)%512 != 0 {
		t.Error("the snapshot does not end in the SHA-256 of its database")
	}
	names, err := filepath.Glob(filepath.Join(cfg.Snapshots.Dir, "*"))
	if err != nil || len(names) != 3 || !strings.Contains(strings.Join(names, " "), "a-20260103T") {
		t.Errorf("left: %v, %v", names, err)
	}
}

// signer is an authority whose certificates contain no process names.
type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T, dir string) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must.OK(t, err)
	cert, err := x509.ParseCertificate(der)
	must.OK(t, err)
	a := &signer{cert: cert, key: key, file: filepath.Join(dir, "ca.pem")}
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	must.OK(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// sign issues a certificate for 127.0.0.1, and writes it and its key to files.
func (a *signer) sign(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().
				Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	must.OK(t, err)
	keyDER, err := x509.MarshalECPrivateKey(private)
	must.OK(t, err)
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	writePEM(t, cert, "CERTIFICATE", der)
	writePEM(t, key, "EC PRIVATE KEY", keyDER)
	return cert, key
}

func TestClientsUseTLSAndRotateTheirFiles(t *testing.T) {
	t.Parallel()
	dir, strangers := t.TempDir(), t.TempDir()
	ca, stranger := newAuthority(t, dir), newAuthority(t, strangers)
	cfg := memberConfig(t, "a")
	cfg.ClientTLS.CA, cfg.PeerTLS.CA = ca.file, ca.file
	cfg.ClientTLS.Cert, cfg.ClientTLS.Key = ca.sign(t, dir, "server")
	cfg.PeerTLS.Cert, cfg.PeerTLS.Key = ca.sign(t, dir, "peer")
	m := startMember(t, cfg)
	with := etcd.ClientConfig{Endpoints: []string{m.Endpoint()}, CAFile: ca.file}
	with.CertFile, with.KeyFile = ca.sign(t, dir, "client")
	put(t, dial(t, with), "k", "v")

	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		t.Cleanup(cancel)
		return ctx
	}
	none, other := with, with
	none.CertFile, none.KeyFile = "", ""
	other.CAFile = stranger.file
	for name, c := range map[string]etcd.ClientConfig{"no certificate": none,
		"an authority that did not sign etcd's": other} {
		if _, err := dial(t, c).Get(soon(), "k"); err == nil {
			t.Errorf("%s: etcd was read", name)
		}
	}
	// The files are read anew for each connection. A client whose certificate comes from the wrong authority is
	// therefore accepted as soon as that certificate has been replaced.
	rotated := with
	rotated.CertFile, rotated.KeyFile = stranger.sign(t, strangers, "client")
	client := dial(t, rotated)
	if _, err := client.Get(soon(), "k"); err == nil {
		t.Error("a certificate of a stranger was taken")
	}
	for _, pair := range [][2]string{{with.CertFile, rotated.CertFile}, {with.KeyFile, rotated.KeyFile}} {
		content, err := os.ReadFile(pair[0])
		if err = errors.Join(err, os.WriteFile(pair[1], content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Get(testContext(t), "k"); err != nil {
		t.Errorf("after the certificate was replaced: %v", err)
	}
	for _, bad := range []etcd.ClientConfig{
		{}, {Endpoints: with.Endpoints, CAFile: with.KeyFile}, {Endpoints: with.Endpoints, CertFile: with.CertFile},
		{Endpoints: with.Endpoints, CertFile: with.CAFile, KeyFile: with.KeyFile}, {Endpoints: with.Endpoints, Username: "u"},
		{Endpoints: with.Endpoints, Username: "u", PasswordFile: filepath.Join(dir, "absent")},
	} {
		if _, err := etcd.Dial(bad); err == nil {
			t.Errorf("taken: %+v", bad)
		}
	}
}

func TestMemberRefusesWhatCannotBe(t *testing.T) {
	for name, change := range map[string]func(*etcd.MemberConfig){
		"no name":         func(c *etcd.MemberConfig) { c.Name = "" },
		"name":            func(c *etcd.MemberConfig) { c.Name = "a=b" },
		"no folder":       func(c *etcd.MemberConfig) { c.Dir = "" },
		"address":         func(c *etcd.MemberConfig) { c.ListenPeer = "nowhere" },
		"name to listen":  func(c *etcd.MemberConfig) { c.ListenPeer = "etcd-0.example:2380" },
		"not in cluster":  func(c *etcd.MemberConfig) { c.Cluster = map[string]string{"b": c.ListenPeer} },
		"other address":   func(c *etcd.MemberConfig) { c.Cluster = map[string]string{"a": "127.0.0.1:1"} },
		"compaction":      func(c *etcd.MemberConfig) { c.CompactionMode = "never" },
		"quota":           func(c *etcd.MemberConfig) { c.QuotaBytes = 1 },
		"half of TLS":     func(c *etcd.MemberConfig) { c.ClientTLS.Cert = "x" },
		"absent TLS file": func(c *etcd.MemberConfig) { c.PeerTLS = etcd.TLSFiles{Cert: "/absent", Key: "/absent"} },
	} {
		cfg := memberConfig(t, "a")
		change(&cfg)
		if m, err := etcd.StartMember(testContext(t), cfg); err == nil {
			m.Close()
			t.Errorf("%s: taken", name)
		}
		if name == "name to listen" {
			if files, err := os.ReadDir(cfg.Dir); err == nil && len(files) > 0 {
				t.Errorf("%s: the folder was claimed: %v", name, files)
			}
		}
	}
}
