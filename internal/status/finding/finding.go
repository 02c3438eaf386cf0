// Package finding says what is wrong with a store, how bad that is, and what to do next. It decides from what others
// have looked at: it reads no file and calls nobody. sheaf doctor, sheaf top and the pages of shards and gateways all
// tell what it finds, so that they never differ.
package finding

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Severity is how bad a finding is.
type Severity string

// From the worst to the least.
const (
	Problem Severity = "problem" // calls fail, or data are at risk
	Warning Severity = "warning" // nothing fails yet
	Note    Severity = "note"    // what goes on, or could be better
)

var order = []Severity{Problem, Warning, Note}

// Finding is one thing that somebody should know.
type Finding struct {
	Severity Severity `json:"severity"`
	Where    string   `json:"where"` // "shard s1", "group 7 on shard s1"
	What     string   `json:"what"`
	Do       string   `json:"do,omitempty"` // the next step; empty: What says it, or there is none
}

// groupsNamed of one finding are named; the others are counted.
const groupsNamed = 8

// Count counts the findings of one severity.
func Count(all []Finding, severity Severity) (n int) {
	for _, f := range all {
		if f.Severity == severity {
			n++
		}
	}
	return n
}

// Problems are the problems among findings in words. What is of the place named here, who tells of itself, is said
// without it.
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

// List is where findings come together; those of many groups that say the same become one. The zero value is ready.
type List struct {
	all   []Finding
	same  map[Finding]*[]string // group names, by the finding without a name
	names []Finding             // keys of same, in the order of their first
}

// Add takes one in.
func (f *List) Add(severity Severity, where, what, do string) {
	f.all = append(f.all, Finding{severity, where, what, do})
}

// ofGroup is Add for a copy of a group on a shard; no shard: of the group as a whole.
func (f *List) ofGroup(severity Severity, name, shard, what, do string) {
	where := ""
	if shard != "" {
		where = " on shard " + shard
	}
	key := Finding{severity, where, what, strings.ReplaceAll(do, " "+name+" ", " GROUP ")}
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

// Sorted gives all, the worst first.
func (f *List) Sorted() []Finding {
	for _, key := range f.names {
		names := *f.same[key]
		slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
		where := "group " + names[0]
		if len(names) == 1 {
			key.Do = strings.ReplaceAll(key.Do, " GROUP ", " "+names[0]+" ")
		} else {
			where = "groups " + strings.Join(names[:min(len(names), groupsNamed)], ", ")
			if more := len(names) - groupsNamed; more > 0 {
				where += fmt.Sprintf(" and %d more", more)
			}
		}
		key.Where = where + key.Where
		f.all = append(f.all, key)
	}
	slices.SortStableFunc(f.all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Severity), slices.Index(order, b.Severity)),
			cmp.Compare(a.Where, b.Where))
	})
	return f.all
}
