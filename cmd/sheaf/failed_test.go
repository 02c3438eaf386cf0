package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A command on a group that failed ends at once, and says what failed, where, and what to do.
func TestAGroupThatFailedIsToldByTheCommands(t *testing.T) {
	dir := t.TempDir()
	p := startDev(t, dir, "--groups", "2")
	p.do(t, "a", "put", "3").want(t, 0)
	p.do(t, "b", "put", "2").want(t, 0) // the other group
	p.kill()
	manifests, err := filepath.Glob(filepath.Join(dir, "shards", "*", "groups", "*", "manifest"))
	must(t, err)
	if len(manifests) != 2 {
		t.Fatalf("%d manifests", len(manifests))
	}
	must(t, os.Remove(manifests[0]))
	p = launch(t, dir, freeAddress(t), freeAddress(t), "--groups", "2")
	var lines []string
	eventually(t, func() bool {
		lines = nil
		for _, id := range []string{"3", "2"} {
			// Without a deadline: what waits is ended by the test's own. Nobody answers until the process has begun.
			if o := p.do(t, "", "get", id, "--timeout", "0"); o.code == 1 && !strings.Contains(o.stderr, "nobody answers") {
				lines = append(lines, o.stderr)
			}
		}
		return len(lines) == 1
	})
	for _, word := range []string{"FAILED_PRECONDITION GROUP_FAILED", manifests[0], "sheaf status"} {
		if strings.Count(lines[0], word) != 1 {
			t.Errorf("%q does not say %q once", lines[0], word)
		}
	}
}

func TestWordsForWrongAddressesAndCommands(t *testing.T) {
	p := startDev(t, t.TempDir())
	sheaf(t, nil, "get", "1", "--server", "foo").want(t, 2).has(t, "HOST:PORT")
	sheaf(t, nil, "get", "1", "--server", p.http).want(t, 1).has(t, "does not speak gRPC")
	sheaf(t, nil, "get", "1", "--server", "no-such-host.invalid:1").want(t, 1).has(t, "nobody answers at no-such-host.invalid:1")
	if o := sheaf(t, nil, "gte").want(t, 2); strings.Count(o.stderr, "\n") != 1 || !strings.Contains(o.stderr, "did you mean get") {
		t.Errorf("%q", o.stderr)
	}
	if o := p.do(t, "x", "put", "1", "--if-absent").want(t, 0); o.stderr != "" {
		t.Errorf("%q", o.stderr)
	}
	if o := p.do(t, "x", "put", "1", "--if-absent").want(t, 1); strings.Count(o.stderr, "version") != 1 {
		t.Errorf("%q", o.stderr)
	}
	tree := t.TempDir()
	must(t, os.WriteFile(filepath.Join(tree, "file"), []byte("text"), 0o600))
	if o := p.do(t, "", "import", tree, "--dry-run").want(t, 0); strings.Contains(o.stdout, "B/s") {
		t.Errorf("%q", o.stdout)
	}
}
