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

	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// etcdTrio runs three members of etcd as separate processes.
type etcdTrio struct {
	t       *testing.T
	dirs    map[string]string
	peers   map[string]string // peer addresses, by member name
	clients map[string]string
	runs    map[string]*process
}

func newEtcdTrio(t *testing.T) *etcdTrio {
	t.Helper()
	r := &etcdTrio{t: t, dirs: map[string]string{}, peers: map[string]string{}, clients: map[string]string{},
		runs: map[string]*process{}}
	for _, name := range []string{"a", "b", "c"} {
		r.dirs[name] = filepath.Join(t.TempDir(), "etcd")
		r.peers[name], r.clients[name] = loopback.Free(t), loopback.Free(t)
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
	p := serve(r.t, "etcd", "--name", name, "--dir", r.dirs[name], "--listen-client", r.clients[name], "--listen-peer",
		r.peers[name],
		"--initial-cluster", fmt.Sprintf("a=%s,b=%s,c=%s", r.peers["a"], r.peers["b"], r.peers["c"]),
		"--initial-cluster-state", state,
		"--http", loopback.Free(r.t))
	p.http = p.cmd.Args[len(p.cmd.Args)-1]
	r.runs[name] = p
	return p
}

// command runs a command on the members, some of which may be down.
func (r *etcdTrio) command(args ...string) outcome {
	r.t.Helper()
	return sheaf(r.t, nil, append(append([]string{"etcd"}, args...), "--etcd",
		strings.Join([]string{r.clients["a"], r.clients["b"], r.clients["c"]}, ","))...)
}

// members returns the members that the command prints, by name.
func (r *etcdTrio) members() map[string]memberRow {
	r.t.Helper()
	var rows []memberRow
	r.runUntil(0, "", "members", "-o", "json").JSON(r.t, &rows)
	out := map[string]memberRow{}
	for _, row := range rows {
		out[row.Name] = row
	}
	return out
}

// runUntil repeats the command, because a busy member may not answer in time. It stops once the command ends with the
// given code and text.
func (r *etcdTrio) runUntil(code int, says string, args ...string) (o outcome) {
	r.t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for {
		o = r.command(args...)
		if o.Code == code && strings.Contains(o.Stdout+o.Stderr, says) {
			return o
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%v: not exit code %d with %q, but %+v", args, code, says, o)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// remove removes a member. It repeats the command if the other members have no leader in time. A failed attempt may
// have removed the member nevertheless, so an answer that there is no such member also counts as success.
func (r *etcdTrio) remove(name string, flags ...string) {
	r.t.Helper()
	eventually(r.t, func() bool {
		o := r.command(append([]string{"remove", name}, flags...)...)
		return o.Code == 0 && strings.Contains(o.Stderr, "was removed") ||
			strings.Contains(o.Stderr, fmt.Sprintf("etcd has no member %q", name))
	})
}

// awaitHealthy waits until the named member is healthy, and returns all members.
func (r *etcdTrio) awaitHealthy(name string) (now map[string]memberRow) {
	r.t.Helper()
	eventually(r.t, func() bool {
		now = r.members()
		return len(now) == 3 && now[name].Healthy
	})
	return now
}

// put writes n keys, and the other members acknowledge them.
func (r *etcdTrio) put(n int) {
	r.t.Helper()
	client, err := etcd.Dial(etcd.ClientConfig{Endpoints: []string{r.clients["a"], r.clients["b"]}})
	must(r.t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for i := range n {
		eventually(r.t, func() bool { // the client does not retry a write that timed out
			_, err := client.Put(ctx, fmt.Sprintf("k%d", i), "v")
			return err == nil
		})
	}
}

// awaitEnd waits until the process has exited.
func (p *process) awaitEnd(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(2 * time.Minute):
		t.Fatalf("it does not end: %s", p.stderr)
	}
}

// If the disk of an etcd member was restored to an older state, the member detects this and exits. When it is started
// again, it rejoins the cluster as a new member.
func TestEtcdMemberWithRestoredDiskRejoins(t *testing.T) {
	t.Parallel()
	r := newEtcdTrio(t)
	r.put(3)
	if code := r.runs["c"].stop(t); code != 0 {
		t.Fatalf("exit code %d: %s", code, r.runs["c"].stderr)
	}
	old := filepath.Join(t.TempDir(), "old")
	must(t, os.CopyFS(old, os.DirFS(r.dirs["c"])))
	r.start("c", "existing").waitReady(t)
	r.put(20)
	before := r.awaitHealthy("c")
	// The member has acknowledged all entries of the leader.
	eventually(t, func() bool { now := r.members(); return now["c"].Index > 0 && now["c"].Index == now["a"].Index })
	r.runs["c"].kill()
	must(t, errors.Join(os.RemoveAll(r.dirs["c"]), os.CopyFS(r.dirs["c"], os.DirFS(old))))

	first := r.start("c", "existing")
	first.awaitEnd(t)
	if words := first.stderr.String(); first.cmd.ProcessState.ExitCode() != 1 ||
		!strings.Contains(words, "lacks entries that the cluster counts on") ||
		strings.Contains(words, "goroutine") {
		t.Fatalf("exit code %d: %s", first.cmd.ProcessState.ExitCode(), words)
	}
	r.start("c", "existing").waitReady(t)
	after := r.awaitHealthy("c")
	if after["c"].ID == before["c"].ID || after["a"].ID != before["a"].ID || after["c"].Role == "learner" {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
}

func TestTheMembersOfEtcdAreShownAndRemoved(t *testing.T) {
	t.Parallel()
	r := newEtcdTrio(t)
	o := r.runUntil(0, "3 of 3 members are well", "members")
	if lines := strings.Split(o.Stdout, "\n"); len(lines) != 5 || !strings.HasPrefix(lines[0], "NAME") ||
		!strings.Contains(o.Stdout, "leader") {
		t.Errorf("%s", o.Stdout)
	}
	r.command("remove", "c").Want(t, 1).Has(t, "it answers")
	r.runUntil(1, "its members are a, b, c", "remove", "d")
	r.runUntil(1, "has its vote already", "promote", "c")
	r.runs["c"].kill()
	o = r.runUntil(0, "2 of 3 members are well", "members")
	if !strings.Contains(o.Stdout, "does not answer") {
		t.Errorf("%s", o.Stdout)
	}
	r.runUntil(1, "1 of the 2 other members are well, which is no quorum", "remove", "a")
	r.remove("c")
	if now := r.members(); len(now) != 2 {
		t.Errorf("%+v", now)
	}
	// The folder of this member belongs to a membership that the other members have removed. The member joins again.
	r.start("c", "existing").waitReady(t)
	r.runUntil(0, "3 of 3 members are well", "members")
	// A member that is removed while it runs exits, and joins again when it is started.
	r.remove("c", "--force")
	r.runs["c"].awaitEnd(t)
	if words := r.runs["c"].stderr.String(); !strings.Contains(words, "the others have removed this member") {
		t.Errorf("%s", words)
	}
	r.start("c", "existing").waitReady(t)
	r.runUntil(0, "3 of 3 members are well", "members")
	r.runs["b"].kill()
	r.runs["c"].kill()
	r.runUntil(1, "no quorum", "members")
}

// Commands about members use TLS, with the certificate of one of the store's processes. In a pod of etcd, an
// environment variable tells commands where that certificate is.
func TestTheMembersOfEtcdAreShownOverTLS(t *testing.T) {
	by, err := authority.New("members", time.Now(), authority.Lifetime)
	must(t, err)
	id := identity.Identity{Store: identity.Store{Domain: "cluster.local", Namespace: "prod", UID: uuid.New()},
		Role: identity.Etcd}
	cert, key, err := by.Issue(authority.Leaf{Identity: id, Server: true, Client: true, Now: time.Now(),
		Lifetime: time.Hour, Addresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	must(t, err)
	dir := t.TempDir()
	must(t, certs.Install(dir, map[string][]byte{
		certs.CertificateFile: cert, certs.KeyFile: key, certs.BundleFile: by.CertificatePEM(),
		certs.ModeFile: []byte(certs.Required),
	}))
	address := loopback.Free(t)
	p := serve(t, "etcd", "--name", "a", "--dir", filepath.Join(t.TempDir(), "etcd"), "--listen-client", address,
		"--listen-peer", loopback.Free(t),
		"--listen-peer-tls", loopback.Free(t), "--tls-dir", dir, "--http", loopback.Free(t))
	p.http = p.cmd.Args[len(p.cmd.Args)-1]
	p.waitReady(t)
	members := []string{"etcd", "members", "--etcd", address, "--timeout", "20s"}
	sheaf(t, nil, append(members, "--tls-dir", dir)...).Want(t, 0).Has(t, "1 of 1 members are well")
	sheaf(t, nil, append(members, "--tls-dir", t.TempDir())...).Want(t, 2).Has(t, "ca.crt is missing")
	sheaf(t, nil, append(members, "--tls-dir", dir, "--etcd-ca", filepath.Join(dir, certs.BundleFile))...).Want(t, 2).
		Has(t, "give one of them")
	t.Setenv(envTLSDir, dir)
	sheaf(t, nil, members...).Want(t, 0).Has(t, "1 of 1 members are well")
	t.Setenv(envTLSDir, "")
	sheaf(t, nil, append(members, "--timeout", "2s")...).Want(t, 1).Has(t, "no member of etcd answers").
		Has(t, "give --tls-dir")
}
