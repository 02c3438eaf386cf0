package page

import (
	"fmt"
	"strings"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/status/finding"
)

// These are the states of a summary, from the worst to the best.
const (
	NotReady = "NotReady" // some groups do not serve
	Damaged  = "Damaged"  // all groups serve, but some stored bytes are bad
	Loading  = "Loading"
	Problems = "Problems" // all groups serve, but action is needed
	Ready    = "Ready"
)

// EtcdSilentMin is how long etcd must be silent before the summary mentions it. A process sends etcd a request every 2
// s, and waits up to 2 s for the response.
const EtcdSilentMin = 6 * time.Second

// EtcdProblem returns a description of what is wrong with etcd, as seen by the calling process, and a next step. It
// is given the time since etcd last responded (silent), and the reason why the process ignores the contents of etcd
// (held), which is empty if it does not. Both results are empty if nothing is wrong.
func EtcdProblem(silent time.Duration, held string) (text, do string) {
	switch {
	case silent >= EtcdSilentMin:
		return fmt.Sprintf("%s%s: what was served before is served; what starts, moves or is new waits",
			finding.EtcdSilent, about(silent)), "Start etcd again, or see to the network between it and here."
	case held != "":
		return finding.EtcdHeld + held, "What was known before is served."
	}
	return "", ""
}

// Facts are the inputs of a summary. A field whose value a process cannot determine stays zero.
type Facts struct {
	Waits      string        // why nothing is served, and what to do; empty if something is served
	EtcdSilent time.Duration // time since etcd last responded
	EtcdHeld   string        // why the contents of etcd are ignored; empty if they are not
	Loading    bool
	Load       *recordv1.Load
	Groups     int      // number of groups that should serve
	Shards     int      // number of shards that hold the groups; 0 if only the reporting shard does
	Routes     bool     // whether only the routes of the groups are known, and not whether the groups serve
	And        string   // text at the end of the sentence if all groups serve
	Failed     []string // names of groups that are not served
	FailedWhy  string   // reason for the first failed group whose reason is known
	Damaged    []string
	Problems   []string
}

// Fail records a group that is not served. If why is not empty, Fail also records it as the reason.
func (f *Facts) Fail(group, why string) {
	f.Failed = append(f.Failed, group)
	if f.FailedWhy == "" && why != "" {
		f.FailedWhy = fmt.Sprintf("Group %s: %s.", group, strings.TrimSuffix(why, "."))
	}
}

// Summarize returns the state that follows from the facts, with a sentence about it and the next step. If several
// states apply, it returns the most urgent one.
func Summarize(f *Facts) *recordv1.StatusSummary {
	switch {
	case f.Waits != "":
		return &recordv1.StatusSummary{State: NotReady, Text: "Not ready: " + f.Waits}
	case f.Loading:
		return &recordv1.StatusSummary{State: Loading, Text: loadWords(f.Load), Do: f.withoutEtcd()}
	case len(f.Failed) > 0:
		verb := "are"
		if len(f.Failed) == 1 {
			verb = "is"
		}
		return &recordv1.StatusSummary{
			State: NotReady, Text: fmt.Sprintf("Not ready: %d of %s %s not served: %s", len(f.Failed), count(f.Groups, "group"),
				verb, units.Some(f.Failed, namesMax)),
			Do: strings.TrimSpace(
				f.FailedWhy + " The list of groups says why of each: repair what it names. Where it names nothing, start the " +
					"shards that hold them."),
		}
	case len(f.Damaged) > 0:
		named, one := "groups", "GROUP"
		if len(f.Damaged) == 1 {
			named, one = "group", f.Damaged[0]
		}
		return &recordv1.StatusSummary{
			State: Damaged, Text: fmt.Sprintf("Damaged: %s %s: some records answer DATA_LOSS, all others are served", named,
				units.Some(f.Damaged, namesMax)),
			Do: fmt.Sprintf(
				"With several copies it is repaired from another one automatically. Else restore these records, or accept "+
					"the loss: sheaf group accept-loss %s --yes.", one),
		}
	case f.EtcdSilent >= EtcdSilentMin || f.EtcdHeld != "":
		text, do := EtcdProblem(f.EtcdSilent, f.EtcdHeld)
		return &recordv1.StatusSummary{State: Problems, Text: text, Do: do}
	case len(f.Problems) > 0:
		return &recordv1.StatusSummary{State: Problems, Text: fmt.Sprintf("Ready, with %s: %s", count(len(f.Problems),
			"problem"),
			f.serving()), Do: f.Problems[0]}
	case f.Groups == 0:
		return &recordv1.StatusSummary{State: Ready, Text: "Ready: there are no groups yet"}
	}
	return &recordv1.StatusSummary{State: Ready, Text: "Ready: " + f.serving()}
}

// serving returns a string like "16 groups on 3 shards serve".
func (f *Facts) serving() string {
	where, one, several := "here", "serves", "serve"
	if f.Shards > 0 {
		where = "on " + count(f.Shards, "shard")
	}
	if f.Routes {
		one, several = "has a route", "have a route"
	}
	verb := several
	if f.Groups == 1 {
		verb = one
	}
	return count(f.Groups, "group") + " " + where + " " + verb + f.And
}

func (f *Facts) withoutEtcd() string {
	if f.EtcdSilent < EtcdSilentMin {
		return ""
	}
	return fmt.Sprintf("etcd has not answered for %s: start it, or see to the network between it and here.",
		about(f.EtcdSilent))
}

// loadWords returns a string like "Loading: 5 of 16 groups, 42 %, 3 s left".
func loadWords(l *recordv1.Load) string {
	if l.GetGroupsTotal() == 0 {
		return "Loading: looking at what there is"
	}
	text := fmt.Sprintf("Loading: %d of %s", l.GetGroupsLoaded(), count(int(l.GetGroupsTotal()), "group"))
	if l.GetBytesTotal() > 0 {
		text += fmt.Sprintf(", %d %%", int64(100*float64(l.GetBytesDone())/float64(l.GetBytesTotal())))
	}
	if l.GetEtaSeconds() > 0 {
		text += ", " + about(time.Duration(l.GetEtaSeconds()*float64(time.Second))) + " left"
	}
	return text
}

// about formats a duration roughly, in seconds, or in minutes if it is long.
func about(d time.Duration) string {
	if d < 2*time.Minute {
		return fmt.Sprintf("%d s", max(1, int(d.Round(time.Second).Seconds())))
	}
	return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
}

// namesMax is the largest number of names that one sentence lists.
const namesMax = 5

// count returns a string like "1 group" or "2 groups".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
