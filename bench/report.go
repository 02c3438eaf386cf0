// Package bench contains the benchmarks of `sheaf-bench`. They measure Sheaf and the limits of the machine in the
// same run. Measurements that are compared with each other take turns (package rounds), so that a slow minute of the
// machine affects all of them alike. The report compares their medians.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
)

// RoundsMin is the minimum number of rounds for a median.
const RoundsMin = 5

// Options are the options that all benchmarks have.
type Options struct {
	Dir    string // parent of the temporary folder
	Rounds int    // number of rounds, at least RoundsMin
	Only   string // name of the only part to run; empty runs all parts
	Say    func(string, ...any)
}

// parts are the named parts of a benchmark, in order.
type parts[B any] []struct {
	name string
	run  func(*B, context.Context) error
}

func (p parts[B]) names() []string {
	names := make([]string, 0, len(p))
	for _, one := range p {
		names = append(names, one.name)
	}
	return names
}

// outcome holds a benchmark's results so far.
type outcome struct {
	Options
	dir  string // temporary folder
	rows []result.Ratio
	// close ends what the parts have left running in the temporary folder, before it is removed. It may be nil.
	close func()
}

func (o *outcome) add(rows ...result.Ratio) { o.rows = append(o.rows, rows...) }

// table creates a table from the rows. Each row has a unique name.
func (o *outcome) table(kind string) result.Table {
	seen := map[string]int{}
	for _, row := range o.rows {
		name := row.Labels[0].Value
		if seen[name]++; seen[name] > 1 {
			row.Labels[0].Value = fmt.Sprintf("%s (%d)", name, seen[name])
		}
	}
	about := fmt.Sprintf("Each row is a ratio of medians of %d rounds of this run; "+
		"the range beside it is that of the single rounds.", o.Rounds)
	return result.Ratios(kind, "Ours against the limits of this machine", about, o.rows)
}

// measure runs all parts of a benchmark, or only the part that o.Only names. It creates a temporary folder, whose
// path the parts find in o.dir, and removes the folder at the end. The parts add their rows to o.rows. If a part
// fails, measure returns the error together with a report that has the rows so far.
func (p parts[B]) measure(ctx context.Context, b *B, o *outcome, kind string) (report *result.Report, err error) {
	report = &result.Report{Schema: result.Schema, Kind: kind, Started: time.Now()}
	report.Machine = result.ThisMachine(cmp.Or(o.Dir, os.TempDir()))
	defer func() {
		report.Ended, report.Tables = time.Now(), []result.Table{o.table(kind)}
		if o.close != nil {
			o.close()
		}
		err = errors.Join(err, os.RemoveAll(o.dir))
	}()
	if o.dir, err = os.MkdirTemp(o.Dir, "sheaf-bench-"); err != nil {
		return report, fmt.Errorf("making a temporary folder: %w", err)
	}
	for _, one := range p {
		if o.Only != "" && o.Only != one.name {
			continue
		}
		o.Say("%s", one.name)
		if err := one.run(b, ctx); err != nil {
			return report, fmt.Errorf("%s: %w", one.name, err)
		}
	}
	return report, nil
}

// turnResults holds the results of cells that took turns.
type turnResults struct{ *rounds.Set }

// takeTurns measures the cells in all rounds.
func (o *outcome) takeTurns(ctx context.Context, cells ...rounds.Cell) (turnResults, error) {
	s := rounds.New()
	return turnResults{s}, s.Measure(ctx, cells, rounds.Options{
		Rounds: o.Rounds, Round: func(n int) { o.Say("  round %d of %d", n, o.Rounds) },
	})
}

// timedCell creates a cell that computes units per second. One call of run() handles the given number of units.
func timedCell(key string, units float64, run func() error) rounds.Cell {
	return rounds.One(key, func() (float64, error) { return perSecond(units, run) })
}

func perSecond(units float64, run func() error) (float64, error) {
	begin := time.Now()
	err := run()
	return units / time.Since(begin).Seconds(), err
}

// against creates a row that compares the rates of two cells. A higher rate is better. If target is 0, the row has no
// target.
func (t turnResults) against(name, unit, ours, limit string, target float64) result.Ratio {
	return against(name, unit, t.Rate(ours), t.Rate(limit), target)
}

// atMost creates a row that compares one metric of two cells. The ratio ours / limit should not exceed the target. If
// target is 0, the row has no target.
func (t turnResults) atMost(name, unit, figure, ours, limit string, target float64) result.Ratio {
	return atMost(name, unit, t.Of(ours, figure), t.Of(limit, figure), target)
}

// against creates a row that compares the medians of two series of rates. A higher rate is better. If target is 0,
// the row has no target.
func against(name, unit string, ours, limit []float64, target float64) result.Ratio {
	return result.Ratio{Labels: result.Labels("what", name), Unit: unit, Ours: ours, Limit: limit, Target: target}
}

// atMost creates a row whose ratio ours / limit should not exceed the target. If target is 0, the row has no target.
func atMost(name, unit string, ours, limit []float64, target float64) result.Ratio {
	r := against(name, unit, ours, limit, target)
	r.AtMost = true
	return r
}

// plain creates a row with one metric, which should not exceed the target. If target is 0, the row has no target.
func plain(name, unit string, ours []float64, target float64) result.Ratio {
	return atMost(name, unit, ours, nil, target)
}

func median(v []float64) float64 { return result.Of(v...).Median }
