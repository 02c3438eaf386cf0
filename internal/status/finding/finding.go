// Package finding determines what is wrong with a store, how bad that is, and what to do next. It uses only data that
// its callers have collected, so it reads no file and makes no call. sheaf doctor, sheaf top and the pages of shards
// and gateways all show its findings, so that they never differ.
package finding

import (
	"cmp"
	"slices"
	"strings"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/units"
)

// Severity is how bad a finding is.
type Severity string

// These are the severities, from the worst to the mildest.
const (
	Problem Severity = "problem" // calls fail, or data is at risk
	Warning Severity = "warning" // nothing fails yet
	Note    Severity = "note"    // activity in progress, or a possible improvement
)

var order = []Severity{Problem, Warning, Note}

// Finding describes one fact about a store that its administrator should know.
type Finding struct {
	Severity Severity `json:"severity"`
	Kind     Kind     `json:"kind,omitempty"` // empty for a finding about Kubernetes objects
	Where    string   `json:"where"`          // "shard s1", "group 7 on shard s1"
	What     string   `json:"what"`
	Do       string   `json:"do,omitempty"` // the next step; empty if there is none, or if What already names it
}

// Messages converts findings to the message type of the API.
func Messages(all []Finding) (out []*recordv1.Finding) {
	for _, f := range all {
		out = append(out, &recordv1.Finding{Severity: string(f.Severity), Kind: string(f.Kind), Where: f.Where,
			What: f.What, Do: f.Do})
	}
	return out
}

// Reported returns the findings that a shard has reported about itself.
func Reported(by *recordv1.ShardStatus) (out []Finding) {
	for _, f := range by.GetFindings() {
		out = append(out, Finding{Severity(f.GetSeverity()), Kind(f.GetKind()), f.GetWhere(), f.GetWhat(), f.GetDo()})
	}
	return out
}

// groupsNamed is the maximum number of groups that one finding names. The finding only counts the others.
const groupsNamed = 8

// BySeverity compares two severities. The worse one sorts first.
func BySeverity(a, b Severity) int {
	return cmp.Compare(slices.Index(order, a), slices.Index(order, b))
}

// Count returns the number of findings with the given severity.
func Count(all []Finding, severity Severity) (n int) {
	for _, f := range all {
		if f.Severity == severity {
			n++
		}
	}
	return n
}

// Words counts findings by severity, as in "1 problem, 0 warnings, 2 notes".
func Words(all []Finding) string {
	count := func(severity Severity, one, many string) string {
		return units.Count(int64(Count(all, severity)), one, many)
	}
	return count(Problem, "problem", "problems") + ", " + count(Warning, "warning", "warnings") + ", " +
		count(Note, "note", "notes")
}

// SortNames sorts names of groups. Numbers are sorted by value.
func SortNames(names []string) {
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
}

// named returns a string like "group 1" or "groups 1, 2 and 5 more".
func named(names []string) string {
	if len(names) == 1 {
		return "group " + names[0]
	}
	return "groups " + units.Some(names, groupsNamed)
}

// Problems returns the findings with the severity Problem as strings. Each string begins with the place of the
// finding, unless that is the place here. A process that reports about itself passes its own place as here, so that
// the strings omit it.
func Problems(all []Finding, here string) (words []string) {
	for i := range all {
		f := &all[i]
		if f.Severity != Problem {
			continue
		}
		text := f.What
		if f.Where != here {
			text = f.Where + ": " + text
		}
		if f.Do != "" {
			text += ": " + f.Do
		}
		words = append(words, text)
	}
	return words
}

// List collects findings, and merges equal findings of several groups into one. The zero value is ready for use.
type List struct {
	managed bool // see Facts.Managed
	all     []Finding
	same    map[Finding]*[]string // names of the groups that have the same finding; a key is the finding without a group
	names   []Finding             // keys of same, in the order of their first finding
}

// byHand returns do, a next step in which an administrator starts or stops processes. If the Kubernetes operator runs
// the processes, it returns an empty string instead.
func (f *List) byHand(do string) string {
	if f.managed {
		return ""
	}
	return do
}

// Add adds a finding.
func (f *List) Add(kind Kind, where, what, do string) {
	f.all = append(f.all, Finding{kind.severity(), kind, where, oneLine(what), do})
}

// oneLine replaces the line breaks of joined errors, so that they fit on one line.
func oneLine(what string) string {
	return strings.ReplaceAll(strings.ReplaceAll(what, ":\n", ": "), "\n", "; ")
}

// ofGroup adds a finding about a shard's copy of a group. If shard is empty, the finding is about the group as a whole.
func (f *List) ofGroup(kind Kind, name, shard, what, do string) {
	where := ""
	if shard != "" {
		where = " on shard " + shard
	}
	key := Finding{kind.severity(), kind, where, oneLine(what), strings.ReplaceAll(do, " "+name+" ", " GROUP ")}
	if f.same == nil {
		f.same = map[Finding]*[]string{}
	}
	if f.same[key] == nil {
		f.same[key] = new([]string)
		f.names = append(f.names, key)
	}
	if there := f.same[key]; !slices.Contains(*there, name) {
		*there = append(*there, name)
	}
}

// Sorted returns all findings, the worst first.
func (f *List) Sorted() []Finding {
	for _, key := range f.names {
		names := *f.same[key]
		SortNames(names)
		if len(names) == 1 {
			key.Do = strings.ReplaceAll(key.Do, " GROUP ", " "+names[0]+" ")
		}
		key.Where = named(names) + key.Where
		f.all = append(f.all, key)
	}
	slices.SortStableFunc(f.all, func(a, b Finding) int {
		return cmp.Or(BySeverity(a.Severity, b.Severity), cmp.Compare(a.Where, b.Where))
	})
	return f.all
}
