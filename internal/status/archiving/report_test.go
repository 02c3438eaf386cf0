package archiving

import (
	"testing"
	"time"
)

func TestOnlyAcknowledgedObjectsMakeAnArchiveCurrent(t *testing.T) {
	seconds := func(f float64) *float64 { return &f }
	for name, c := range map[string]struct {
		report   Report
		want     Currency
		sentence string
	}{
		"just started": {Report{State: Archiving}, Unknown, "not known yet"},
		"first copies": {Report{State: Archiving, Waiting: 3}, Behind, "the first copy of 3 groups is not complete"},
		"current": {Report{State: Archiving, LagSeconds: seconds(4.2), IntervalSeconds: 10}, Current,
			"archived 4 s ago"},
		// An archive still counts as current for some time after its bucket has begun to fail.
		"trouble alone": {Report{State: Archiving, LagSeconds: seconds(59), IntervalSeconds: 10,
			Trouble: &Trouble{Reason: "Away"}}, Current, "archived 59 s ago"},
		// An archive is not current merely because a process runs without trouble.
		"behind": {Report{State: Archiving, LagSeconds: seconds(61), IntervalSeconds: 10}, Behind, "archived 61 s ago"},
		"long intervals": {Report{State: Archiving, LagSeconds: seconds(3599), IntervalSeconds: 600}, Current,
			"archived 59 min ago"},
		"behind long intervals": {Report{State: Archiving, LagSeconds: seconds(3601), IntervalSeconds: 600}, Behind,
			"archived 60 min ago"},
		// While the first copy of a new group is being made, the lag grows. Only the lag counts, not the copy itself.
		"one new group": {Report{State: Archiving, LagSeconds: seconds(20), IntervalSeconds: 10, Waiting: 1}, Current,
			"archived 20 s ago"},
		"holes": {Report{State: Archiving, LagSeconds: seconds(7300), IntervalSeconds: 10, Holes: 1}, Behind,
			"archived 2 h ago, with 1 hole in its history"},
	} {
		if got := c.report.Current(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		if got := c.report.Sentence(); got != c.sentence {
			t.Errorf("%s: %q, want %q", name, got, c.sentence)
		}
	}
}

func TestAgo(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0 s ago", 119 * time.Second: "119 s ago", 2 * time.Minute: "2 min ago",
		119 * time.Minute: "119 min ago", 47 * time.Hour: "47 h ago", 49 * time.Hour: "2 days ago",
	} {
		if got := Ago(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
