package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// A command on a failed group ends immediately, and prints the failure, its place, and the remedy.
func TestAGroupThatFailedIsReportedByTheCommands(t *testing.T) {
	dir := t.TempDir()
	p := startDev(t, dir, "--groups", "2")
	p.do(t, "a", "put", "3").Want(t, 0)
	p.do(t, "b", "put", "2").Want(t, 0) // a record in the second group
	p.kill()
	manifests, err := filepath.Glob(filepath.Join(dir, "shards", "*", "groups", "*", "manifest"))
	must(t, err)
	if len(manifests) != 2 {
		t.Fatalf("%d manifests", len(manifests))
	}
	must(t, os.Remove(manifests[0]))
	p = launch(t, dir, loopback.Free(t), loopback.Free(t), "--groups", "2")
	var lines []string
	eventually(t, func() bool {
		lines = nil
		for _, id := range []string{"3", "2"} {
			// The command has no deadline, so if it waited for the group, the test would run into its own deadline. Until the
			// process has started, the command reports that no server answers.
			if o := p.do(t, "", "get", id, "--timeout", "0"); o.Code == 1 && !strings.Contains(o.Stderr, "nobody answers") {
				lines = append(lines, o.Stderr)
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
	sheaf(t, nil, "get", "1", "--server", "foo").Want(t, 2).Has(t, "HOST:PORT")
	sheaf(t, nil, "get", "1", "--server", p.http).Want(t, 1).Has(t, "does not speak gRPC")
	sheaf(t, nil, "get", "1", "--server", "no-such-host.invalid:1").Want(t, 1).
		Has(t, "nobody answers at no-such-host.invalid:1")
	if o := sheaf(t, nil, "gte").Want(t, 2); strings.Count(o.Stderr, "\n") != 1 ||
		!strings.Contains(o.Stderr, "did you mean get") {
		t.Errorf("%q", o.Stderr)
	}
	if o := p.do(t, "x", "put", "1", "--if-absent").Want(t, 0); o.Stderr != "" {
		t.Errorf("%q", o.Stderr)
	}
	if o := p.do(t, "x", "put", "1", "--if-absent").Want(t, 1); strings.Count(o.Stderr, "version") != 1 {
		t.Errorf("%q", o.Stderr)
	}
	tree := t.TempDir()
	must(t, os.WriteFile(filepath.Join(tree, "file"), []byte("text"), 0o600))
	if o := p.do(t, "", "import", tree, "--dry-run").Want(t, 0); strings.Contains(o.Stdout, "/s") {
		t.Errorf("%q", o.Stdout)
	}
}

// A dry run says what an import would do. If only one file was stored, the texts use the singular.
func TestTheWordsOfAnImport(t *testing.T) {
	report := cli.ImportReport{Stored: 1, Updated: 1, StoredBytes: 7, Seconds: 1}
	want := "stored 1 file, 7 B, in 1.0 s: 1 file/s, 7 B/s\n  1 of them replaced an older state\n"
	if got := importWords(report); got != want {
		t.Errorf("%q", got)
	}
	report.DryRun = true
	if got := importWords(report); got != "would store 1 file, 7 B\n  1 of them would replace an older state\n" {
		t.Errorf("%q", got)
	}
}
