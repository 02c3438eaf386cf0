package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestClientsFlight runs a pyarrow program that makes each call of docs/flight.md, over plaintext and over TLS, and the
// lines of Python on that page.
func TestClientsFlight(t *testing.T) {
	python := os.Getenv("SHEAF_FLIGHT_PYTHON")
	if python == "" {
		t.Skip("SHEAF_FLIGHT_PYTHON is not set: make test-clients CLIENTS=flight")
	}
	run := func(want string, args ...string) {
		t.Helper()
		out, err := exec.Command(python, args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	dir := t.TempDir()
	plain := startDev(t, filepath.Join(dir, "plain"), "--shards", "3")
	run("all 2004 records", "testdata/flight_driver.py", plain.server)
	page, err := os.ReadFile("../../docs/flight.md")
	must(t, err)
	_, lines, found := strings.Cut(string(page), "```python\n")
	lines, _, ended := strings.Cut(lines, "```")
	if !found || !ended || !strings.Contains(lines, "127.0.0.1:7600") {
		t.Fatal("docs/flight.md has no lines of Python for 127.0.0.1:7600")
	}
	run("'id': 42, 'status': 'RECORD_NOT_FOUND'", "-c", strings.ReplaceAll(lines, "127.0.0.1:7600", plain.server))
	plain.kill()
	secured := startDev(t, filepath.Join(dir, "tls"), "--shards", "3", "--tls")
	of := func(name string) string { return filepath.Join(dir, "tls/tls/admin", name) }
	run("all 2004 records", "testdata/flight_driver.py", secured.server, of("ca.crt"), of("tls.crt"), of("tls.key"))
}
