package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// benchReport is the output of a benchmark with -o json, which contains the rows of its table.
type benchReport struct {
	Machine result.Machine
	Rows    []benchRow
}

type benchRow struct {
	Name    string
	Missing string // why nothing was measured
	Ours    float64
	Target  float64
	Rounds  int
}

func (b *benchReport) UnmarshalJSON(text []byte) error {
	r, err := result.ReadJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	b.Machine = r.Machine
	for _, row := range r.Tables[0].Rows {
		ours := row.Cells["ours"]
		b.Rows = append(b.Rows, benchRow{Name: row.Name(), Missing: row.Missing, Ours: ours.Median,
			Target: row.Cells["target"].Median, Rounds: ours.Rounds})
	}
	return nil
}

// smallLoad is a command line that runs the load benchmark with tiny datasets.
var smallLoad = []string{"load", "--large", "3MiB", "--small", "1MiB", "--records", "120000", "--put-time", "10ms",
	"--start", "2MiB", "--fs", ""}

// The benchmarks run to their end with tiny datasets. The results mean nothing, so the test does not check them.
func TestBenchmarksRun(t *testing.T) {
	t.Parallel()
	checkRun(t, 10, 5, "rpc", "--time", "5ms", "--records", "300", "--sizes", "100", "--callers", "2,64")
	for _, part := range []string{"load", "index", "put", "group"} {
		checkRun(t, 1, 0, append(smallLoad, "--only", part)...)
	}
	measure(t, "rpc", "--compare", filepath.Join(t.TempDir(), "none")).Want(t, 1)
	for _, args := range [][]string{{"rpc", "--rounds", "1"}, {"rpc", "--sizes", "0"}, {"load", "--only", "nonsense"},
		{"load", "--records", "-1"}, {"load", "--large", "0"}} {
		measure(t, args...).Want(t, 2)
	}
}

// All parts of the load benchmark run one after another. They include the parts that start processes with an empty
// page cache.
func TestTheLoadBenchmarkRunsWhole(t *testing.T) {
	soaktest.Only(t, "proc", "its starts drop the page cache of the whole machine")
	checkRun(t, 10, 5, smallLoad...)
}

// checkRun runs a benchmark. It checks that the benchmark writes a page with at least the given numbers of rows and of
// targets, and that no files are left behind.
func checkRun(t *testing.T, rows, targets int, args ...string) {
	t.Helper()
	var r benchReport
	tmp, folder := t.TempDir(), filepath.Join(t.TempDir(), "out")
	measure(t, append([]string{"-o", "json", "--dir", tmp, "--out", folder}, args...)...).Want(t, 0).JSON(t, &r)
	if page, err := os.Stat(filepath.Join(folder, "report.html")); err != nil || page.Size() == 0 {
		t.Errorf("%q: no page: %v", args, err)
	}
	if written, err := result.ReadFile(filepath.Join(folder, "report.json")); err != nil || written.Kind != args[0] {
		t.Errorf("%q: %v: %+v", args, err, written)
	}
	if r.Machine.CPUs == 0 || len(r.Rows) < rows {
		t.Fatalf("%q: %+v", args, r)
	}
	for _, row := range r.Rows {
		// The metric "without the start" is the difference of two times. With datasets this small it can be negative,
		// because either time may be the longer one.
		difference := strings.Contains(row.Name, "without the start")
		if row.Ours == 0 || row.Ours < 0 && !difference || row.Rounds < 5 {
			t.Errorf("%q: nothing was measured: %+v", args, row)
		}
		if row.Target > 0 {
			targets--
		}
	}
	if targets > 0 {
		t.Errorf("%q: %d rows fewer than expected name a target", args, targets)
	}
	if names, err := os.ReadDir(tmp); err != nil || len(names) != 0 {
		t.Errorf("%q left behind: %v %v", args, names, err)
	}
}
