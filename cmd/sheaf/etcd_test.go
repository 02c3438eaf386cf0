package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/authority"
	"sheaf.dev/sheaf/internal/certs"
	"sheaf.dev/sheaf/internal/etcd"
	"sheaf.dev/sheaf/internal/identity"
)

// etcdTrio is three members of etcd as processes of their own.
type etcdTrio struct {
	t       *testing.T
	dirs    map[string]string
	peers   map[string]string // address for peers, by name
	clients map[string]string
	runs    map[string]*process
}

func newEtcdTrio(t *testing.T) *etcdTrio {
	t.Helper()
	r := &etcdTrio{t: t, dirs: map[string]string{}, peers: map[string]string{}, clients: map[string]string{}, runs: map[string]*process{}}
	for _, name := range []string{"a", "b", "c"} {
		r.dirs[name] = filepath.Join(t.TempDir(), "etcd")
		r.peers[name], r.clients[name] = freeAddress(t), freeAddress(t)
	}
	for name := range r.dirs {
		r.start(name, "new")
	}
	for _, p := range r.runs {
		p.waitReady(t)
	}
	return r
}

func (r *etcdTrio) start(name, state string) *process {
	r.t.Helper()
	p := serve(r.t, "etcd", "--name", name, "--dir", r.dirs[name], "--listen-client", r.clients[name], "--listen-peer", r.peers[name],
		"--initial-cluster", fmt.Sprintf("a=%s,b=%s,c=%s", r.peers["a"], r.peers["b"], r.peers["c"]), "--initial-cluster-state", state,
		"--http", freeAddress(r.t))
	p.http = p.cmd.Args[len(p.cmd.Args)-1]
	r.runs[name] = p
	return p
}

// command runs a command against the members, of which some may be away.
func (r *etcdTrio) command(args ...string) outcome {
	r.t.Helper()
	return sheaf(r.t, nil, append(append([]string{"etcd"}, args...), "--etcd", strings.Join([]string{r.clients["a"], r.clients["b"], r.clients["c"]}, ","))...)
}

// members as the command prints them, by name.
func (r *etcdTrio) members() map[string]memberRow {
	r.t.Helper()
	var rows []memberRow
	r.command("members", "-o", "json").Want(r.t, 0).JSON(r.t, &rows)
	out := map[string]memberRow{}
	for _, row := range rows {
		out[row.Name] = row
	}
	return out
}

// put writes n keys, which the others acknowledge.
func (r *etcdTrio) put(n int) {
	r.t.Helper()
	client, err := etcd.Connect([]string{r.clients["a"], r.clients["b"]})
	must(r.t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range n {
		_, err := client.Put(ctx, fmt.Sprintf("k%d", i), "v")
		must(r.t, err)
	}
}

// awaitEnd waits until a process has ended by itself.
func (p *process) awaitEnd(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(2 * time.Minute):
		t.Fatalf("it does not end: %s", p.stderr)
	}
}

