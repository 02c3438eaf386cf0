package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// runArchive runs a command line of sheaf-archive. It returns the exit code and the output.
func runArchive(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e strings.Builder
	code = run(t.Context(), &o, &e, args)
	return code, o.String(), e.String()
}

func TestProbeOfAFolder(t *testing.T) {
	dir := t.TempDir()
	url := "file://" + filepath.Join(dir, "archive")
	if code, out, errs := runArchive(t, "probe", url); code != 0 || out != "the bucket can keep an archive\n" ||
		errs != "" {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
	if code, out, _ := runArchive(t, "probe", url, "-o", "json"); code != 0 ||
		!strings.Contains(out, `"deletable": true`) {
		t.Errorf("%d, %q", code, out)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "archive", "probe")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// With --bytes, a probe also measures the bucket.
func TestProbeMeasuresAFolder(t *testing.T) {
	dir := t.TempDir()
	url := "file://" + filepath.Join(dir, "archive")
	code, out, errs := runArchive(t, "probe", url, "--bytes", "3001", "--object-bytes", "1000", "--parallel", "2")
	if code != 0 || errs != "" || !strings.Contains(out, "the bucket can keep an archive\nupload ") ||
		!strings.Contains(out, "(2.9 KiB in 4 objects)") {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
	if code, out, _ := runArchive(t, "probe", url, "--bytes", "1", "-o", "json"); code != 0 ||
		!strings.Contains(out, `"downloadSeconds": `) || !strings.Contains(out, `"objects": 1,`) {
		t.Errorf("%d, %q", code, out)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "archive", "probe")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	for _, wrong := range [][]string{{"--parallel", "0"}, {"--parallel", "65"}, {"--object-bytes", "0"},
		{"--bytes", "-1"}, {"--bytes", "1TiB", "--object-bytes", "1"}} {
		if code, _, errs := runArchive(t, append([]string{"probe", url}, wrong...)...); code != 2 {
			t.Errorf("%q: %d, %q", wrong, code, errs)
		}
	}
}

// archiveOfTests writes an archive with two groups into a folder, and returns its URL.
func archiveOfTests(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "archive")
	b, err := bucket.OpenFolder(vfs.OS{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	from := archivetest.NewMemory()
	archivetest.Sample(t, from, object.Key{}, 50)
	for info, err := range from.List(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		r, err := from.Open(t.Context(), info.Name, 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Create(t.Context(), info.Name, info.Bytes, r); err != nil {
			t.Fatal(err)
		}
	}
	return "file://" + dir
}

func TestCommandsReadAnArchive(t *testing.T) {
	url := archiveOfTests(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"list", url}, 0, "alpha"},
		{[]string{"list", url, "-o", "json"}, 0, `"group": "alpha"`},
		{[]string{"show", url, "--group", "alpha"}, 0, "alpha"},
		{[]string{"show", url, "--group", "alpha", "--id", "1"}, 0, ""},
		{[]string{"show", url, "log/00/0000000000000000004"}, 0, "READ AT"},
		{[]string{"show", url}, 2, "or --group"},
		{[]string{"show", url, "--group", "none"}, 3, "none"},
		{[]string{"verify", url}, 0, "checked"},
		{[]string{"verify", url, "--sample", "101"}, 2, "1 to 100 percent"},
		{[]string{"cat", url, "12", "--group", "beta"}, 0, ""},
		{[]string{"cat", url, "12", "--group", "beta", "--at", "tomorrow"}, 2, "is not a point in time"},
		{[]string{"cat", url, "-99", "--group", "beta"}, 3, "no such record"},
		{[]string{"list", url, "--store", "11111111-2222-4333-8444-000000000000"}, 3, "the URL has no archive"},
	} {
		code, out, errs := runArchive(t, c.args...)
		if code != c.code || !strings.Contains(out+errs, c.says) {
			t.Errorf("%q: %d, %q, %q", c.args, code, out, errs)
		}
	}
	// A single flipped byte is detected.
	store := filepath.Join(strings.TrimPrefix(url, "file://"), archivetest.SampleStore.String())
	log := filepath.Join(store, "log/00/0000000000000000004")
	content, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(log, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := runArchive(t, "verify", url); code != 1 || !strings.Contains(errs, "problem") {
		t.Errorf("verify of a harmed archive: %d, %q", code, errs)
	}
}

func TestWrongUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"probe"}, 2, "0 arguments given"},
		{[]string{"probe", "s3://user:secret@b"}, 1, "credentials come from the environment"},
		{[]string{"probe", "file://" + filepath.Join(t.TempDir(), "not-mounted/archive")}, 1, "mount its file system"},
		{[]string{"probe", "x", "--timeout", "-1s"}, 2, "must not be negative"},
		{[]string{"prob"}, 2, "unknown command"},
	} {
		if code, _, errs := runArchive(t, c.args...); code != c.code || !strings.HasPrefix(errs, "sheaf-archive: ") ||
			!strings.Contains(errs, c.says) || strings.Contains(errs, "secret") {
			t.Errorf("%q: %d, %q", c.args, code, errs)
		}
	}
	if code, out, _ := runArchive(t, "--version"); code != 0 || !strings.Contains(out, "sheaf-archive version unknown") {
		t.Errorf("%d, %q", code, out)
	}
	if code, out, _ := runArchive(t, "version"); code != 0 || !strings.HasPrefix(out, "sheaf-archive unknown (go") {
		t.Errorf("%d, %q", code, out)
	}
}
