// Package etcdtest starts one etcd that all tests of a package share.
package etcdtest

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/etcdserver"
)

// shared holds the etcd that all tests of the package share. The first test that needs it starts it.
var shared struct {
	once   sync.Once
	server *etcdserver.Server
	dir    string
	err    error
}

// Shared returns one etcd for all tests that do not stop it. Each test must use its own store name. Main stops the
// etcd.
func Shared(tb testing.TB) *etcdserver.Server {
	tb.Helper()
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "sheaf-test-etcd-"); shared.err == nil {
			shared.server, shared.err = etcdserver.Start(shared.dir)
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

// use makes one call to etcd. Once the call has returned, etcd has started all goroutines that run until it stops, so
// that no test mistakes them for its own leaks.
func use(server *etcdserver.Server) error {
	client, err := server.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	_, err = client.Get(ctx, "first")
	return errors.Join(err, client.Close())
}

// Main implements TestMain for a package that uses Shared. It runs the tests, stops etcd, and removes its folder.
func Main(m *testing.M) {
	code := m.Run()
	if shared.server != nil {
		shared.server.Close()
	}
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir) // this folder belongs to this run only
	}
	os.Exit(code)
}
