package main

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"sheaf.dev/sheaf/client"
)

// labelForm matches the labels in a line of /metrics.
var labelForm = regexp.MustCompile(`([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"`)

// scrape returns the labels of each series that a process exposes, by the name of the series. If a series has several
// lines, the result has the labels of only one of them.
func (p *process) scrape(t *testing.T) map[string]map[string]string {
	t.Helper()
	answer, err := http.Get("http://" + p.http + "/metrics")
	must(t, err)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	must(t, err)
	series := map[string]map[string]string{}
	for line := range strings.Lines(string(text)) {
		name := line[:strings.IndexAny(line, " {")]
		if name == "#" {
			continue
		}
		series[name] = map[string]string{}
		for _, label := range labelForm.FindAllStringSubmatch(line, -1) {
			series[name][label[1]] = label[2]
		}
	}
	return series
}

// If an alert or a panel of the charts uses a series of pods, a gateway or a shard exposes that series with the labels
// that the alert or panel uses. With honorLabels, the label of a series overrides the PodMonitor's label of the same
// name. Therefore no series may have a label that the PodMonitor sets, unless both have the same value. The test runs
// real processes, because it checks what they return to Prometheus.
func TestPodsExposeWhatAlertsUse(t *testing.T) {
	used, err := os.ReadFile("../../hack/alerts/testdata/used.txt")
	must(t, err)
	r, gateway, loader := startGrantedAs(t, 0, "--routing", "named")
	c, err := r.dial(gateway.process.server, loader.folder, false, false)
	must(t, err)
	defer func() { _ = c.Close() }()
	eventually(t, func() bool {
		_, err := c.Put(t.Context(), client.Key{Group: "team-a-1", ID: 1}, []byte("x"), nil)
		return err == nil
	})
	exposed := map[string]map[string]string{}
	for _, m := range r.members {
		if m.process == nil {
			continue
		}
		for name, labels := range m.process.scrape(t) {
			if shard, there := labels["shard"]; there && shard != m.identity.Name {
				t.Errorf("%s of %s is of shard %q", name, m.identity, shard)
			}
			for _, given := range []string{"namespace", "store", "component", "pod", "container"} {
				if _, there := labels[given]; there {
					t.Errorf("%s of %s has a label %s, which the PodMonitor gives to all series", name, m.identity, given)
				}
			}
			exposed[name] = labels
		}
	}
	listed := 0
	for line := range strings.Lines(string(used)) {
		words := strings.Fields(line)
		if words[0] != "pods" {
			continue
		}
		listed++
		labels, there := exposed[words[1]]
		if !there {
			t.Errorf("no gateway and no shard exposes %s", words[1])
			continue
		}
		for _, label := range words[2:] {
			if _, there := labels[label]; !there {
				t.Errorf("%s has no label %s, only %v", words[1], label, labels)
			}
		}
	}
	if listed == 0 {
		t.Error("the list is empty")
	}
}
