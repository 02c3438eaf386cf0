package member

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

// The table of transitions in the decision record is the same as the one in the code.
func TestTheDecisionRecordListsTheTransitions(t *testing.T) {
	page, err := os.ReadFile("../../../docs/adr/0033-states-of-a-replica.md")
	must.OK(t, err)
	for phase := range phases {
		var to []string
		for event := range events {
			if next, legal := phase.After(event); legal && event != Missing {
				to = append(to, fmt.Sprintf("%v: %v", event, next))
			}
		}
		row := fmt.Sprintf("| %v | %s |", phase, strings.Join(to, ", "))
		switch {
		case phase == Lost:
			row = "| Lost | every event: Lost |"
		case len(to) == 0:
			row = fmt.Sprintf("| %v | none |", phase)
		}
		if !strings.Contains(string(page), row) {
			t.Errorf("it lacks the row\n%s", row)
		}
	}
}
