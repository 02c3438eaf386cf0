package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/bench/result"
)

// benchReport is what bench prints with -o json: the rows of its table.
type benchReport struct {
	Machine result.Machine
	Rows    []benchRow
}

type benchRow struct {
	Name   string
	Ours   float64
	Target float64
	Rounds int
}

func (b *benchReport) UnmarshalJSON(text []byte) error {
	r, err := result.ReadJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	b.Machine = r.Machine
	for _, row := range r.Tables[0].Rows {
		ours := row.Cells["ours"]
		b.Rows = append(b.Rows, benchRow{Name: row.Name(), Ours: ours.Median, Target: row.Cells["target"].Median, Rounds: ours.Rounds})
	}
	return nil
}

// The benchmarks run to their end at tiny sizes. What they measure then means nothing, so no figure is judged.
func TestBenchmarksRun(t *testing.T) {
	tmp, out := t.TempDir(), t.TempDir()
	for _, args := range [][]string{
		{"rpc", "--time", "5ms", "--records", "300", "--sizes", "100", "--callers", "2,64"},
		{"load", "--large", "3MiB", "--small", "1MiB", "--records", "120000", "--put-time", "10ms", "--start", "2MiB", "--fs", ""},
	} {
		var r benchReport
		folder := filepath.Join(out, args[0])
		measure(t, append([]string{"-o", "json", "--dir", tmp, "--out", folder}, args...)...).Want(t, 0).JSON(t, &r)
		if page, err := os.Stat(filepath.Join(folder, "report.html")); err != nil || page.Size() == 0 {
			t.Errorf("%s: no page: %v", args[0], err)
		}
		if written, err := result.ReadFile(filepath.Join(folder, "report.json")); err != nil || written.Kind != args[0] {
			t.Errorf("%s: %v: %+v", args[0], err, written)
		}
		if r.Machine.CPUs == 0 || len(r.Rows) < 10 {
			t.Fatalf("%s: %+v", args[0], r)
		}
		targets := 0
		for _, row := range r.Rows {
			// Without the start is a difference of two times, either of which may be the longer one at such sizes.
			difference := strings.Contains(row.Name, "without the start")
			if row.Ours == 0 || row.Ours < 0 && !difference || row.Rounds < 5 {
				t.Errorf("%s: nothing was measured: %+v", args[0], row)
			}
			if row.Target > 0 {
				targets++
			}
		}
		if targets < 5 {
			t.Errorf("%s: %d rows name a target", args[0], targets)
		}
	}
	if names, err := os.ReadDir(tmp); err != nil || len(names) != 0 {
		t.Errorf("left behind: %v %v", names, err)
	}
	measure(t, "rpc", "--compare", filepath.Join(tmp, "none")).Want(t, 1)
	for _, args := range [][]string{{"rpc", "--rounds", "1"}, {"rpc", "--sizes", "0"}, {"load", "--only", "nonsense"}, {"load", "--records", "-1"}, {"load", "--large", "0"}} {
		measure(t, args...).Want(t, 2)
	}
}
