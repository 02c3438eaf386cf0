package etcd_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

// The tests of this file take longest. Tests that run in parallel start in the order of their files' names, so these
// start before those of rejoin_test.go.

// While clients write to it, the etcd of a store is switched to TLS, one member at a time.
func TestEtcdGoesOverToTLS(t *testing.T) {
	etcdGoesOver(t, certs.Plaintext, certs.Both, certs.Required)
}

// While clients write to it, the etcd of a store is switched back from TLS, one member at a time.
func TestEtcdGoesBackFromTLS(t *testing.T) {
	etcdGoesOver(t, certs.Required, certs.Both, certs.Plaintext)
}

// etcdGoesOver starts the members in the first mode, and restarts them one by one in each of the other modes. Etcd
// requires quiet seconds after each restart, so tests that share the modes among them and run in parallel take less
// time than one test with all modes.
func etcdGoesOver(t *testing.T, first certs.Mode, modes ...certs.Mode) {
	t.Helper()
	if testing.Short() {
		t.Skip("short: restarts members of etcd again and again")
	}
	t.Parallel()
	s := newSecured(t, first)
	shard := identity.Identity{Store: s.store, Role: identity.Shard, Name: "main-0"}
	writes := 0
	write := func(mode certs.Mode) {
		t.Helper()
		writes++
		put(t, s.as(shard, mode), fmt.Sprintf("k%d", writes), "v")
	}
	write(first)
	for _, mode := range modes {
		s.become(mode)
		for _, name := range []string{"b", "a", "c"} {
			s.restart(name)
			if r, ok := s.members[name].Report(); !ok || r.Mode != mode {
				t.Errorf("%s reports %+v", name, r)
			}
			write(certs.Both) // members accept clients that use TLS in every mode
		}
		if mode != certs.Required {
			write(certs.Plaintext)
		}
		s.addressedBy(mode, s.as(shard, certs.Both))
	}
	last := modes[len(modes)-1]
	got, err := s.as(shard, last).Get(testContext(t), "k", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || got.Count != int64(writes) {
		t.Errorf("%d of %d writes, %v", got.Count, writes, err)
	}
}

// addressedBy waits until each member is known by the address that belongs to the mode.
func (s *secured) addressedBy(mode certs.Mode, client *clientv3.Client) {
	s.t.Helper()
	scheme := "https://"
	if mode == certs.Plaintext {
		scheme = "http://"
	}
	for ctx := testContext(s.t); ; time.Sleep(10 * time.Millisecond) {
		list, err := client.MemberList(ctx)
		if ctx.Err() != nil {
			s.t.Fatalf("not all members are known by an address of mode %s: %v", mode, err)
		}
		if err != nil {
			continue // the members are electing a leader at the moment
		}
		n := 0
		for _, m := range list.Members {
			if len(m.PeerURLs) == 1 && strings.HasPrefix(m.PeerURLs[0], scheme) {
				n++
			}
		}
		if n == 3 {
			return
		}
	}
}
