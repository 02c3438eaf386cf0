package rounds

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/internal/test/must"
)

// countingCells creates cells named "a1", "a2", "b1" and so on. Cells with the same letter are compared. A cell's
// result is the number of times that it was measured.
func countingCells(order *[]string, keys ...string) []Cell {
	var cells []Cell
	for _, key := range keys {
		n := 0.0
		c := One(key, func() (float64, error) {
			*order = append(*order, key)
			n++
			return n, nil
		})
		c.Against, c.Seconds = key[:1], 1
		cells = append(cells, c)
	}
	return cells
}

// Cells that are compared are measured one directly after another. Each round begins with a different one of these
// cells, and a part ends before the next part begins.
func TestTurns(t *testing.T) {
	var order []string
	cells := countingCells(&order, "a1", "a2", "a3", "b1", "b2", "c1")
	cells[5].Part = "last"
	var ended []int
	must.OK(t, New().Measure(t.Context(), cells, Options{Rounds: 2, Round: func(n int) { ended = append(ended, n) }}))
	want := "a1 a2 a3 b1 b2 a2 a3 a1 b2 b1 c1 c1"
	if got := strings.Join(order, " "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if !slices.Equal(ended, []int{1, 2, 1, 2}) {
		t.Errorf("rounds %v", ended)
	}
}

// An interrupted run leaves its results. The next run continues from them and repeats nothing.
func TestInterruptAndResume(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	open := func(settings string, resume bool) (*Set, error) {
		return Open(file, "schema", settings, resume, t.Logf)
	}
	s, err := open("quick", true) // nothing is stored yet, so there is nothing to resume
	must.OK(t, err)
	var order []string
	cells := countingCells(&order, "a1", "a2", "b1", "b2")
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	var half Progress
	err = s.Measure(ctx, cells, Options{Rounds: 2, Each: func(p Progress) {
		if p.Done == 3 && !p.Ended {
			half = p
			cancel(stop)
		}
	}})
	if !errors.Is(err, stop) || len(s.Cells) != 3 || len(order) != 4 {
		t.Fatalf("%v; kept %v, measured %v", err, s.Cells, order)
	}
	if half.Key != "b2" || half.Total != 8 || half.Round != 1 || half.Part != 3.0/8 || half.Left <= 0 {
		t.Errorf("progress %+v", half)
	}
	if _, err := open("full", true); err == nil || !strings.Contains(err.Error(), "other settings") {
		t.Errorf("figures of other settings are taken: %v", err)
	}
	s, err = open("quick", true)
	must.OK(t, err)
	if w := s.Work(cells, 2); w != (Work{Done: 3, Total: 8, Settled: 3, Left: 5}) {
		t.Errorf("%+v", w)
	}
	order = nil
	must.OK(t, s.Measure(t.Context(), cells, Options{Rounds: 2}))
	if got := strings.Join(order, " "); got != "b2 a2 a1 b2 b1" {
		t.Errorf("measured were %s", got)
	}
	for _, c := range cells {
		if v := s.Rate(c.Key); len(v) != 2 {
			t.Errorf("%s: %v", c.Key, v)
		}
	}
	s, err = open("quick", false)
	if err != nil || len(s.Cells) != 0 {
		t.Errorf("a run that does not go on begins with %v, %v", s, err)
	}
	must.OK(t, os.WriteFile(file, []byte("{"), 0o600))
	if _, err := open("quick", true); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a torn file of figures is taken: %v", err)
	}
}

// A finding is stored in place of a cell's results, and that cell is not measured again. Any other error aborts the
// run.
func TestFindings(t *testing.T) {
	full, broken := errors.New("no space left"), errors.New("broken")
	tried := 0
	fails := Cell{Key: "fails", Finding: func(err error) bool { return errors.Is(err, full) }}
	fails.Run = func(context.Context, *Figures) error {
		tried++
		return full
	}
	s := New()
	s.Miss("gone", "it is not there")
	var order, ended []string
	cells := append(countingCells(&order, "gone", "here"), fails)
	must.OK(t, s.Measure(t.Context(), cells, Options{Rounds: 3, Each: func(p Progress) {
		if p.Ended {
			ended = append(ended, fmt.Sprint(p.Key, p.Round, p.Figures))
		}
	}}))
	if tried != 1 || s.Missing("fails") != full.Error() || s.Rate("fails") != nil || len(order) != 3 {
		t.Errorf("tried %d times: %q, %v; measured were %v", tried, s.Missing("fails"), s.Rate("fails"), order)
	}
	if len(ended) != 4 || ended[0] != "here1rate 1.00" {
		t.Errorf("told was %q", ended)
	}
	if w := s.Work(cells, 3); w.Done != 9 {
		t.Errorf("%+v", w)
	}
	row := s.Row("fails", result.Labels("what", "fails"))
	if row.Missing != full.Error() || len(row.Cells) != 0 || s.Row("here", nil).Cells[Rate] != result.Of(1, 2, 3) {
		t.Errorf("rows %+v, %+v", row, s.Row("here", nil))
	}
	fails.Run = func(context.Context, *Figures) error { return broken }
	if err := New().Measure(t.Context(), []Cell{fails}, Options{Rounds: 1}); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

func TestBest(t *testing.T) {
	s := New()
	for key, v := range map[string][]float64{"slow": {1, 2, 9}, "quick": {3, 3, 3}, "empty": nil, "gone": {100}} {
		s.Cells[key] = &Kept{Values: map[string][]float64{"rate": v}}
	}
	s.Miss("gone", "it broke")
	keys := []string{"gone", "empty", "slow", "quick", "none"}
	for less, want := range map[bool]int{true: 2, false: 3} {
		if at, v := s.Best(keys, "rate", less); at != want || len(v) != 3 {
			t.Errorf("less %v: %d, %v", less, at, v)
		}
	}
	if at, v := s.Best(keys, "size", true); at != -1 || v != nil {
		t.Errorf("of a figure that nobody gave: %d, %v", at, v)
	}
}
