package alerts

import (
	"context"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// memory holds a few series, which the engine queries.
type memory struct{ series []storage.Series }

// add adds a series in promtool's notation, such as `up{job="a"}` with the values `1x10 0x5 _x3`. Successive samples
// are one minute apart.
func (m *memory) add(series, values string) error {
	lset, sequence, err := promQL.ParseSeriesDesc(series + " " + values)
	if err != nil {
		return err
	}
	var samples []chunks.Sample
	for n, v := range sequence {
		if !v.Omitted {
			samples = append(samples, point{t: (time.Duration(n) * interval).Milliseconds(), v: v.Value})
		}
	}
	m.series = append(m.series, storage.NewListSeries(lset, samples))
	return nil
}

// Querier implements storage.Queryable.
func (m memory) Querier(int64, int64) (storage.Querier, error) { return m, nil }

// Select implements storage.Querier.
func (m memory) Select(_ context.Context, _ bool, _ *storage.SelectHints,
	matchers ...*labels.Matcher) storage.SeriesSet {
	set := &seriesSet{at: -1}
	for _, s := range m.series {
		all := true
		for _, matcher := range matchers {
			all = all && matcher.Matches(s.Labels().Get(matcher.Name))
		}
		if all {
			set.list = append(set.list, s)
		}
	}
	return set
}

// LabelValues implements storage.Querier. The engine does not call it.
func (memory) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string,
	annotations.Annotations, error) {
	return nil, nil, nil
}

// LabelNames implements storage.Querier. The engine does not call it.
func (memory) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations,
	error) {
	return nil, nil, nil
}

// Close implements storage.Querier.
func (memory) Close() error { return nil }

// seriesSet implements storage.SeriesSet over a list.
type seriesSet struct {
	list []storage.Series
	at   int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.list) }
func (s *seriesSet) At() storage.Series                { return s.list[s.at] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// point implements chunks.Sample.
type point struct {
	t int64
	v float64
}

func (p point) T() int64                      { return p.t }
func (p point) ST() int64                     { return 0 }
func (p point) F() float64                    { return p.v }
func (p point) H() *histogram.Histogram       { return nil }
func (p point) FH() *histogram.FloatHistogram { return nil }
func (p point) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p point) Copy() chunks.Sample           { return p }
