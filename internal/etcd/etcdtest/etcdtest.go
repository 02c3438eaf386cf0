// Package etcdtest starts one etcd for all tests of a package.
package etcdtest

import (
	"os"
	"sync"
	"testing"

	"sheaf.dev/sheaf/internal/etcd"
)

// shared starts with the first test that needs it: before M.Run it would race with that.
var shared struct {
	once   sync.Once
	server *etcd.Server
	dir    string
	err    error
}

// Shared is one etcd for the tests that do not stop theirs; each test takes a store name of its own. It ends with Main.
func Shared(tb testing.TB) *etcd.Server {
	tb.Helper()
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "sheaf-test-etcd-"); shared.err == nil {
			shared.server, shared.err = etcd.StartEmbedded(shared.dir)
		}
	})
	if shared.err != nil {
		tb.Fatalf("etcd for the tests does not start: %v", shared.err)
	}
	return shared.server
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
