package alerts

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// samplesMax is the number of samples that are kept for each series. They cover more time than the longest range in an
// alert's expression.
const samplesMax = 60

// These are the states of an alert.
const (
	// Pending is the state of an alert whose expression holds, but not for long enough.
	Pending = "pending"
	// Firing is the state of an alert whose expression has held for the time in its `for` field.
	Firing = "firing"
)

// Alert is a label set for which an alert is pending or firing.
type Alert struct {
	Labels map[string]string `json:"labels"`
	State  string            `json:"state"`
}

// Watch evaluates rules after every scrape, like a Prometheus that scrapes once a minute. It does not use a clock.
// Instead, it dates each scrape one minute after the previous one. Therefore an alert with `for: 15m` fires when its
// expression has held for sixteen scrapes, however little real time has passed.
type Watch struct {
	engine *promql.Engine
	rules  map[string]*held
	series map[string]*line
	now    time.Duration
}

// line is one series, to which samples are added.
type line struct {
	labels  labels.Labels
	samples []chunks.Sample
}

// NewWatch returns a Watch for the rules in a file.
func NewWatch(file string) (*Watch, error) {
	rules, err := readRules(file)
	if err != nil {
		return nil, err
	}
	w := &Watch{engine: newEngine(), rules: map[string]*held{}, series: map[string]*line{}}
	for name, rule := range rules {
		w.rules[name] = newHeld(rule)
	}
	return w, nil
}

// Scrape takes each target's response in Prometheus' text format. It returns all alerts that are pending or firing
// after this scrape, by name. The target's name becomes the label instance. Series that are missing from the responses
// become stale, as in Prometheus.
func (w *Watch) Scrape(targets map[string]string) (map[string][]Alert, error) {
	w.now += interval
	seen := map[string]bool{}
	for target, text := range targets {
		if err := w.take(target, text, seen); err != nil {
			return nil, fmt.Errorf("what %s answered: %w", target, err)
		}
	}
	var all memory
	for key, l := range w.series {
		if last := l.samples[len(l.samples)-1].F(); !seen[key] && !value.IsStaleNaN(last) {
			l.add(w.now, math.Float64frombits(value.StaleNaN))
		}
		all.series = append(all.series, storage.NewListSeries(l.labels, l.samples))
	}
	out := map[string][]Alert{}
	for name, rule := range w.rules {
		if err := rule.evaluate(w.engine, all, w.now); err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(rule.since)) {
			alert := Alert{Labels: rule.labels[key], State: Pending}
			if rule.fires(key, w.now) {
				alert.State = Firing
			}
			out[name] = append(out[name], alert)
		}
	}
	return out, nil
}

// take adds the samples of one target.
func (w *Watch) take(target, text string, seen map[string]bool) error {
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	parser := textparse.NewPromParser([]byte(text), labels.NewSymbolTable(), false)
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("it is not in Prometheus' text format: %w", err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var lset labels.Labels
		parser.Labels(&lset)
		lset = labels.NewBuilder(lset).Set("instance", target).Labels()
		_, _, sample := parser.Series()
		key := lset.String()
		if w.series[key] == nil {
			w.series[key] = &line{labels: lset}
		}
		w.series[key].add(w.now, sample)
		seen[key] = true
	}
}

func (l *line) add(now time.Duration, sample float64) {
	// Allocate a new slice, because the engine still reads the old one.
	l.samples = append(slices.Clone(l.samples[max(0, len(l.samples)+1-samplesMax):]),
		point{t: now.Milliseconds(), v: sample})
}
