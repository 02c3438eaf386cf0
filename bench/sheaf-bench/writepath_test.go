package main

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"sheaf.dev/sheaf/bench"
	"sheaf.dev/sheaf/internal/test/must"
)

// The report of one round shows the stages of puts and of batches. The results mean nothing after such a short time,
// so the test does not check them.
func TestTheWritePathIsShown(t *testing.T) {
	t.Parallel()
	report, err := bench.WritePath(t.Context(), bench.WritePathOptions{
		Options: bench.Options{Dir: t.TempDir(), Rounds: 1, Say: t.Logf},
		Binary:  filepath.Join(filepath.Dir(benchBinary), "sheaf"), GoTool: "go", Time: time.Second,
		Groups: []int{2}, Sizes: []int{1000}, Callers: 4, Batch: 10,
	})
	must.OK(t, err)
	if len(report.Tables) != 5 {
		t.Fatalf("%d tables", len(report.Tables))
	}
	if len(report.Tables[0].Rows) != 2 {
		t.Errorf("%d kinds of writes", len(report.Tables[0].Rows))
	}
	// A profile of a second has few samples, so chance decides which stages are in the table of the processor's time. A
	// trace contains each time that a goroutine waited.
	if len(report.Tables[1].Rows) == 0 {
		t.Errorf("%s: no stage", report.Tables[1].Title)
	}
	for table, want := range map[int]string{2: "queue", 3: "sync"} {
		var shown []string
		for _, row := range report.Tables[table].Rows {
			shown = append(shown, row.Labels[0].Value)
		}
		if !slices.Contains(shown, want) {
			t.Errorf("%s: no %s among %q", report.Tables[table].Title, want, shown)
		}
	}
}

func TestWritePathRefusesOddFlags(t *testing.T) {
	for _, args := range [][]string{{"--rounds", "1"}, {"--time", "1500ms"}, {"--time", "0s"}, {"--groups", "0"},
		{"--callers", "-1"}, {"--batch", "0"}, {"--sizes", "0"}} {
		measure(t, append([]string{"write-path"}, args...)...).Want(t, 2)
	}
}
