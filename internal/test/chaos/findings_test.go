package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

const (
	// lookSlack is added to the time that a rule allows if the run is a soak, because `sheaf doctor` may take a while to
	// start on a busy machine.
	lookSlack = 10 * time.Second
	// lookPatience is added to the time that a rule allows if the run is not a soak, because such a run must not fail
	// just because the machine is slow. It still fails if a finding never appears or never disappears.
	lookPatience = 2 * time.Minute
	// The test does not wait for a finding to disappear if the finding's rule allows it to remain for this long after
	// its cause is gone.
	endsLater = time.Minute
)

// findingStats counts the findings that `sheaf doctor` had to report because of faults. Only the nemesis goroutine uses
// it.
type findingStats struct {
	byKind map[finding.Kind]*lookTimes
	open   []expected // findings reported during the current fault
}

// expected is a finding that `sheaf doctor` has reported because of a fault.
type expected struct {
	kind finding.Kind
	who  string // for example "shard a" or "store"
}

type lookTimes struct {
	reported, gone int
	// reportedMax is the longest time that passed between the start of a cause and the report of its finding.
	// goneMax is the longest time that passed between the end of a fault and the disappearance of its finding.
	reportedMax, goneMax time.Duration
}

// doctor returns the findings of `sheaf doctor`. The exit code must be 1 if and only if there is a problem.
func (n *nemesis) doctor() (found []finding.Finding, err error) {
	out, err := n.hub.run(sheafBinary, "doctor", "--output", "json", "--server", n.gateways[0].machine.address+":7600")
	var report struct {
		Findings []finding.Finding `json:"findings"`
	}
	// If doctor fails, it prints its error message after the JSON.
	if bad := json.NewDecoder(strings.NewReader(out)).Decode(&report); bad != nil {
		return nil, fmt.Errorf("sheaf doctor: %w: %s", errors.Join(err, bad), out)
	}
	if problems := finding.Count(report.Findings, finding.Problem); (err != nil) != (problems > 0) {
		return nil, fmt.Errorf("%w: sheaf doctor found %d problems, and ended with %s: %s", errHopeless, problems,
			fmt.Sprint(err), out)
	}
	return report.Findings, nil
}

// isAbout reports whether a finding is about the store, a shard, or the copies on a shard.
func isAbout(f *finding.Finding, who string) bool {
	return f.Where == who || strings.HasSuffix(f.Where, " on "+who) || strings.Contains(f.What, "its copy on "+who+" ")
}

// awaitFindings calls doctor repeatedly until the findings are as wanted. It returns how much time passed between the
// time in the argument since and the start of the last call. It fails if a call that began after the rule's time had
// run out still did not return the wanted findings.
func (n *nemesis) awaitFindings(what string, since time.Time, within time.Duration,
	wanted func([]finding.Finding) bool,
) (took time.Duration, err error) {
	limit := within + lookPatience
	if soaktest.Long() {
		limit = within + lookSlack
	}
	var last error
	var before []finding.Finding
	for failed := 0; ; time.Sleep(100 * time.Millisecond) {
		began := time.Since(since)
		found, err := n.doctor()
		switch {
		case errors.Is(err, errHopeless):
			return 0, err
		case err != nil: // for example, an overloaded gateway may refuse the call
			if failed, last = failed+1, err; began > limit+lookPatience {
				return 0, fmt.Errorf("%s: %d calls failed, the last one: %w", what, failed, err)
			}
		case wanted(found):
			if began > within+time.Second {
				n.t.Logf("%s: shown by a call %v after that, more than %v; before: %+v; calls failed: %d, the last one with %v",
					what, began.Round(time.Millisecond), within, before, failed, last)
			}
			return began, nil
		case began > limit:
			return 0, fmt.Errorf("%s: sheaf doctor does not show it %v after that, which is more than %v: %+v", what,
				began.Round(time.Millisecond), within, found)
		default:
			before = found
		}
	}
}

// expectFinding waits until `sheaf doctor` reports a finding of one of the given kinds about a part of the store (the
// argument who). The argument since is the time at which the cause of the finding began. If the finding does not appear
// within the time that the rules allow after since, expectFinding returns an error. It also notes the finding, so that
// awaitFindingsGone can check that it disappears after the fault.
func (n *nemesis) expectFinding(since time.Time, who string, kinds ...finding.Kind) error {
	within := time.Duration(0)
	for _, kind := range kinds {
		rule, ok := finding.RuleOf(kind)
		if !ok {
			return fmt.Errorf("%s has no rule", kind)
		}
		within = max(within, rule.Within)
	}
	var seen []finding.Kind
	what := fmt.Sprintf("%v about %s", kinds, who)
	took, err := n.awaitFindings(what, since, within, func(found []finding.Finding) bool {
		seen = nil
		for i := range found {
			if kind := found[i].Kind; isAbout(&found[i], who) && slices.Contains(kinds, kind) && !slices.Contains(seen, kind) {
				seen = append(seen, kind)
			}
		}
		return len(seen) > 0
	})
	if err != nil {
		return err
	}
	for _, kind := range seen {
		times := n.looks.of(kind)
		times.reported++
		times.reportedMax = max(times.reportedMax, took)
		n.looks.open = append(n.looks.open, expected{kind, who})
	}
	return nil
}

// awaitFindingsGone is called when a fault has ended and the store is whole again. The findings that expectFinding has
// noted must disappear in time, after which `sheaf doctor` must find no problem. Otherwise awaitFindingsGone returns an
// error. It ignores the problems that doctor reports while etcd is stopped.
func (n *nemesis) awaitFindingsGone() error {
	since := time.Now()
	open := n.looks.open
	n.looks.open = nil
	for _, e := range open {
		rule, _ := finding.RuleOf(e.kind)
		if rule.Gone >= endsLater {
			continue
		}
		took, err := n.awaitFindings(fmt.Sprintf("%s about %s is gone", e.kind, e.who), since, rule.Gone,
			func(found []finding.Finding) bool {
				return !slices.ContainsFunc(found, func(f finding.Finding) bool { return f.Kind == e.kind && isAbout(&f, e.who) })
			})
		if err != nil {
			return err
		}
		times := n.looks.of(e.kind)
		times.gone++
		times.goneMax = max(times.goneMax, took)
	}
	if n.etcdStopped {
		return nil
	}
	longest := time.Duration(0)
	for i := range finding.Rules {
		if r := &finding.Rules[i]; r.Severity == finding.Problem {
			longest = max(longest, r.Gone)
		}
	}
	_, err := n.awaitFindings("no problem is left", since, longest, func(found []finding.Finding) bool {
		return finding.Count(found, finding.Problem) == 0
	})
	return err
}

func (l *findingStats) of(kind finding.Kind) *lookTimes {
	if l.byKind == nil {
		l.byKind = map[finding.Kind]*lookTimes{}
	}
	if l.byKind[kind] == nil {
		l.byKind[kind] = &lookTimes{}
	}
	return l.byKind[kind]
}

// summary returns one line for each kind of finding that faults have caused.
func (l *findingStats) summary() string {
	out := strings.Builder{}
	for _, kind := range slices.Sorted(maps.Keys(l.byKind)) {
		t := l.byKind[kind]
		fmt.Fprintf(&out, "finding %s: reported at %d faults, at most %.1f s after its cause; gone after %d, "+
			"at most %.1f s\n", kind, t.reported, t.reportedMax.Seconds(), t.gone, t.goneMax.Seconds())
	}
	return out.String()
}
