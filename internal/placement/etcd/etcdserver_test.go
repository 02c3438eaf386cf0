package etcd_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/test/must"
)

func TestAnEmbeddedEtcdKeepsWhatWasWritten(t *testing.T) {
	for name, start := range map[string]func(dir string) (*etcd.Server, error){
		"synced": etcd.StartEmbedded, "unsynced": etcd.StartUnsynced,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			dir := filepath.Join(t.TempDir(), "etcd")
			for round := range 3 {
				began := time.Now()
				server, err := start(dir)
				must.OK(t, err)
				client := server.Client()
				answer, err := client.Get(ctx, "k")
				must.OK(t, err)
				t.Logf("round %d: first answer after %v", round, time.Since(began))
				if got := len(answer.Kvs); got != min(round, 1) {
					t.Fatalf("round %d: %d keys", round, got)
				}
				if _, err := client.Put(ctx, "k", "v"); err != nil {
					t.Fatal(err)
				}
				_ = client.Close()
				server.Close()
			}
		})
	}
}

func TestStartEmbeddedRefusesWhatCannotBe(t *testing.T) {
	if _, err := etcd.StartEmbedded(""); err == nil {
		t.Error("an empty folder was taken")
	}
}