// A disk that is an older one of this member, or one that a program from before began to fill: etcd itself finds out.
func TestAMemberOfEtcdOnADiskThatWasSetBackJoinsAgain(t *testing.T) {
	r := newEtcdTrio(t)
	r.put(3)
	if code := r.runs["c"].stop(t); code != 0 {
		t.Fatalf("exit code %d: %s", code, r.runs["c"].stderr)
	}
	old := filepath.Join(t.TempDir(), "old")
	must(t, os.CopyFS(old, os.DirFS(r.dirs["c"])))
	r.start("c", "existing").waitReady(t)
	r.put(20)
	before := r.members()
	if len(before) != 3 || !before["c"].Healthy {
		t.Fatalf("%+v", before)
	}
	// It has acknowledged all that the leader has.
	eventually(t, func() bool { now := r.members(); return now["c"].Index == now["a"].Index })
	r.runs["c"].kill()
	must(t, errors.Join(os.RemoveAll(r.dirs["c"]), os.CopyFS(r.dirs["c"], os.DirFS(old))))

	first := r.start("c", "existing")
	first.awaitEnd(t)
	if words := first.stderr.String(); first.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(words, "lacks entries that the cluster counts on") ||
		strings.Contains(words, "goroutine") {
		t.Fatalf("exit code %d: %s", first.cmd.ProcessState.ExitCode(), words)
	}
	r.start("c", "existing").waitReady(t)
	after := r.members()
	if after["c"].ID == before["c"].ID || after["a"].ID != before["a"].ID || !after["c"].Healthy || after["c"].Role == "learner" {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
}

func TestTheMembersOfEtcdAreShownAndRemoved(t *testing.T) {
	r := newEtcdTrio(t)
	o := r.command("members").Want(t, 0).Has(t, "3 of 3 members are well")
	if lines := strings.Split(o.Stdout, "\n"); len(lines) != 5 || !strings.HasPrefix(lines[0], "NAME") || !strings.Contains(o.Stdout, "leader") {
		t.Errorf("%s", o.Stdout)
	}
	r.command("remove", "c").Want(t, 1).Has(t, "it answers")
	r.command("remove", "d").Want(t, 1).Has(t, "its members are a, b, c")
	r.command("promote", "c").Want(t, 1).Has(t, "has its vote already")
	r.runs["c"].kill()
	o = r.command("members").Want(t, 0).Has(t, "2 of 3 members are well")
	if !strings.Contains(o.Stdout, "does not answer") {
		t.Errorf("%s", o.Stdout)
	}
	r.command("remove", "a").Want(t, 1).Has(t, "1 of the 2 other members are well, which is no quorum")
	r.command("remove", "c").Want(t, 0).Has(t, "was removed")
	if now := r.members(); len(now) != 2 {
		t.Errorf("%+v", now)
	}
	// Its folder is that of a member that nobody knows any more.
	r.start("c", "existing").waitReady(t)
	r.command("members").Want(t, 0).Has(t, "3 of 3 members are well")
	// One that runs ends where it is removed, and joins again when it is started.
	r.command("remove", "c", "--force").Want(t, 0)
	r.runs["c"].awaitEnd(t)
	if words := r.runs["c"].stderr.String(); !strings.Contains(words, "the others have removed this member") {
		t.Errorf("%s", words)
	}
	r.start("c", "existing").waitReady(t)
	r.command("members").Want(t, 0).Has(t, "3 of 3 members are well")
	r.runs["b"].kill()
	r.runs["c"].kill()
	r.command("members").Want(t, 1).Has(t, "no quorum")
}

// Commands about members speak TLS with the certificate of a process of the store: in a pod of etcd by themselves.
func TestTheMembersOfEtcdAreShownOverTLS(t *testing.T) {
	by, err := authority.New("members", time.Now(), authority.Lifetime)
	must(t, err)
	id := identity.Identity{Store: identity.Store{Domain: "cluster.local", Namespace: "prod", UID: uuid.New()}, Role: identity.Etcd}
	cert, key, err := by.Issue(authority.Leaf{Identity: id, Server: true, Client: true, Now: time.Now(), Lifetime: time.Hour, Addresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	must(t, err)
	dir := t.TempDir()
	must(t, certs.Install(dir, map[string][]byte{
		certs.CertificateFile: cert, certs.KeyFile: key, certs.BundleFile: by.CertificatePEM(), certs.ModeFile: []byte(certs.Required),
	}))
	address := freeAddress(t)
	p := serve(t, "etcd", "--name", "a", "--dir", filepath.Join(t.TempDir(), "etcd"), "--listen-client", address, "--listen-peer", freeAddress(t),
		"--listen-peer-tls", freeAddress(t), "--tls-dir", dir, "--http", freeAddress(t))
	p.http = p.cmd.Args[len(p.cmd.Args)-1]
	p.waitReady(t)
	members := []string{"etcd", "members", "--etcd", address, "--timeout", "20s"}
	sheaf(t, nil, append(members, "--tls-dir", dir)...).Want(t, 0).Has(t, "1 of 1 members are well")
	sheaf(t, nil, append(members, "--tls-dir", t.TempDir())...).Want(t, 2).Has(t, "ca.crt is missing")
	sheaf(t, nil, append(members, "--tls-dir", dir, "--etcd-ca", filepath.Join(dir, certs.BundleFile))...).Want(t, 2).Has(t, "give one of them")
	t.Setenv(envTLSDir, dir)
	sheaf(t, nil, members...).Want(t, 0).Has(t, "1 of 1 members are well")
	t.Setenv(envTLSDir, "")
	sheaf(t, nil, append(members, "--timeout", "2s")...).Want(t, 1).Has(t, "no member of etcd answers").Has(t, "give --tls-dir")
}
