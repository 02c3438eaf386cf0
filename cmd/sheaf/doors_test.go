package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/loopback"
	"sheaf.dev/sheaf/internal/test/pagetest"
)

// The table has a column that names the flag for each socket. These are its entries for sockets that no flag opens.
const (
	freePorts  = "free ports of 127.0.0.1" // sheaf dev opens one for each shard
	socketName = "a socket without a file" // the unix socket of etcd's HTTP server, whose file is deleted
)

// tableRow returns the table's row for a socket of a process, or false if there is no such row.
func tableRow(table []pagetest.Port, p *process, l loopback.Listener) (pagetest.Port, bool) {
	args := p.cmd.Args
	flag := ""
	if i := slices.Index(args, l.Address); i > 0 && l.Network == "tcp" {
		flag = args[i-1]
	}
	host, _, _ := net.SplitHostPort(l.Address)
	for _, d := range table {
		switch {
		case d.Process != "sheaf "+args[1]:
		case flag != "" && d.At == flag,
			flag == "" && l.Network == "tcp" && host == "127.0.0.1" && d.At == freePorts,
			l.Network == "unix" && strings.HasSuffix(l.Address, "/http") && d.At == socketName:
			return d, true
		}
	}
	return pagetest.Port{}, false
}

// httpOf returns an HTTP client that always connects to the given socket, regardless of the host in a URL.
func httpOf(l loopback.Listener) *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, l.Network, l.Address)
		}}}
}

// answers reports whether a server answers an HTTP client without a TLS error. The client uses the given TLS
// configuration, or plaintext if it is nil.
func answers(t *testing.T, l loopback.Listener, how *tls.Config) bool {
	t.Helper()
	const h2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" // HTTP/2 preface, empty SETTINGS
	const h1 = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
	ask := func(words string) bool {
		c, err := net.Dial(l.Network, l.Address)
		must(t, err)
		defer c.Close()
		// A server that refuses the handshake closes the connection immediately, and a server that accepts it answers. The
		// deadline is for a server that does neither of these.
		must(t, c.SetDeadline(time.Now().Add(time.Minute)))
		if how != nil {
			secured := tls.Client(c, how)
			if secured.Handshake() != nil {
				return false
			}
			c = secured
			if secured.ConnectionState().NegotiatedProtocol != "h2" {
				words = h1
			}
		}
		if _, err := c.Write([]byte(words)); err != nil {
			return false
		}
		first := make([]byte, 9)
		n, _ := io.ReadFull(c, first)
		const alert, settings = 0x15, 0x04
		return n == len(first) && (strings.HasPrefix(string(first), "HTTP/1.") || first[0] != alert && first[3] == settings)
	}
	if how != nil {
		return ask(h2)
	}
	// A TLS server answers plaintext with an error in plaintext, with an alert, or not at all.
	if answer, err := httpOf(l).Get("http://localhost/"); err == nil {
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusBadRequest {
			return true
		}
	}
	return ask(h2)
}

