package archiving

import "testing"

func TestTheSentenceTellsOfTheProof(t *testing.T) {
	seconds := func(f float64) *float64 { return &f }
	for want, d := range map[string]*Drill{
		"archived 4 s ago":                          nil,
		"archived 4 s ago, restore proven 22 h ago": {Result: DrillProven, ProvenSeconds: seconds(22.5 * 3600)},
		"archived 4 s ago, restore never proven, but the newest drill found 2 differences": {
			Result: DrillDiffers, Differing: 2},
		"archived 4 s ago, restore proven 3 days ago, and the newest drill did not find out": {
			Result: DrillFailed, ProvenSeconds: seconds(3 * 24 * 3600)},
	} {
		r := Report{State: Archiving, LagSeconds: seconds(4), Drill: d}
		if got := r.Sentence(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
