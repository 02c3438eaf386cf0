package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Commands can connect to a store with TLS if flags or environment variables name their certificates. If these are
// missing or wrong, the error says what to do.
func TestTLSAtTheTerminal(t *testing.T) {
	dir := t.TempDir()
	d := startDev(t, dir, "--tls")
	of := func(name string) string { return filepath.Join(dir, "tls/admin", name) }
	files := []string{"--server", d.server, "--ca", of("ca.crt"), "--cert", of("tls.crt"), "--key", of("tls.key")}
	with := func(args ...string) []string { return append(args, files...) }
	sheaf(t, strings.NewReader("hello"), with("put", "42")...).Want(t, 0)
	for args, says := range map[string]string{"get 42": "hello", "status": "Serving"} {
		if o := sheaf(t, nil, with(strings.Fields(args)...)...).Want(t, 0); !strings.Contains(o.Stdout, says) {
			t.Errorf("%s says %q", args, o.Stdout)
		}
	}
	sheaf(t, nil, with("doctor")...).Want(t, 0)
	sheaf(t, nil, with("export", t.TempDir()+"/out")...).Want(t, 0)

	sheaf(t, nil, "get", "42", "--server", d.server).Want(t, 1).Has(t, "give --ca, --cert and --key")
	sheaf(t, nil, "get", "42", "--server", d.server, "--ca", of("ca.crt")).Want(t, 1).
		Has(t, "wants a certificate: give --cert and --key")
	sheaf(t, nil, "get", "42", "--server", d.server, "--ca", of("none")).Want(t, 2).Has(t, "no such file")
	sheaf(t, nil, "get", "42", "--server", d.server, "--cert", of("tls.crt")).Want(t, 2).
		Has(t, "no file with the authorities")
	sheaf(t, nil, "get", "42", "--server", d.server, "--ca", of("tls.key")).Want(t, 2).Has(t, "holds no certificate")

	other := t.TempDir()
	foreign := startDev(t, other, "--tls")
	sheaf(t, nil, append([]string{"get", "42"}, append([]string{"--server", foreign.server}, files[2:]...)...)...).
		Want(t, 1).
		Has(t, "the server's certificate is none of an authority in --ca")
	plain := startDev(t, t.TempDir())
	sheaf(t, nil, append([]string{"get", "42"}, append([]string{"--server", plain.server}, files[2:]...)...)...).
		Want(t, 1).Has(t, "speaks no TLS")

	for name, file := range map[string]string{"SHEAF_CA": of("ca.crt"), "SHEAF_CERT": of("tls.crt"),
		"SHEAF_KEY": of("tls.key")} {
		t.Setenv(name, file)
	}
	if o := sheaf(t, nil, "get", "42", "--server", d.server).Want(t, 0); o.Stdout != "hello" {
		t.Errorf("by variables: %q", o.Stdout)
	}
}

// A process whose certificates are invalid, or belong to another process, does not start.
func TestAFolderOfCertificatesMustBeGood(t *testing.T) {
	dir := t.TempDir()
	startDev(t, dir, "--tls")
	tls := filepath.Join(dir, "tls")
	shard := []string{"shard", "--name", "shard-9", "--dir", t.TempDir(), "--listen", "127.0.0.1:0", "--http", "",
		"--tls-dir"}
	sheaf(t, nil, append(shard, t.TempDir())...).Want(t, 2).Has(t, "ca.crt is missing")
	sheaf(t, nil, append(shard, filepath.Join(tls, "shard-0"))...).Want(t, 2).
		Has(t, "/shard/shard-0, and this process is the shard shard-9")
	half := t.TempDir()
	for _, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
		content, err := os.ReadFile(filepath.Join(tls, "shard-0", name))
		must(t, err)
		if name == "ca.crt" {
			content = content[:len(content)/2]
		}
		must(t, os.WriteFile(filepath.Join(half, name), content, 0o600))
	}
	o := sheaf(t, nil, append(shard, half)...).Want(t, 2).Has(t, "half written")
	if strings.Contains(o.Stderr, "PRIVATE") {
		t.Error(o.Stderr)
	}
}
