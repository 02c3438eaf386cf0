package alerts

import (
	"fmt"
	"slices"
	"testing"
)

// stateOf returns the state of an alert, or "" if it is neither pending nor firing.
func stateOf(found map[string][]Alert, name string) string {
	if len(found[name]) == 0 {
		return ""
	}
	return found[name][0].State
}

// TestWatch checks that an alert is pending, then fires, and resolves when its fault ends or when its metrics
// disappear.
func TestWatch(t *testing.T) {
	watch, err := NewWatch(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	tells := func(available int) map[string]string {
		return map[string]string{"a": fmt.Sprintf("# HELP sheaf_store_condition x\n# TYPE sheaf_store_condition gauge\n"+
			"sheaf_store_condition{condition=\"Available\",namespace=\"n\",store=\"q\"} %d\nsheaf_operator_leads 1", available)}
	}
	var states, operators []string
	for _, targets := range []map[string]string{
		tells(1), tells(0), tells(0), tells(0), tells(1), tells(0), {}, {"a": "sheaf_operator_leads 0"}, {}, {}, {}, {},
		tells(1),
	} {
		found, err := watch.Scrape(targets)
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, stateOf(found, "SheafStoreUnavailable"))
		operators = append(operators, stateOf(found, "SheafOperatorGone"))
	}
	if want := []string{"", Pending, Pending, Firing, "", Pending, "", "", "", "", "", "", ""}; !slices.Equal(states,
		want) {
		t.Errorf("SheafStoreUnavailable was %q, want %q", states, want)
	}
	if want := []string{"", "", "", "", "", "", Pending, Pending, Pending, Pending, Pending, Firing,
		""}; !slices.Equal(operators, want) {
		t.Errorf("SheafOperatorGone was %q, want %q", operators, want)
	}
	if _, err := watch.Scrape(map[string]string{"a": "<html>"}); err == nil {
		t.Error("a page that holds no metrics is taken")
	}
}
