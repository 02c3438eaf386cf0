// Package etcdtest starts one etcd for all tests of a package.
package etcdtest

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/placement/etcd"
)

// shared starts with the first test that needs it: a start before M.Run would race with that test.
var shared struct {
	once   sync.Once
	server *etcd.Server
	dir    string
	err    error
}

// Shared returns one etcd for all tests that do not stop theirs. Each test uses a store name of its own. The etcd ends
// with Main.
func Shared(tb testing.TB) *etcd.Server {
	tb.Helper()
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "sheaf-test-etcd-"); shared.err == nil {
			shared.server, shared.err = etcd.StartUnsynced(shared.dir)
		}
		if shared.err == nil {
			shared.err = use(shared.server)
		}
	})
	if shared.err != nil {
		tb.Fatalf("etcd for the tests does not start: %v", shared.err)
	}
	return shared.server
}

// use calls etcd once. After that, etcd has started the goroutines that remain, which a test must not take for its own.
func use(server *etcd.Server) error {
	client, err := server.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	_, err = client.Get(ctx, "first")
	return errors.Join(err, client.Close())
}

// Main is the TestMain of a package that uses Shared: it runs the tests, stops etcd, and removes its folder.
func Main(m *testing.M) {
	code := m.Run()
	if shared.server != nil {
		shared.server.Close()
	}
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir) // of this run alone
	}
	os.Exit(code)
}
