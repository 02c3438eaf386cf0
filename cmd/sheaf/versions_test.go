package main

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/etcdserver"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// TestTwoVersions replaces an older version of this program with the current one, process by process, under load. If
// the older version can open the volumes of the current one, the test then returns some of the processes to the older
// version, as a rolling upgrade and its rollback do. No call fails, and all acknowledged records exist. `make
// test-versions` builds the older version.
func TestTwoVersions(t *testing.T) {
	older := os.Getenv("SHEAF_OLDER")
	if older == "" {
		t.Skip("of make test-versions: SHEAF_OLDER names no older program")
	}
	s := newCopiesStoreOf(t, older)
	s.waitReady()
	l := s.load(false, true, false, true)
	l.awaitMore(300)
	replace := func(program string, names ...string) {
		t.Helper()
		s.program = program
		for _, name := range names {
			if code := s.shards[name].stop(t); code != 0 {
				t.Fatalf("shard %s ended with %d:\n%s", name, code, s.shards[name].stderr)
			}
			l.awaitMore(100) // the two shards that were not replaced answer these calls
			s.start(name)
			s.shards[name].waitReady(t)
			l.awaitMore(300)
		}
		if code := s.gateway.stop(t); code != 0 {
			t.Fatalf("the gateway ended with %d:\n%s", code, s.gateway.stderr)
		}
		s.startGateway()
		l.awaitMore(300)
	}
	replace(sheafBinary, "a", "b") // now shards of both versions run with the newer gateway
	if format := strconv.Itoa(volume.FormatVersion); os.Getenv("SHEAF_OLDER_SUPERBLOCK") == format {
		replace(older, "b", "a")
	} else {
		t.Logf("nothing is taken back: the older program knows superblocks up to format version %q, this one writes %s",
			os.Getenv("SHEAF_OLDER_SUPERBLOCK"), format)
	}
	replace(sheafBinary, copiesShards...)
	l.end()
	for _, name := range copiesShards {
		s.shards[name].kill()
		t.Logf("%d records are there without shard %s", l.check(), name)
		s.start(name)
		s.shards[name].waitReady(t)
	}
}

// TestOlderProgramsRefuseARestoredStore starts a shard and a gateway of a version from before restores in a store whose
// groups wait for their restore. That version would create these groups empty. Both say that they cannot use key meta,
// and neither writes anything to etcd.
func TestOlderProgramsRefuseARestoredStore(t *testing.T) {
	older := os.Getenv("SHEAF_OLDER")
	if older == "" || os.Getenv("SHEAF_OLDER_RESTORES") != "" {
		t.Skip("of make test-versions: SHEAF_OLDER names no program from before restores")
	}
	server, err := etcdserver.Start(t.TempDir())
	must(t, err)
	t.Cleanup(server.Close)
	client, err := server.Client()
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	store, err := registry.NewStore(client, "quotes", nil)
	must(t, err)
	at := time.Unix(1_800_000_000, 0)
	meta := placement.Meta{StoreUUID: uuid.New(), Routing: placement.Routing{Mode: placement.Hash, Groups: 2}, Copies: 1,
		Restore: &placement.Restore{Source: "127.0.0.1:1", Listing: true}}
	_, err = store.InitMeta(t.Context(), meta)
	must(t, err)
	var groups []placement.Group
	for n := range meta.Routing.Groups {
		g := placement.NewGroup(meta.Routing, placement.GroupName(n), n)
		g.Restoring = true
		groups = append(groups, g)
	}
	must(t, store.AddRestoring(t.Context(), meta.StoreUUID, at, groups))
	must(t, store.SetTargets(t.Context(), []placement.Target{{Group: "0", Shards: []string{"a"}},
		{Group: "1", Shards: []string{"a"}}}))
	all := func() *clientv3.GetResponse {
		answer, err := client.Get(t.Context(), registry.PrefixDefault, clientv3.WithPrefix())
		must(t, err)
		return answer
	}
	before := all()
	common := []string{"--etcd", strings.Join(server.Endpoints(), ","), "--store", "quotes"}
	for name, args := range map[string][]string{
		"shard":   {"shard", "--name", "a", "--dir", t.TempDir(), "--listen", loopback.Free(t)},
		"gateway": {"gateway", "--create", "--groups", "2", "--listen", loopback.Free(t)},
	} {
		http := loopback.Free(t)
		p := serveProgram(t, nil, older, append(append(args, "--http", http), common...)...)
		p.http = http
		deadline := time.After(time.Minute)
		for !strings.Contains(p.stderr.String(), "needs a Sheaf that knows: restore") {
			select {
			case <-time.After(5 * time.Millisecond):
			case <-deadline:
				t.Fatalf("the older %s does not refuse the store: %s, keys %v", name, p.stderr, all().Kvs)
			}
		}
		if p.ready() {
			t.Errorf("the older %s is ready: %s", name, p.stderr)
		}
		t.Logf("the older %s: %s", name, p.stderr)
		p.kill()
	}
	if after := all(); after.Header.Revision != before.Header.Revision {
		t.Errorf("the older processes have written: %d keys, and %d before: %v", after.Count, before.Count, after.Kvs)
	}
}
