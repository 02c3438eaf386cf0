package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Records are deleted and overwritten while a store is in use, and the command copy restores them from the store's
// archive.
func TestRecordsComeBackFromTheArchive(t *testing.T) {
	s := startStore(t)
	url := "file://" + filepath.Join(t.TempDir(), "archive")
	do := func(in string, args ...string) string {
		t.Helper()
		out, err := s.sheaf(in, args...)
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return out
	}
	large := strings.Repeat("sheaf", 1<<19)
	stop := archiveWith(t, s, url)
	// The history of a group is readable only from the group's first copy on, so wait for the first copy of each group.
	s.await(nil, func() bool {
		code, out, _ := runArchive(t, "list", url)
		return code == 0 && strings.Count(out, "quotes") == 3
	})
	for id := 10; id < 30; id++ {
		do(fmt.Sprintf("record %d", id), "put", fmt.Sprint(id), "-")
	}
	do(large, "put", "43", "-")
	then := time.Now().UTC().Format(time.RFC3339Nano)
	do("", "rm", "43")
	for id := 10; id < 15; id++ {
		do("", "rm", fmt.Sprint(id))
	}
	do("overwritten", "put", "15", "-")
	do("new", "put", "99", "-")
	untouched := do("", "versions", "20")
	ids := filepath.Join(t.TempDir(), "ids")
	lines := "10\n11\n12\n13\n14\n15\n16\n20\n43\n99\n"
	if err := os.WriteFile(ids, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range strings.Fields(lines) {
		s.await(nil, func() bool {
			code, _, _ := runArchive(t, "cat", url, id, "--at", then)
			return code != 1 // exit code 1 means that the archive does not cover this time yet
		})
	}
	admin := filepath.Join(s.folder, "tls", "admin")
	// The history is needed until the archiver has stopped. Then an administrator can end the holds.
	if code, _, errs := runArchive(t, "release", "--server", s.server, "--tls-dir", admin); code != 1 ||
		!strings.Contains(errs, "stop the archiver first") {
		t.Errorf("release beside an archiver: %d, %s", code, errs)
	}
	if code, errs := stop(); code != 0 {
		t.Fatalf("stopped: %d, %s", code, errs)
	}
	if code, out, errs := runArchive(t, "release", "--server", s.server, "--tls-dir", admin); code != 0 ||
		!strings.Contains(out, "keeps history for an archive any more") {
		t.Errorf("release: %d, %s, %s", code, out, errs)
	}

	copied := func(args ...string) (int, string, string) {
		return runArchive(t, append([]string{"copy", url, "--ids", ids, "--at", then, "--server", s.server, "--quiet", "--ca",
			filepath.Join(admin, "ca.crt"), "--cert", filepath.Join(admin, "tls.crt"), "--key",
			filepath.Join(admin, "tls.key")}, args...)...)
	}
	code, out, errs := copied()
	if code != 1 || !strings.Contains(out, "wrote 6 records") || !strings.Contains(out, "2 already there") ||
		!strings.Contains(out, "1 with other content now") || !strings.Contains(out, "1 did not exist then") ||
		!strings.Contains(errs, "--overwrite replaces it") {
		t.Errorf("copy: %d, %q, %q", code, out, errs)
	}
	if code, out, errs := copied("--overwrite", "-o", "json"); code != 0 || !strings.Contains(out, `"written": 1,`) ||
		!strings.Contains(out, `"alreadyThere": 8,`) {
		t.Errorf("copy --overwrite: %d, %q, %q", code, out, errs)
	}
	for id := 10; id < 30; id++ {
		if got := do("", "get", fmt.Sprint(id)); got != fmt.Sprintf("record %d", id) {
			t.Errorf("record %d: %q", id, got)
		}
	}
	if do("", "get", "43") != large || do("", "get", "99") != "new" || do("", "versions", "20") != untouched {
		t.Error("records differ from what they were, or one that was not asked for was written")
	}
	if code, out, _ := copied("--overwrite"); code != 0 || !strings.Contains(out, "wrote 0 records") {
		t.Errorf("again: %d, %q", code, out)
	}
}

func TestWrongArgumentsOfCopy(t *testing.T) {
	url := archiveOfTests(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--group", "alpha"}, 2, "--at"},
		{[]string{"--at", "2026-11-01T12:00:30Z"}, 2, "--ids"},
		{[]string{"--at", "2026-11-01T12:00:30Z", "--ids", "/none/there"}, 2, "--ids"},
		{[]string{"--at", "2026-11-01T12:00:30Z", "--group", "alpha", "--server", "gateway"}, 2, "HOST:PORT"},
		{[]string{"--at", "2026-11-01T12:00:30Z", "--group", "alpha", "--server", "127.0.0.1:1"}, 1, "127.0.0.1:1"},
	} {
		if code, _, errs := runArchive(t, append([]string{"copy", url}, c.args...)...); code != c.code ||
			!strings.Contains(errs, c.says) {
			t.Errorf("%q: %d, %q", c.args, code, errs)
		}
	}
}
