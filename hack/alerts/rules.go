package alerts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

var promQL = parser.NewParser(parser.Options{})

// interval is the time between two samples, and between two evaluations.
const interval = time.Minute

// readRules returns the alerts in a rule file, by name.
func readRules(file string) (map[string]rulefmt.Rule, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the rules: %w", err)
	}
	groups, errs := rulefmt.Parse(content, false, model.UTF8Validation, promQL, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		return nil, fmt.Errorf("%s is no file of rules: %w", file, errors.Join(errs...))
	}
	rules := map[string]rulefmt.Rule{}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			rules[rule.Alert] = rule
		}
	}
	return rules, nil
}

func newEngine() *promql.Engine {
	return promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute,
		Parser: promQL})
}

// held records for which label sets an alert's expression currently holds, and since when.
type held struct {
	rule   rulefmt.Rule
	since  map[string]time.Duration
	labels map[string]map[string]string
}

func newHeld(rule rulefmt.Rule) *held {
	return &held{rule: rule, since: map[string]time.Duration{}, labels: map[string]map[string]string{}}
}

// evaluate evaluates the expression as of the given time, which must increase from call to call.
func (h *held) evaluate(engine *promql.Engine, all memory, now time.Duration) error {
	query, err := engine.NewInstantQuery(context.Background(), all, nil, h.rule.Expr, time.UnixMilli(now.Milliseconds()))
	if err != nil {
		return fmt.Errorf("alert %s: %w", h.rule.Alert, err)
	}
	defer query.Close()
	vector, err := query.Exec(context.Background()).Vector()
	if err != nil {
		return fmt.Errorf("alert %s: %w", h.rule.Alert, err)
	}
	before := h.since
	h.since = map[string]time.Duration{}
	for _, sample := range vector {
		labels := sample.Metric.Map()
		delete(labels, "__name__")
		key := fmt.Sprint(labels)
		h.labels[key], h.since[key] = labels, now
		if since, there := before[key]; there {
			h.since[key] = since
		}
	}
	return nil
}

// fires reports whether the expression has held for the labels with this key for as long as the alert requires.
func (h *held) fires(key string, now time.Duration) bool {
	return now-h.since[key] >= time.Duration(h.rule.For)
}
