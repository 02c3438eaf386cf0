package rules

import "testing"

func TestTheZeroValueKeepsEveryRule(t *testing.T) {
	for rule := Sync; rule <= Upload; rule <<= 1 {
		if !Off(0).Keeps(rule) {
			t.Errorf("rule %d is off", rule)
		}
		if Off := Sync | Upload; Off.Keeps(rule) != (rule != Sync && rule != Upload) {
			t.Errorf("rule %d, with the first and the last one off", rule)
		}
	}
}