// returnsKeys reports whether an HTTP server returns keys of etcd, by gRPC or as JSON.
func returnsKeys(t *testing.T, l loopback.Listener) bool {
	t.Helper()
	dial := func(context.Context, string) (net.Conn, error) { return net.Dial(l.Network, l.Address) }
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = etcdserverpb.NewKVClient(conn).Range(ctx, &etcdserverpb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	answer, failed := httpOf(l).Post("http://localhost/v3/kv/range", "application/json", strings.NewReader(`{"key":"AA=="}`))
	must(t, failed)
	must(t, answer.Body.Close())
	return err == nil || answer.StatusCode == http.StatusOK
}

// checkClosed fails the test if the test can connect to a unix socket of a process. The test runs as the user who
// owns the process, or as root. If even this user cannot connect, then no other user can.
func checkClosed(t *testing.T, name string, pid int, l loopback.Listener) {
	t.Helper()
	at := strings.Replace(l.Address, "/proc/self/", fmt.Sprintf("/proc/%d/", pid), 1)
	if c, err := net.Dial(l.Network, at); err == nil {
		must(t, c.Close())
		t.Errorf("%s, %s: a process can connect", name, l.Address)
	}
}

// Each socket on which a process of a store with TLS listens is in the table of docs/security.md, and accepts only the
// callers in that table. The test runs real processes, because only real processes would open an unexpected socket.
func TestEachPortIsInTheTable(t *testing.T) {
	t.Parallel()
	table, err := pagetest.Ports("../..")
	must(t, err)
	r := &rotating{t: t, dir: t.TempDir(), store: identity.Store{Domain: "example.org", Namespace: "prod",
		UID: uuid.New()}, mode: certs.Required}
	r.authority = r.newAuthority()
	run := func(m *member, args ...string) *process {
		p := serve(t, append(args, "--tls-dir", m.folder)...)
		p.http = args[slices.Index(args, "--http")+1]
		return p
	}
	clients := loopback.Free(t)
	runs := []*process{
		run(r.add("etcd", identity.Etcd, ""), "etcd", "--name", "e0", "--dir", filepath.Join(t.TempDir(), "etcd"),
			"--listen-client", clients, "--listen-peer", loopback.Free(t), "--listen-peer-tls", loopback.Free(t),
			"--http", loopback.Free(t)),
		run(r.add("gateway", identity.Gateway, ""), "gateway", "--store", "quotes", "--create", "--groups", "1", "--etcd",
			clients, "--listen", loopback.Free(t), "--http", loopback.Free(t), "--pprof", loopback.Free(t), "--records-http",
			loopback.Free(t)),
		run(r.add("a", identity.Shard, "a"), "shard", "--name", "a", "--dir", t.TempDir(), "--store", "quotes", "--etcd",
			clients, "--listen", loopback.Free(t), "--http", loopback.Free(t), "--pprof", loopback.Free(t), "--stay"),
	}
	devDir := t.TempDir()
	runs = append(runs, startDev(t, devDir, "--tls", "--pprof", loopback.Free(t), "--records-http", loopback.Free(t),
		"--shards", "2", "--groups", "2"))
	shows := func(by *authority.Authority, of identity.Store, role identity.Role) *tls.Config {
		cert, key, err := by.Issue(authority.Leaf{Identity: identity.Identity{Store: of, Role: role}, Client: true,
			Server: true, Now: time.Now(), Lifetime: time.Hour,
			DNSNames: []string{"localhost"}, Addresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
		must(t, err)
		pair, err := tls.X509KeyPair(cert, key)
		must(t, err)
		return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"},
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }}
	}
	nobody := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}
	foreign := shows(r.newAuthority(), r.store, identity.Gateway)
	used := map[pagetest.Port]int{}
	for _, p := range runs {
		p.waitReady(t)
		name := "sheaf " + p.cmd.Args[1]
		own := shows(r.authority, r.store, identity.Etcd)
		if name == "sheaf dev" {
			of := filepath.Join(devDir, "tls", "admin")
			pair, err := tls.LoadX509KeyPair(filepath.Join(of, "tls.crt"), filepath.Join(of, "tls.key"))
			must(t, err)
			own = nobody.Clone()
			own.Certificates = []tls.Certificate{pair}
		}
		listeners, err := loopback.Listeners(p.cmd.Process.Pid)
		must(t, err)
		for _, l := range listeners {
			d, known := tableRow(table, p, l)
			if !known {
				t.Errorf("%s listens on %s %s, which is in no row of docs/security.md, \"Ports\"", name, l.Network, l.Address)
				continue
			}
			used[d]++
			if d.At == socketName {
				checkClosed(t, name, p.cmd.Process.Pid, l)
				continue
			}
			if !d.TLS && returnsKeys(t, l) {
				t.Errorf("%s, %s (%s): it tells keys of etcd", name, d.At, l.Address)
			}
			for who, c := range map[string]struct {
				how  *tls.Config
				want bool
			}{
				"plaintext": {nil, !d.TLS}, "TLS without a certificate": {nobody, false},
				"a certificate of another authority": {foreign, false}, "a certificate of the store": {own, d.TLS},
			} {
				got := answers(t, l, c.how)
				if got != c.want {
					t.Errorf("%s, %s (%s): it answers %s: %t, and docs/security.md says %t", name, d.At, l.Address, who, got,
						c.want)
				}
			}
		}
	}
	for _, d := range table {
		want := 1
		switch {
		case d.At == freePorts:
			want = 2 // one socket for each shard
		// etcd does not open its plaintext peer port, because TLS is required, and this test does not run the operator.
		case d.At == "--listen-peer", !strings.HasPrefix(d.Process, "sheaf "):
			want = 0
		}
		if used[d] != want {
			t.Errorf("%s listens at %s %d times instead of %d", d.Process, d.At, used[d], want)
		}
	}
}
