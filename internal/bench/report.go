// Package bench measures Sheaf against the limits of the machine it runs on, side by side in one run: `sheaf-bench`.
// Variants take turns, in an order that rotates from round to round, and medians are compared, so that a slow minute of
// the machine hits all of them.
package bench

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sheaf.dev/sheaf/internal/bench/result"
)

// RoundsMin is the least number of rounds that a median is taken from.
const RoundsMin = 5

// Row is one comparison: ours against a limit of the machine.
type Row struct {
	Name   string  `json:"name"`
	Ours   float64 `json:"ours"`
	Limit  float64 `json:"limit,omitempty"` // 0: compared with Target itself
	Unit   string  `json:"unit"`
	Ratio  float64 `json:"ratio,omitempty"` // Ours / Limit
	Target float64 `json:"target,omitempty"`
	// AtMost: Ratio (or Ours, without a Limit) should not exceed Target; else it should reach it.
	AtMost bool    `json:"at_most,omitempty"`
	Met    bool    `json:"met"`
	Spread float64 `json:"spread"` // of Ours: (largest - smallest) / median
	Rounds int     `json:"rounds"`
	Note   string  `json:"note,omitempty"`

	ours, limit []float64 // of the rounds
}

// Machine says where something was measured.
type Machine = result.Machine

func thisMachine(dir string) Machine { return result.ThisMachine(dir) }

// Report is the outcome of a benchmark.
type Report struct {
	Machine Machine `json:"machine"`
	Began   string  `json:"began"`
	Seconds float64 `json:"seconds"`
	Rows    []Row   `json:"rows"`
}

// Result is the report in the form that all benchmarks have.
func (r *Report) Result(kind, version string) *result.Report {
	began, err := time.Parse(time.RFC3339, r.Began)
	if err != nil { // a report that was not begun
		began = time.Now().UTC()
	}
	ratios := make([]result.Ratio, 0, len(r.Rows))
	seen := map[string]int{}
	for i := range r.Rows {
		row := &r.Rows[i]
		name := row.Name
		if seen[name]++; seen[name] > 1 {
			name = fmt.Sprintf("%s (%d)", name, seen[name])
		}
		ratio := result.Ratio{Labels: result.Labels("what", name), Unit: row.Unit, Ours: row.ours, Limit: row.limit, Target: row.Target, AtMost: row.AtMost, Note: row.Note}
		if len(ratio.Ours) == 0 {
			ratio.Ours = []float64{row.Ours}
			if row.Limit != 0 {
				ratio.Limit = []float64{row.Limit}
			}
		}
		ratios = append(ratios, ratio)
	}
	machine := r.Machine
	machine.Dir = filepath.Dir(machine.Dir) // the folder itself has another name in each run, and is gone
	return &result.Report{
		Schema: result.Schema, Kind: kind, Started: began, Ended: began.Add(time.Duration(r.Seconds * float64(time.Second))), Version: version, Machine: machine,
		Tables: []result.Table{result.Ratios(kind, "Ours against the limits of this machine", "Each row is a ratio of medians of this run; the range beside it is that of the single rounds.", ratios)},
	}
}

// against makes a row that compares the medians of two series of rates (more is better).
func against(name, unit string, ours, limit []float64, target float64) Row {
	r := Row{Name: name, Unit: unit, Ours: median(ours), Limit: median(limit), Target: target, Spread: spread(ours), Rounds: len(ours), ours: ours, limit: limit}
	if r.Limit > 0 {
		r.Ratio = r.Ours / r.Limit
	}
	r.Met = target == 0 || r.Ratio >= target
	return r
}

// atMost makes a row whose ratio ours / limit should not exceed the target; 0: no target.
func atMost(name, unit string, ours, limit []float64, target float64) Row {
	r := against(name, unit, ours, limit, 0)
	r.Target, r.AtMost = target, true
	r.Met = target == 0 || r.Ratio <= target
	return r
}

// plain makes a row of one figure that should not exceed the target; 0: no target.
func plain(name, unit string, ours []float64, target float64) Row {
	r := Row{Name: name, Unit: unit, Ours: median(ours), Target: target, AtMost: true, Spread: spread(ours), Rounds: len(ours), ours: ours}
	r.Met = target == 0 || r.Ours <= target
	return r
}

func (r Row) note(note string) Row {
	r.Note = note
	return r
}

// String writes the row as a line: what, ours, the limit, the ratio beside its target.
func (r Row) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-58s %12s", r.Name, words(r.Ours, r.Unit))
	if r.Limit > 0 {
		fmt.Fprintf(&b, "  limit %12s  ratio %5.2f", words(r.Limit, r.Unit), r.Ratio)
	}
	if r.Target > 0 {
		sign, verdict := ">=", "met"
		if r.AtMost {
			sign = "<="
		}
		if !r.Met {
			verdict = "MISSED"
		}
		fmt.Fprintf(&b, "  target %s %s: %s", sign, words(r.Target, r.targetUnit()), verdict)
	}
	fmt.Fprintf(&b, "  (%d rounds, spread %.0f%%)", r.Rounds, 100*r.Spread)
	if r.Note != "" {
		b.WriteString("\n    " + r.Note)
	}
	return b.String()
}

func (r Row) targetUnit() string {
	if r.Limit > 0 {
		return ""
	}
	return r.Unit
}

func words(v float64, unit string) string {
	switch unit {
	case "B/s":
		return fmt.Sprintf("%.0f MB/s", v/1e6)
	case "/s":
		return fmt.Sprintf("%.0f/s", v)
	case "s":
		return fmt.Sprintf("%.3f s", v)
	case "B":
		return fmt.Sprintf("%.1f B", v)
	case "ns":
		return fmt.Sprintf("%.0f ns", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

func spread(v []float64) float64 {
	m := median(v)
	if m == 0 {
		return 0
	}
	return (slices.Max(v) - slices.Min(v)) / m
}

// figure measures once.
type figure func() (float64, error)

// variant is one thing that takes its turn in every round and gives one figure.
type variant struct {
	name string
	run  figure
}

// takeTurns runs every variant once per round, each round beginning with another one, and gives the figures of each.
func takeTurns(rounds int, say func(string, ...any), variants ...variant) (map[string][]float64, error) {
	figures := make(map[string][]float64, len(variants))
	for round := range rounds {
		for i := range variants {
			v := variants[(i+round)%len(variants)]
			f, err := v.run()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", v.name, err)
			}
			figures[v.name] = append(figures[v.name], f)
		}
		say("  round %d of %d", round+1, rounds)
	}
	return figures, nil
}

// timed gives units per second of a run that handles so many of them.
func timed(units float64, run func() error) (float64, error) {
	begin := time.Now()
	err := run()
	return units / time.Since(begin).Seconds(), err
}
