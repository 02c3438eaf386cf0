package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"sheaf.dev/sheaf/bench/result"
)

// parts are those of a benchmark, in order.
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

// outcome is what a benchmark has measured so far.
type outcome struct {
	dir  string // temporary
	rows []result.Ratio
}

func (o *outcome) add(rows ...result.Ratio) { o.rows = append(o.rows, rows...) }

// table of the rows, each with a name of its own.
func (o *outcome) table(kind string, rounds int) result.Table {
	seen := map[string]int{}
	for _, row := range o.rows {
		name := row.Labels[0].Value
		if seen[name]++; seen[name] > 1 {
			row.Labels[0].Value = fmt.Sprintf("%s (%d)", name, seen[name])
		}
	}
	about := fmt.Sprintf("Each row is a ratio of medians of %d rounds of this run; the range beside it is that of the single rounds.", rounds)
	return result.Ratios(kind, "Ours against the limits of this machine", about, o.rows)
}

// measure runs all parts, or only one, in a temporary folder that it makes in another one, and removes: o.dir is set to
// it, and o.rows are what the parts have measured. An error comes with what there was until then.
func (p parts[B]) measure(
	ctx context.Context, b *B, o *outcome, kind string, rounds int, in, only string, say func(string, ...any),
) (report *result.Report, err error) {
	report = &result.Report{Schema: result.Schema, Kind: kind, Started: time.Now(), Machine: result.ThisMachine(cmp.Or(in, os.TempDir()))}
	defer func() {
		report.Ended, report.Tables = time.Now(), []result.Table{o.table(kind, rounds)}
		err = errors.Join(err, os.RemoveAll(o.dir))
	}()
	if o.dir, err = os.MkdirTemp(in, "sheaf-bench-"); err != nil {
		return report, fmt.Errorf("making a temporary folder: %w", err)
	}
	for _, one := range p {
		if only != "" && only != one.name {
			continue
		}
		say("%s", one.name)
		if err := one.run(b, ctx); err != nil {
			return report, fmt.Errorf("%s: %w", one.name, err)
		}
	}
	return report, nil
}
