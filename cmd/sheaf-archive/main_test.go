package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// of runs a command line, and returns its exit code and outputs.
func of(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e strings.Builder
	code = run(t.Context(), &o, &e, args)
	return code, o.String(), e.String()
}

func TestProbeOfAFolder(t *testing.T) {
	dir := t.TempDir()
	url := "file://" + filepath.Join(dir, "archive")
	if code, out, errs := of(t, "probe", url); code != 0 || out != "the bucket can keep an archive\n" || errs != "" {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
	if code, out, _ := of(t, "probe", url, "-o", "json"); code != 0 || !strings.Contains(out, `"deletable": true`) {
		t.Errorf("%d, %q", code, out)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "archive", "probe")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
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
		if code, _, errs := of(t, c.args...); code != c.code || !strings.HasPrefix(errs, "sheaf-archive: ") ||
			!strings.Contains(errs, c.says) || strings.Contains(errs, "secret") {
			t.Errorf("%q: %d, %q", c.args, code, errs)
		}
	}
	if code, out, _ := of(t, "--version"); code != 0 || !strings.Contains(out, "sheaf-archive version unknown") {
		t.Errorf("%d, %q", code, out)
	}
	if code, out, _ := of(t, "version"); code != 0 || !strings.HasPrefix(out, "sheaf-archive unknown (go") {
		t.Errorf("%d, %q", code, out)
	}
}
