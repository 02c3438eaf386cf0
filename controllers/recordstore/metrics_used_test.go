package recordstore

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	_ "sheaf.dev/sheaf/controllers/recordarchive" // registers the metrics of archives
	"sheaf.dev/sheaf/internal/test/must"
)

// If an alert or a panel of the charts uses a series of the operator, the series is registered with the labels that the
// alert or panel uses. hack/alerts creates the list.
func TestOperatorExposesWhatAlertsUse(t *testing.T) {
	used, err := os.ReadFile("../../hack/alerts/testdata/used.txt")
	must.OK(t, err)
	described := make(chan *prometheus.Desc)
	go func() {
		defer close(described)
		(&storeMetrics{}).Describe(described)
		metrics.Registry.(prometheus.Collector).Describe(described)
	}()
	exposed := map[string][]string{}
	form := regexp.MustCompile(`fqName: "([^"]+)".* variableLabels: \{([^}]*)\}`)
	for desc := range described {
		if found := form.FindStringSubmatch(desc.String()); found != nil {
			exposed[found[1]] = strings.Split(found[2], ",")
		}
	}
	// A test cannot import package main, so it reads the source.
	main, err := os.ReadFile("../../cmd/sheaf-operator/main.go")
	must.OK(t, err)
	listed := 0
	for line := range strings.Lines(string(used)) {
		words := strings.Fields(line)
		if words[0] != "operator" {
			continue
		}
		listed++
		labels, there := exposed[words[1]]
		if !there && (len(words) > 2 || !strings.Contains(string(main), `"`+words[1]+`"`)) {
			t.Errorf("the operator does not expose %s", words[1])
			continue
		}
		for _, label := range words[2:] {
			if !slices.Contains(labels, label) {
				t.Errorf("%s has no label %s, only %v", words[1], label, labels)
			}
		}
	}
	if listed == 0 {
		t.Error("the list is empty")
	}
}
