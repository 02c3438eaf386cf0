package storetest

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/test/must"
)

// TestStoreStartsWithOneInvalidKey restarts every process while a key in etcd has an invalid value. Everything that
// does not depend on this key must be served, and the gateway and `sheaf doctor` must name the key. The test takes 1 s
// of CPU time.
func TestStoreStartsWithOneInvalidKey(t *testing.T) {
	for name, value := range map[string]string{
		"states/shard-0": `{"state":"Draining"}`,
		"states/shard-1": "Draining",
		"groups/0":       `{"name":"1"}`,
		"targets/0":      `{"group":"0","shards":[""]}`,
		"shards/shard-9": "{}",
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { startsWithAnOddKey(t, name, value) }) })
	}
}

func startsWithAnOddKey(t *testing.T, name, value string) {
	s := Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	c := s.Client(t, client.Config{})
	for id := range int64(64) {
		if _, err := c.Put(ctx, client.Key{ID: id}, []byte("kept"), nil); err != nil {
			t.Fatal(err)
		}
	}
	etcd := s.Etcd.Client(t)
	before, err := etcd.Get(ctx, "/sheaf/test/"+name)
	must.OK(t, err)
	if _, err := etcd.Put(ctx, "/sheaf/test/"+name, value); err != nil {
		t.Fatal(err)
	}
	s.KillShard(0)
	must.OK(t, s.RestartShard(0))
	read := func() (failed int, last error) {
		for id := range int64(64) {
			soon, cancel := context.WithTimeout(ctx, 2*time.Second)
			if r, err := c.Get(soon, client.Key{ID: id}, nil); err != nil || string(r.Data) != "kept" {
				failed, last = failed+1, err
			}
			cancel()
		}
		return failed, last
	}
	time.Sleep(10 * time.Second)
	failed, last := read()
	if isGroup := name == "groups/0"; isGroup != (failed > 0) || failed == 64 {
		t.Errorf("%d of 64 reads fail: %v", failed, last)
	}
	if problems := strings.Join(s.gateway.Status().Problems, "\n"); strings.Count(problems, "/sheaf/test/"+name) != 1 {
		t.Errorf("the gateway's problems: %s", problems)
	}
	if found := doctor(t, ctx, s); len(found) != 1 || !strings.Contains(found[0].What, "/sheaf/test/"+name) {
		t.Errorf("findings: %+v", found)
	}
	if len(before.Kvs) == 0 {
		_, err = etcd.Delete(ctx, "/sheaf/test/"+name)
	} else {
		_, err = etcd.Put(ctx, "/sheaf/test/"+name, string(before.Kvs[0].Value))
	}
	must.OK(t, err)
	time.Sleep(30 * time.Second)
	if failed, last := read(); failed > 0 {
		t.Errorf("the key is right again, and %d of 64 reads fail: %v", failed, last)
	}
	if found := doctor(t, ctx, s); len(found) != 0 {
		t.Errorf("the key is right again, and findings are %+v", found)
	}
}

// doctor returns the problems that `sheaf doctor` finds.
func doctor(t *testing.T, ctx context.Context, s *Server) (problems []finding.Finding) {
	t.Helper()
	for _, f := range findings(t, ctx, s) {
		if f.Severity == finding.Problem {
			problems = append(problems, f)
		}
	}
	return problems
}

// findings returns all findings of `sheaf doctor`.
func findings(t *testing.T, ctx context.Context, s *Server) []finding.Finding {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.Addr(), grpc.WithContextDialer(s.Network.Dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.OK(t, err)
	defer func() { _ = conn.Close() }()
	admin := recordv1.NewAdminServiceClient(conn)
	shards, err := recordv1.AllShards(ctx, admin)
	must.OK(t, err)
	groups, err := recordv1.AllGroups(ctx, admin, &recordv1.ListGroupsRequest{})
	must.OK(t, err)
	return finding.Of(finding.Listed(shards, groups))
}
