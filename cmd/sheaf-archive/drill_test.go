package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/local/archivecli"
	"sheaf.dev/sheaf/internal/status/archiving"
	"sheaf.dev/sheaf/internal/test/archivetest"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// A drill proves the archive of a store that is in use, while it is archived, and the archiver and the command status
// tell of it. After one bit of the archive has changed, the next drill says so.
func TestADrillProvesTheArchiveOfAStore(t *testing.T) {
	s := startStore(t)
	folder, page := filepath.Join(t.TempDir(), "archive"), loopback.Free(t)
	url := "file://" + folder
	stop := archiveWith(t, s, url)
	put := func(id, data string) {
		t.Helper()
		if _, err := s.sheaf(data, "put", id, "-"); err != nil {
			t.Fatal(err)
		}
	}
	put("43", strings.Repeat("sheaf", 1<<19))
	// All groups are written to, so that all of them are archived up to a time behind the large record.
	for id := range 40 {
		put(fmt.Sprint(id), fmt.Sprintf("record %d", id))
	}
	for id := range 40 {
		s.await(nil, func() bool {
			code, _, _ := runArchive(t, "cat", url, fmt.Sprint(id))
			return code == 0
		})
	}
	scratch := filepath.Join(t.TempDir(), "scratch")
	drill := func(flags ...string) (code int, d archivecli.DrillJSON, errs string) {
		t.Helper()
		code, out, errs := runArchive(t, append([]string{"drill", url, "--server", s.server, "--tls-dir",
			filepath.Join(s.folder, "tls", "archive"), "--scratch", scratch, "-o", "json"}, flags...)...)
		if out != "" {
			if err := json.Unmarshal([]byte(out), &d); err != nil {
				t.Fatal(err)
			}
		}
		return code, d, errs
	}
	code, d, errs := drill()
	if code != 0 || d.Result != archiving.DrillProven || len(d.Groups) != 3 || d.Point == "" {
		t.Fatalf("%d, %+v, %s", code, d, errs)
	}
	if code, errs := stop(); code != 0 {
		t.Fatalf("stopped: %d, %s", code, errs)
	}
	code, out, _ := runArchive(t, "list", url, "-o", "json")
	var stores []archivecli.StoreRow
	if err := json.Unmarshal([]byte(out), &stores); err != nil || code != 0 {
		t.Fatalf("%d, %v", code, err)
	}
	put("7", "written since")
	if _, err := s.sheaf("", "rm", "8"); err != nil {
		t.Fatal(err)
	}
	code, d, errs = drill("--at", stores[0].Covered)
	compared, changed := int64(0), int64(0)
	for _, g := range d.Groups {
		compared, changed = compared+g.Compared, changed+g.Changed
	}
	if code != 0 || d.Records < 10 || compared == 0 || compared+changed != d.Records || changed > 2 {
		t.Errorf("%d, %+v, %s", code, d, errs)
	}
	if names, err := os.ReadDir(scratch); err != nil || len(names) != 1 {
		t.Errorf("the scratch folder has %v, %v", names, err)
	}
	archiveWith(t, s, url, "--http", page)
	s.await(nil, func() bool { return reportAt(t, page).Drill != nil })
	if is := reportAt(t, page).Drill; is.Result != archiving.DrillProven || is.Proven == nil || is.ProvenSeconds == nil ||
		is.Records != d.Records {
		t.Errorf("the archiver reports %+v", is)
	}
	_, metrics := get(t, page, "/metrics")
	if !strings.Contains(metrics, "\nsheaf_archive_drill_proven_timestamp_seconds ") ||
		!strings.Contains(metrics, "\nsheaf_archive_drill_differences 0") {
		t.Error("no series of drills")
	}

	err := filepath.WalkDir(folder, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !strings.Contains(name, "/blob/") || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		content[len(content)/2] ^= 1
		return os.WriteFile(name, content, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	code, d, errs = drill("--at", stores[0].Covered)
	if code != 1 || d.Result != archiving.DrillDiffers || !strings.Contains(errs, "the archive is not proven") {
		t.Errorf("one bit: %d, %+v, %s", code, d, errs)
	}
	if _, out, _ := runArchive(t, "status", url); !strings.Contains(out, "found 1 difference") {
		t.Errorf("status says %s", out)
	}
}

func TestADrillNeedsTheStore(t *testing.T) {
	url := archiveOfTests(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, 2, "--scratch: must name a folder"},
		{[]string{"--scratch", t.TempDir(), "--groups", "0"}, 2, "--groups 0"},
		{[]string{"--scratch", t.TempDir(), "--tls-dir", filepath.Join(t.TempDir(), "none")}, 2, "--tls-dir"},
		{[]string{"--scratch", t.TempDir(), "--store", newStore}, 1, "asking a gateway"},
		{[]string{"--scratch", t.TempDir(), "--store", archivetest.SampleStore.String()}, 1, "asking a gateway"},
	} {
		args := append([]string{"drill", url, "--server", loopback.Free(t), "--timeout", "30s"}, c.args...)
		if code, out, errs := runArchive(t, args...); code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("%q: %d, %q, %q; must say %q", c.args, code, out, errs, c.says)
		}
	}
}
