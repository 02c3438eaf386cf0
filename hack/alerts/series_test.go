package alerts

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	podMonitorFile = "../../charts/sheaf-store/templates/podmonitor.yaml"
	usedFile       = "testdata/used.txt"
)

var updateUsed = flag.Bool("update-used", false, "write testdata/used.txt")

// usedSeries holds the series that alerts and panels read, by name, together with the labels that they use. Labels
// may be used in the query, in the panel's legend or in the alert's message.
type usedSeries map[string]map[string]bool

// add adds the series in a query. The texts may use labels of these series, as in {{code}} or {{ $labels.code }}.
func (u usedSeries) add(t *testing.T, query string, texts ...string) {
	t.Helper()
	expr, err := promQL.ParseExpr(query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	wanted := map[string]bool{}
	for _, text := range texts {
		for _, label := range regexp.MustCompile(`\{\{ *(?:\$labels\.)?([a-z_]+) *\}\}`).FindAllStringSubmatch(text, -1) {
			wanted[label[1]] = true
		}
	}
	var selectors []*parser.VectorSelector
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch node := node.(type) {
		case *parser.AggregateExpr:
			for _, label := range node.Grouping {
				wanted[label] = true
			}
		case *parser.VectorSelector:
			selectors = append(selectors, node)
		}
		return nil
	})
	for _, selector := range selectors {
		if u[selector.Name] == nil {
			u[selector.Name] = map[string]bool{}
		}
		maps.Copy(u[selector.Name], wanted)
		for _, matcher := range selector.LabelMatchers {
			if matcher.Name != labels.MetricName {
				u[selector.Name][matcher.Name] = true
			}
		}
	}
}

// ofOperator reports whether the operator exposes a series. The operator itself sets the labels namespace and store on
// such a series. Shards, gateways and etcd expose the other series.
func ofOperator(series string) bool {
	for _, prefix := range []string{"sheaf_store_", "sheaf_operator_", "controller_runtime_"} {
		if strings.HasPrefix(series, prefix) {
			return true
		}
	}
	return false
}

// podLabels returns the labels that the PodMonitor adds to each of a pod's series.
func podLabels(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(podMonitorFile)
	if err != nil {
		t.Fatal(err)
	}
	given := map[string]bool{}
	for _, label := range regexp.MustCompile(`targetLabel: ([a-z]+)`).FindAllStringSubmatch(string(text), -1) {
		given[label[1]] = true
	}
	return given
}

// TestUsedSeriesAreListed checks that testdata/used.txt lists each series that an alert or a panel uses, with the
// labels that the exposing process itself has to set. Tests of the processes check that they expose every series in
// that list (TestPodsExposeWhatAlertsUse in cmd/sheaf, TestOperatorExposesWhatAlertsUse in controllers/recordstore).
// So no alert can wait for a series that nothing exposes.
func TestUsedSeriesAreListed(t *testing.T) {
	used := usedSeries{}
	for _, rule := range loadRules(t) {
		used.add(t, rule.Expr, slices.Collect(maps.Values(rule.Annotations))...)
	}
	content, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Targets []struct {
				Expr   string `json:"expr"`
				Legend string `json:"legendFormat"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(content, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			used.add(t, target.Expr, target.Legend)
		}
	}
	given := podLabels(t)
	var lines strings.Builder
	for _, series := range slices.Sorted(maps.Keys(used)) {
		words := []string{"pods", series}
		if ofOperator(series) {
			words[0] = "operator"
		}
		for _, label := range slices.Sorted(maps.Keys(used[series])) {
			if words[0] == "operator" || !given[label] {
				words = append(words, label)
			}
		}
		lines.WriteString(strings.Join(words, " ") + "\n")
	}
	if *updateUsed {
		if err := os.WriteFile(usedFile, []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listed, err := os.ReadFile(usedFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(listed) != lines.String() {
		t.Errorf("alerts and dashboard use\n%s\nand %s lists others: go test -run TestUsedSeriesAreListed -update-used",
			&lines, usedFile)
	}
}
