package etcdtest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"sheaf.dev/sheaf/internal/test/etcdserver"
	"sheaf.dev/sheaf/internal/test/must"
)

// Own is an etcd for a single test. The test can stop this etcd and restore an earlier state of it. Own is not safe for
// concurrent use.
type Own struct {
	tb      testing.TB
	dir     string
	server  *etcdserver.Server
	Address string
}

// NewOwn starts an etcd, which is stopped when the test finishes.
func NewOwn(tb testing.TB) *Own {
	tb.Helper()
	o := &Own{tb: tb, dir: filepath.Join(tb.TempDir(), "etcd"), Address: "unix://" + filepath.Join(tb.TempDir(), "s")}
	o.Start()
	tb.Cleanup(func() { o.server.Close() })
	return o
}

// Start starts the etcd again after Stop.
func (o *Own) Start() {
	o.tb.Helper()
	var err error
	if o.server, err = etcdserver.Start(o.dir, o.Address); err != nil {
		o.tb.Fatal(err)
	}
}

// Stop stops the etcd. Its data remains.
func (o *Own) Stop() { o.server.Close() }

// Backup copies the etcd's data, and returns the copy's folder. The etcd is stopped during the copy.
func (o *Own) Backup() string {
	o.tb.Helper()
	o.Stop()
	to := filepath.Join(o.tb.TempDir(), "backup")
	must.OK(o.tb, os.CopyFS(to, os.DirFS(o.dir)))
	o.Start()
	return to
}

// Restore starts the stopped etcd with the data of a Backup.
func (o *Own) Restore(backup string) {
	o.tb.Helper()
	must.OK(o.tb, errors.Join(os.RemoveAll(o.dir), os.CopyFS(o.dir, os.DirFS(backup))))
	o.Start()
}
