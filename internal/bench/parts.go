package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
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

// measure runs all parts, or only one, in a temporary folder that it makes in another one, and removes: dir is set to
// it, and rows are what the parts have measured. An error comes with what there was until then.
func (p parts[B]) measure(
	ctx context.Context, b *B, dir *string, rows *[]Row, in, only string, say func(string, ...any),
) (report Report, err error) {
	begin := time.Now()
	report = Report{Began: begin.UTC().Format(time.RFC3339)}
	if *dir, err = os.MkdirTemp(in, "sheaf-bench-"); err != nil {
		return report, fmt.Errorf("making a temporary folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(*dir)) }()
	report.Machine = thisMachine(*dir)
	for _, one := range p {
		if only != "" && only != one.name {
			continue
		}
		say("%s", one.name)
		err = one.run(b, ctx)
		report.Rows = *rows
		if err != nil {
			return report, fmt.Errorf("%s: %w", one.name, err)
		}
	}
	report.Seconds = time.Since(begin).Seconds()
	return report, nil
}
