package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sheaf.dev/sheaf/bench/demo"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/test/loopback"
	"sheaf.dev/sheaf/internal/test/must"
)

// The demo of `make run` works on small trees.
func TestRunDemoOnceReportsAndLeavesNothingBehind(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	one, two := filepath.Join(t.TempDir(), "same"), filepath.Join(t.TempDir(), "same")
	for i, dir := range []string{one, two} {
		for n := range 400 {
			name := filepath.Join(dir, "sub "+strconv.Itoa(n%30), []string{"go.mod", "a b", "ü", "-x"}[n%4]+strconv.Itoa(n))
			must.OK(t, os.MkdirAll(filepath.Dir(name), 0o755))
			must.OK(t, os.WriteFile(name, bytes.Repeat([]byte(strconv.Itoa(n+1000*i)), n*10), 0o644))
		}
	}
	server, httpAddress := loopback.Free(t), loopback.Free(t)
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
	must.OK(t, err)
	defer l.Close()
	measure(t, "demo", "--once", "--listen", server, "--http", httpAddress, one).Want(t, 1).Has(t, "is taken").
		Has(t, "ARGS=")
}

// stepWriter is a writer that collects the demo's output. It calls change when the output reaches step 3, which follows
// the import.
type stepWriter struct {
	bytes.Buffer
	change func()
}

func (c *stepWriter) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("3. Kill")) {
		c.change()
	}
	return c.Buffer.Write(p)
}

// Other programs may use the tree during the demo. Files that they add, change or remove after the import are skipped,
// and the other files are compared.
func TestRunDemoComparesWhatItImported(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	tree := filepath.Join(t.TempDir(), "tree")
	must.OK(t, os.MkdirAll(tree, 0o755))
	name := func(n int) string { return filepath.Join(tree, fmt.Sprintf("%04d", n)) }
	for n := range 500 {
		must.OK(t, os.WriteFile(name(n), []byte(strconv.Itoa(n)), 0o644))
	}
	said := &stepWriter{change: func() {
		// File 0 belongs to the sample, which contains every 97th file.
		must.OK(t, os.WriteFile(name(0), []byte("changed"), 0o644))
		must.OK(t, os.Remove(name(97)))
		for n := range 500 {
			must.OK(t, os.WriteFile(name(n)+"-new", nil, 0o644))
		}
	}}
	err := demo.Run(t.Context(), demo.Options{
		Trees: []string{tree}, Listen: loopback.Free(t), HTTP: loopback.Free(t), Residency: "index", Once: true,
		Out: &cli.Output{Out: said, Err: io.Discard}, Program: filepath.Join(filepath.Dir(benchBinary), "sheaf"),
	})
	must.OK(t, err)
	for _, text := range []string{"500 records", "2 files of the sample changed since the import", "4 records compared",
		"499 files"} {
		if !strings.Contains(said.String(), text) {
			t.Errorf("the report does not say %q: %s", text, said)
		}
	}
}
