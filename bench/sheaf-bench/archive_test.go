package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Every part of the benchmark runs to its end with a tiny store and an archive in a folder, using real processes. The
// results mean nothing, so the test does not check them.
func TestArchivesAreMeasured(t *testing.T) {
	for _, args := range [][]string{{"--rounds", "1"}, {"--only", "nonsense"}, {"--bytes", "1"}, {"--groups", "0"},
		{"--record-bytes", "0"}, {"--record-bytes", "2MiB"}, {"--time", "-1s"}, {"--day-records", "3"}} {
		measure(t, append([]string{"archive"}, args...)...).Want(t, 2)
	}
	measure(t, "archive", "--versitygw", "/nowhere", "--sheaf-archive", benchBinary).Want(t, 1)
	measure(t, "archive", "--sheaf-archive", "/nowhere").Want(t, 1)
	if _, err := os.Stat(filepath.Join(filepath.Dir(benchBinary), "sheaf-archive")); err != nil {
		t.Skip("sheaf-archive is a module of its own, which make build builds, and make test does not")
	}
	tmp := t.TempDir()
	var r benchReport
	measure(t, "-o", "json", "archive", "--dir", tmp, "--folder", "--bytes", "1MiB", "--record-bytes", "1KiB", "--groups",
		"2", "--time", "20ms", "--day-records", "3700").Want(t, 0).JSON(t, &r)
	if len(r.Rows) != 9 {
		t.Errorf("%d rows, 9 are expected: %+v", len(r.Rows), r.Rows)
	}
	for _, row := range r.Rows {
		if row.Ours <= 0 || row.Rounds < 5 {
			t.Errorf("nothing was measured: %+v", row)
		}
	}
	if names, err := os.ReadDir(tmp); err != nil || len(names) != 0 {
		t.Errorf("left behind: %v %v", names, err)
	}
}
