// Package rounds alternates between measurements that are compared with each other. Every cell is measured once in
// each round, and the order of the cells changes from round to round. A slow minute of the machine therefore affects
// all cells alike. The results are stored during the run, so that another run can resume it. At the end, they become
// the rows of a report.
package rounds

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"sheaf.dev/sheaf/bench/result"
)

// Cell is a measurement that is performed once a round.
type Cell struct {
	Key  string // unique name, under which the results are stored
	Part string // cells with the same value form a part; all rounds of a part are finished before the next part begins
	// Against has the same value in all cells that are compared with each other. Such cells must be neighbours, and they
	// take turns.
	Against string
	Seconds float64 // expected duration of one round
	Run     func(ctx context.Context, f *Figures) error
	// Finding reports whether an error is itself a result that the report should show. The run then continues without
	// this cell. If Finding is nil, every error aborts the run.
	Finding func(error) bool
}

// Rate is the name of the metric in a cell that has only one metric.
const Rate = "rate"

// One returns a cell that has a single metric, with the key Rate.
func One(key string, run func() (float64, error)) Cell {
	return Cell{Key: key, Run: func(_ context.Context, f *Figures) error {
		v, err := run()
		f.Set(Rate, v)
		return err
	}}
}

// Figures are the results of one measurement.
type Figures struct {
	order  []string
	Values map[string]float64
	Series map[string][][2]float64
	Text   map[string]string
}

// NewFigures returns Figures without any result.
func NewFigures() *Figures {
	return &Figures{Values: map[string]float64{}, Series: map[string][][2]float64{}, Text: map[string]string{}}
}

// Set stores the value of a metric.
func (f *Figures) Set(key string, value float64) {
	if _, ok := f.Values[key]; !ok {
		f.order = append(f.order, key)
	}
	f.Values[key] = value
}

// Words returns the results as text, in the order in which they were set. The columns determine their titles and
// units.
func (f *Figures) Words(columns []result.Column) string {
	parts := make([]string, 0, len(f.order)+len(f.Text))
	for _, key := range f.order {
		c := result.FindColumn(columns, key)
		parts = append(parts, c.Title+" "+result.Format(f.Values[key], c.Unit))
	}
	for _, text := range f.Text {
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// Options are the options of Measure.
type Options struct {
	Rounds  int
	Round   func(n int)     // called after each round with the number of the round, which begins at 1; may be nil
	Each    func(Progress)  // called at the start and at the end of each measurement; may be nil
	Columns []result.Column // used to format Progress.Figures
}

// Progress is the progress of a run.
type Progress struct {
	Key         string // key of the cell whose measurement begins or has ended
	Ended       bool
	Figures     string        // the results, if the cell has finished
	Round       int           // number of the round, counted from 1
	Took        time.Duration // duration of the measurement; 0 until it has ended
	Done, Total int           // numbers of measurements that have ended, and of all measurements
	Part        float64       // completed fraction of the run, from 0 to 1, computed from the expected durations
	Left        time.Duration // expected time until the run is complete
}

// Work is the progress of a run, counted in measurements and in expected seconds.
type Work struct {
	Done, Total   int     // numbers of measurements that have ended, and of all measurements
	Settled, Left float64 // expected seconds of the measurements that have ended, and of the remaining ones
}

// Work returns the progress of a run with the given cells.
func (s *Set) Work(cells []Cell, rounds int) (w Work) {
	for i := range cells {
		c := &cells[i]
		done := min(rounds, s.rounds(c.Key))
		w.Done += done
		w.Total += rounds
		w.Settled += c.Seconds * float64(done)
		w.Left += c.Seconds * float64(rounds-done)
	}
	return w
}

// measureOrder returns the order in which a part's cells are measured in a round. Cells that are compared take turns at
// being the first.
func measureOrder(cells []Cell, round int) []*Cell {
	out := make([]*Cell, 0, len(cells))
	for first, last := 0, 0; first < len(cells); first = last {
		for last < len(cells) && cells[last].Against == cells[first].Against {
			last++
		}
		for i := range last - first {
			out = append(out, &cells[first+(i+round)%(last-first)])
		}
	}
	return out
}

// Measure performs the measurements that have no result yet. If a measurement ends with a finding, its cell is not
// measured again.
func (s *Set) Measure(ctx context.Context, cells []Cell, opts Options) error {
	m := &measuring{Set: s, opts: opts, work: s.Work(cells, opts.Rounds), began: time.Now()}
	m.reused = m.work.Settled
	for first, last := 0, 0; first < len(cells); first = last {
		for last < len(cells) && cells[last].Part == cells[first].Part {
			last++
		}
		for round := range opts.Rounds {
			for _, c := range measureOrder(cells[first:last], round) {
				if s.rounds(c.Key) > round {
					continue
				}
				if err := m.measure(ctx, c, round+1); err != nil {
					return fmt.Errorf("%s: %w", c.Key, err)
				}
			}
			if opts.Round != nil {
				opts.Round(round + 1)
			}
		}
	}
	return nil
}

// measuring is a call of Measure in progress.
type measuring struct {
	*Set
	opts   Options
	work   Work
	reused float64 // expected seconds of the measurements that an earlier run had completed
	began  time.Time
}

func (m *measuring) measure(ctx context.Context, c *Cell, round int) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if m.Missing(c.Key) == "" {
		m.report(Progress{Key: c.Key, Round: round})
		begin, f := time.Now(), NewFigures()
		err := c.Run(ctx, f)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			m.keep(c.Key).add(f)
		case c.Finding != nil && c.Finding(err):
			m.Miss(c.Key, err.Error())
			f = NewFigures()
		default:
			return err
		}
		ended := Progress{Key: c.Key, Ended: true, Round: round, Took: time.Since(begin), Figures: f.Words(m.opts.Columns)}
		defer func() { m.report(ended) }()
	}
	m.keep(c.Key).Rounds++
	m.work.Done++
	m.work.Settled += c.Seconds
	m.work.Left -= c.Seconds
	return m.save()
}

// report passes the progress to Options.Each.
func (m *measuring) report(p Progress) {
	if m.opts.Each == nil {
		return
	}
	p.Done, p.Total = m.work.Done, m.work.Total
	left := m.work.Left
	if all := m.work.Settled + left; all > 0 {
		p.Part = m.work.Settled / all
	}
	if fresh := m.work.Settled - m.reused; fresh > 0 {
		left *= time.Since(m.began).Seconds() / fresh // the estimate is corrected by the speed of this machine so far
	}
	p.Left = time.Duration(left * float64(time.Second))
	m.opts.Each(p)
}

func (k *Kept) add(f *Figures) {
	if k.Values == nil {
		k.Values, k.Series, k.Text = map[string][]float64{}, map[string][][][2]float64{}, map[string]string{}
	}
	for key, v := range f.Values {
		k.Values[key] = append(k.Values[key], v)
	}
	for key, points := range f.Series {
		k.Series[key] = append(k.Series[key], points)
	}
	maps.Copy(k.Text, f.Text)
}
