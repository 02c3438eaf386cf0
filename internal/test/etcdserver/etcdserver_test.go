package etcdserver

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/must"
)

func TestAServerKeepsWhatWasWritten(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	dir := filepath.Join(t.TempDir(), "etcd")
	for round, listen := range [][]string{nil, {"127.0.0.1:0"}, {"unix://" + filepath.Join(t.TempDir(), "s")}} {
		server, err := Start(dir, listen...)
		must.OK(t, err)
		client, err := server.Client()
		must.OK(t, err)
		answer, err := client.Get(ctx, "k")
		must.OK(t, err)
		if got := len(answer.Kvs); got != min(round, 1) {
			t.Fatalf("round %d: %d keys", round, got)
		}
		if _, err := client.Put(ctx, "k", "v"); err != nil {
			t.Fatal(err)
		}
		_ = client.Close()
		server.Close()
	}
}
