package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The demo of `make run` works on small trees.
func TestRunDemoOnceReportsAndLeavesNothingBehind(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	one, two := filepath.Join(t.TempDir(), "same"), filepath.Join(t.TempDir(), "same")
	for i, dir := range []string{one, two} {
		for n := range 400 {
			name := filepath.Join(dir, "sub "+strconv.Itoa(n%30), []string{"go.mod", "a b", "ü", "-x"}[n%4]+strconv.Itoa(n))
			must(t, os.MkdirAll(filepath.Dir(name), 0o755))
			must(t, os.WriteFile(name, bytes.Repeat([]byte(strconv.Itoa(n+1000*i)), n*10), 0o644))
		}
	}
	server, httpAddress := freeAddress(t), freeAddress(t)
	for _, residency := range []string{"resident", "index"} {
		o := measure(t, "demo", "--once", "--listen", server, "--http", httpAddress, "--residency", residency, one, two,
			filepath.Join(tmp, "no-such")).Want(t, 0)
		for _, text := range []string{"400 files", "800 records", "SIGKILL", "every byte is there", "one file each",
			"left out"} {
			if !strings.Contains(o.Stdout, text) {
				t.Errorf("%s: the report does not say %q: %s", residency, text, o.Stdout)
			}
		}
	}
	if names, err := os.ReadDir(tmp); err != nil || len(names) != 0 {
		t.Errorf("left behind: %v %v", names, err)
	}
	l, err := net.Listen("tcp", server)
	must(t, err)
	defer l.Close()
	measure(t, "demo", "--once", "--listen", server, "--http", httpAddress, one).Want(t, 1).Has(t, "is taken").
		Has(t, "ARGS=")
}
