package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/etcdserver"
)

// The commands `sheaf auth whoami` and `sheaf auth can-i` show the caller's name and rights.
func TestWhoAmICommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := startDev(t, dir, "--tls")
	of := func(name string) string { return filepath.Join(dir, "tls/admin", name) }
	with := func(args ...string) []string {
		return append(args, "--server", d.server, "--ca", of("ca.crt"), "--cert", of("tls.crt"), "--key", of("tls.key"))
	}
	if o := sheaf(t, nil, with("auth", "whoami")...).Want(t, 0).Has(t, "no table of grants"); o.Stdout != "admin/dev\n" {
		t.Errorf("%q", o.Stdout)
	}
	if o := sheaf(t, nil, with("auth", "can-i", "admin-write")...).Want(t, 0); o.Stdout != "yes\n" {
		t.Errorf("%q", o.Stdout)
	}
	if o := sheaf(t, nil, with("auth", "can-i", "put", "--group", "a", "-o", "json")...).
		Want(t, 0); !strings.Contains(o.Stdout, `"allowed": true`) {
		t.Errorf("%q", o.Stdout)
	}
	sheaf(t, nil, with("auth", "can-i", "read")...).Want(t, 2).Has(t, `"read" is no verb`)
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte("a.b.c"), 0o600))
	sheaf(t, nil, with("auth", "whoami", "--token-file", token)...).Want(t, 2).Has(t, "give one of them")
	sheaf(t, nil, "auth", "whoami", "--server", d.server, "--token-file", token).Want(t, 2).Has(t, "needs --ca")
	plain := startDev(t, t.TempDir())
	sheaf(t, nil, "auth", "whoami", "--server", plain.server).Want(t, 0).Has(t, "plaintext")
	sheaf(t, nil, "shard", "--name", "s", "--dir", t.TempDir(), "--audit-log", "-", "--listen", "127.0.0.1:0", "--http",
		"").Want(t, 2).Has(t, "needs --tls-dir")
}

// An administrator can read a table of grants, change it, and set it again. The command refuses the table if it is
// invalid, or if somebody else has changed the stored one in the meantime.
func TestGrantTableCanBeEdited(t *testing.T) {
	server, err := etcdserver.Start(t.TempDir())
	must(t, err)
	t.Cleanup(server.Close)
	client, err := server.Client()
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	const name = "quotes"
	at := []string{"--etcd", client.Endpoints()[0], "--store", name}
	table := func(args ...string) []string { return append(append([]string{"auth", "table"}, args...), at...) }
	const first = `{"version":0,"grants":[{"name":"a","subjects":[{"kind":"Certificate","name":"c"}],"verbs":["get"],"groups":{"all":true}}]}`

	sheaf(t, nil, table("get")...).Want(t, 3).Has(t, "no table of grants")
	sheaf(t, strings.NewReader(first), table("set", "-")...).Want(t, 1).Has(t, "no such store")
	store, err := registry.NewStore(client, name, nil)
	must(t, err)
	meta := placement.Meta{StoreUUID: uuid.New(), Routing: placement.Routing{Mode: placement.Named}, Copies: 1}
	if _, err := store.InitMeta(context.Background(), meta); err != nil {
		t.Fatal(err)
	}
	sheaf(t, strings.NewReader(first), table("set", "-")...).Want(t, 0).Has(t, "table 1 is stored, with 1 grants")
	got := sheaf(t, nil, table("get")...).Want(t, 0).Stdout
	if !strings.Contains(got, `"version":1`) {
		t.Error(got)
	}
	sheaf(t, strings.NewReader(first), table("set", "-")...).Want(t, 2).Has(t, "version: is 0, and the store has 1")
	file := filepath.Join(t.TempDir(), "table.json")
	must(t, os.WriteFile(file, []byte(strings.Replace(got, "get", "read", 1)), 0o600))
	sheaf(t, nil, table("set", file)...).Want(t, 2).Has(t, `"read" is no verb`)
	must(t, os.WriteFile(file, []byte(strings.Replace(got, "get", "put", 1)), 0o600))
	sheaf(t, nil, table("set", file)...).Want(t, 0).Has(t, "table 2 is stored")
	sheaf(t, nil, table("set", file+".none")...).Want(t, 1).Has(t, "no such file")

	tenants := append([]string{"auth", "tenants"}, at...)
	sheaf(t, nil, tenants...).Want(t, 0).Has(t, "has no tenants")
	with := `{"version":2,"grants":[],"tenants":[{"name":"team-a","prefix":"a-","quotas":{"storedBytes":1048576,"callsPerSecond":5}}]}`
	sheaf(t, strings.NewReader(strings.Replace(with, `"callsPerSecond":5`, `"callsPerSecond":-5`, 1)),
		table("set", "-")...).Want(t, 2).
		Has(t, "tenants[0] (team-a).quotas.callsPerSecond: is -5")
	sheaf(t, strings.NewReader(with), table("set", "-")...).Want(t, 0)
	if done, err := store.PutLedger(t.Context(), "team-a", []byte(`{"shards":{"s":{"groups":1,"used":{"bytes":2048}}}}`),
		0); err != nil || !done {
		t.Fatal(done, err)
	}
	shown := sheaf(t, nil, tenants...).Want(t, 0).Stdout
	for _, row := range []string{"team-a a- 0 storedBytes 1.0 MiB 2.0 KiB", "team-a a- 0 callsPerSecond 5 -"} {
		if !strings.Contains(strings.Join(strings.Fields(shown), " "), row) {
			t.Errorf("%q is not in %s", row, shown)
		}
	}
	if o := sheaf(t, nil, append(tenants, "-o", "json")...).Want(t, 0); !strings.Contains(o.Stdout, `"used": 2048`) {
		t.Error(o.Stdout)
	}
}
