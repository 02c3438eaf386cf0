package alerts

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"go.yaml.in/yaml/v3"
)

const (
	rulesFile     = "../../charts/sheaf-operator/files/alerts.yaml"
	dashboardFile = "../../charts/sheaf-operator/files/dashboard.json"
	runbookFile   = "../../docs/operations/monitoring.md"
)

// loadRules returns the chart's alerts, by name.
func loadRules(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	rules, err := readRules(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// TestAlertsSayWhatToDo checks that each alert has a severity, the time for which its condition must hold, a
// description of the problem, and a link to the runbook.
func TestAlertsSayWhatToDo(t *testing.T) {
	page, err := os.ReadFile(runbookFile)
	if err != nil {
		t.Fatal(err)
	}
	anchors := map[string]bool{}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(page), -1) {
		anchors[strings.ReplaceAll(strings.ToLower(heading[1]), " ", "-")] = true
	}
	for name, rule := range loadRules(t) {
		if rule.For == 0 {
			t.Errorf("%s: no for", name)
		}
		if s := rule.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s: severity %q", name, s)
		}
		for _, key := range []string{"summary", "description"} {
			if rule.Annotations[key] == "" {
				t.Errorf("%s: no %s", name, key)
			}
		}
		file, anchor, _ := strings.Cut(rule.Annotations["runbook_url"], "#")
		if file != "docs/operations/monitoring.md" || !anchors[anchor] {
			t.Errorf("%s: %s has no section #%s", name, file, anchor)
		}
	}
}

// ruleCase is a case in testdata/cases.yaml, with the field names of promtool's test files.
type ruleCase struct {
	Name        string `yaml:"name"`
	InputSeries []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Alerts []struct {
		Alert    string              `yaml:"alertname"`
		EvalTime model.Duration      `yaml:"eval_time"`
		Expected []map[string]string `yaml:"exp_labels"`
	} `yaml:"alert_rule_test"`
}

func TestAlertsFire(t *testing.T) {
	content, err := os.ReadFile("testdata/cases.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []ruleCase
	if err := yaml.Unmarshal(content, &cases); err != nil {
		t.Fatal(err)
	}
	rules, fired := loadRules(t), map[string]bool{}
	engine := newEngine()
	for _, c := range cases {
		var all memory
		for _, in := range c.InputSeries {
			if err := all.add(in.Series, in.Values); err != nil {
				t.Fatalf("%s: %v", c.Name, err)
			}
		}
		for _, want := range c.Alerts {
			rule, there := rules[want.Alert]
			if !there {
				t.Errorf("%s: there is no alert %s", c.Name, want.Alert)
				continue
			}
			got := firing(t, engine, all, rule, time.Duration(want.EvalTime))
			if !slices.EqualFunc(got, want.Expected, maps.Equal) {
				t.Errorf("%s: %s fires after %s for %v, want %v", c.Name, want.Alert, want.EvalTime, got, want.Expected)
			}
			fired[want.Alert] = fired[want.Alert] || len(got) > 0
		}
	}
	for name := range rules {
		if !fired[name] {
			t.Errorf("%s fires in no case", name)
		}
	}
}

// firing returns the label sets for which an alert fires at the given time. An alert fires for a label set if its
// expression has held at every evaluation for at least as long as the alert's "for" field requires.
func firing(t *testing.T, engine *promql.Engine, all memory, rule rulefmt.Rule,
	at time.Duration) (out []map[string]string) {
	t.Helper()
	h := newHeld(rule)
	for now := time.Duration(0); now <= at; now += interval {
		if err := h.evaluate(engine, all, now); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(h.since)) {
		if h.fires(key, at) {
			out = append(out, h.labels[key])
		}
	}
	return out
}

// TestDashboardUsesExistingMetrics checks that the dashboard's queries are valid PromQL, and that they use only metrics
// whose names are in the product's sources.
func TestDashboardUsesExistingMetrics(t *testing.T) {
	content, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		UID    string `json:"uid"`
		Title  string `json:"title"`
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(content, &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.UID == "" || dashboard.Title == "" || len(dashboard.Panels) == 0 {
		t.Errorf("%+v", dashboard)
	}
	queries := map[string]string{}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries[panel.Title] += target.Expr
			if _, err := promQL.ParseExpr(target.Expr); err != nil {
				t.Errorf("%s: %v", panel.Title, err)
			}
		}
	}
	for name, rule := range loadRules(t) {
		queries[name] = rule.Expr
	}
	sources := ""
	for _, file := range []string{
		"../../controllers/recordstore/metrics.go", "../../controllers/step/counted.go", "../../cmd/sheaf-operator/main.go",
		"../../internal/gateway/metrics.go", "../../internal/security/ratelimit/ratelimit.go",
		"../../internal/shard/quota/metrics.go", "../../internal/security/access/guard/audit.go",
		"../../controllers/recordarchive/metrics.go",
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources += string(text)
	}
	for title, query := range queries {
		for _, metric := range regexp.MustCompile(`sheaf_[a-z_]+`).FindAllString(query, -1) {
			short := strings.TrimSuffix(strings.TrimPrefix(metric, "sheaf_store_"), "_bucket")
			if !strings.Contains(sources, `"`+short+`"`) {
				t.Errorf("%s: there is no metric %s", title, metric)
			}
		}
	}
}
