// Package doctor says what is wrong with a store or a volume, how bad that is, and what to do next. It decides from what
// others have looked at: it reads no file and calls nobody.
package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/cli"
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

// Limits of what is told.
const (
	groupsNamed   = 8        // of one finding; the others are counted
	supersededMin = 64 << 20 // bytes of a group that are no matter
)

// Store looks at the shards and groups of a store, as AdminService lists them: one row of groups for each copy. The worst comes first.
func Store(shards []*recordv1.Shard, groups []*recordv1.Group) []Finding {
	var f findings
	paths := map[string]string{}
	versions := map[string][]string{}
	for _, s := range shards {
		paths[s.GetName()] = s.GetPath()
		f.shard(s)
		if v := s.GetVersion(); v != "" && s.GetAlive() {
			versions[v] = append(versions[v], s.GetName())
		}
	}
	if len(versions) > 1 {
		f.add(Note, "shards", fmt.Sprintf("they run %d versions: %s", len(versions), versionWords(versions)), "finish the upgrade")
	}
	led := map[string]bool{}
	unknown := map[string]bool{} // a copy is not served, so that who leads is no question
	for _, g := range groups {
		led[g.GetGroup()] = led[g.GetGroup()] || g.GetLeader()
		switch g.GetState() {
		case recordv1.GroupState_GROUP_STATE_SERVING, recordv1.GroupState_GROUP_STATE_DAMAGED:
		default:
			unknown[g.GetGroup()] = true
		}
		f.group(g, paths[g.GetShard()])
	}
	for name, is := range led {
		if !is && !unknown[name] {
			f.ofGroup(Problem, name, "", "no copy of it leads: writes and reads wait",
				"wait for an election of some seconds; if it stays, start the shards that hold the other copies")
		}
	}
	return f.sorted()
}

// shard looks at one shard.
func (f *findings) shard(s *recordv1.Shard) {
	where := "shard " + s.GetName()
	if !s.GetAlive() {
		f.add(Problem, where, "it does not answer at "+s.GetAddress(),
			"start its process, or read its log; if its disk is lost: docs/operations.md, What is lost")
		return
	}
	if m := s.GetMessage(); m != "" {
		f.add(Problem, where, m, "")
	}
	for _, p := range s.GetProblems() {
		if p != s.GetMessage() {
			f.add(Problem, where, p, "")
		}
	}
	if l := s.GetLoad(); !l.GetDone() && l.GetBytesTotal() > 0 {
		eta := time.Duration(l.GetEtaSeconds() * float64(time.Second)).Round(time.Second)
		f.add(Note, where, fmt.Sprintf("it loads: %d of %d groups, %d%%, about %v left", l.GetGroupsLoaded(), l.GetGroupsTotal(),
			100*l.GetBytesDone()/l.GetBytesTotal(), eta), "wait")
	}
	free, reserve := s.GetFreeBytes(), s.GetReserveBytes()
	room := fmt.Sprintf("%s are free of %s, and %s are kept in reserve", cli.FormatBytes(free), cli.FormatBytes(s.GetCapacityBytes()),
		cli.FormatBytes(reserve))
	const roomDo = "enlarge the volume or delete records; sheaf group compact GROUP --why says what is superseded and still stored"
	switch {
	case s.GetCapacityBytes() <= 0:
	case free <= reserve:
		f.add(Problem, where, room+": writes are refused as DISK_FULL", roomDo)
	case free < 2*reserve:
		f.add(Warning, where, room+": writes will be refused soon", roomDo)
	}
	if limit := s.GetMemoryLimitBytes(); limit > 0 {
		memory := fmt.Sprintf("index and resident data need %s of a memory limit of %s", cli.FormatBytes(s.GetMemoryNeedBytes()), cli.FormatBytes(limit))
		switch need := s.GetMemoryNeedBytes(); {
		case need > limit:
			f.add(Problem, where, memory, "raise --memory-limit, or take residency Index")
		case need > limit/10*9:
			f.add(Warning, where, memory+": writes will be refused soon as MEMORY_FULL", "raise --memory-limit, or take residency Index")
		}
	}
}

// group looks at one copy of a group; path is the folder of its shard's volume.
func (f *findings) group(g *recordv1.Group, path string) {
	name, shard := g.GetGroup(), g.GetShard()
	what := cmp.Or(g.GetMessage(), "its state is "+strings.ToLower(strings.TrimPrefix(g.GetState().String(), "GROUP_STATE_")))
	switch g.GetState() {
	case recordv1.GroupState_GROUP_STATE_DAMAGED:
		if n := len(g.GetDamages()); n > 0 {
			what = fmt.Sprintf("%d places of damage; the first: %s, offset %d", n, g.GetDamages()[0].GetFile(), g.GetDamages()[0].GetOffsetBytes())
		}
		f.ofGroup(Problem, name, shard, what, fmt.Sprintf(
			"sheaf group verify %s names every bad place; put those records again, or give them up: sheaf group accept-loss %s --yes", name, name))
	case recordv1.GroupState_GROUP_STATE_FAILED:
		do := ""
		if !g.GetLost() && path != "" {
			do = "with the shard stopped, sheaf verify " + path + " reads all of it; then start the shard again"
		}
		f.ofGroup(Problem, name, shard, what, do)
	case recordv1.GroupState_GROUP_STATE_UNAVAILABLE:
		f.ofGroup(Problem, name, shard, what, "start the shards that hold it")
	case recordv1.GroupState_GROUP_STATE_PENDING, recordv1.GroupState_GROUP_STATE_LOADING:
		if g.GetMessage() != "" {
			f.ofGroup(Warning, name, shard, what, "")
		}
	}
	for _, m := range g.GetMembers() {
		switch at := cmp.Or(m.GetShard(), "(not known)"); {
		case m.GetRole() == recordv1.MemberRole_MEMBER_ROLE_REMOVED:
		case !m.GetActive():
			f.ofGroup(Warning, name, "", "its copy on shard "+at+" is not heard of: what is written now has one copy less", "start shard "+at)
		case m.GetNeedsFiles():
			f.ofGroup(Note, name, "", "its copy on shard "+at+" is too far behind and is made anew", "wait")
		}
	}
	if s := g.GetSupersededBytes(); s > supersededMin && s > g.GetStoredBytes()/2 {
		f.ofGroup(Note, name, shard, "more than half of what is stored is superseded", "sheaf group compact "+name+" --why says why it is still there")
	}
}

// Tree looks at what a check of volumes found that nobody serves.
func Tree(r *cli.VerifyTreeReport) []Finding {
	var f findings
	for _, p := range r.Problems {
		f.add(Problem, "volume", p, "")
	}
	for i := range r.Groups {
		g := &r.Groups[i]
		where := "group " + g.Group + " in " + g.Dir
		if g.Error != "" {
			f.add(Problem, where, g.Error, "")
		}
		if n := len(g.Damages); n > 0 {
			d := &g.Damages[0]
			f.add(Problem, where, fmt.Sprintf("%d places of damage; the first: %s, offset %d, %d bytes: %s%s", n, d.File, d.Offset, d.Length, d.What,
				cli.IDsWords(d.IDs, d.IDsUnknown)),
				"where other shards hold copies, start the shard: it takes over what is whole; else put the records again, or give them up: "+
					"sheaf verify "+g.Dir+" --repair")
		}
		if g.TornBytes > 0 {
			f.add(Note, where, fmt.Sprintf("a torn tail of %d bytes: writes that were never acknowledged", g.TornBytes), "nothing: the next load cuts it off")
		}
		if g.Joining {
			f.add(Note, where, "the replica is only joining: nothing that counts is there yet", "")
		}
	}
	return f.sorted()
}

// Count counts the findings of one severity.
func Count(all []Finding, severity Severity) (n int) {
	for _, f := range all {
		if f.Severity == severity {
			n++
		}
	}
	return n
}

// findings come together here; those of many groups that say the same become one.
type findings struct {
	all   []Finding
	same  map[Finding]*[]string // group names, by the finding without a name
	names []Finding             // keys of same, in the order of their first
}

func (f *findings) add(severity Severity, where, what, do string) {
	f.all = append(f.all, Finding{severity, where, what, do})
}

// ofGroup is add for a copy of a group on a shard; no shard: of the group as a whole.
func (f *findings) ofGroup(severity Severity, name, shard, what, do string) {
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

// sorted gives all, the worst first.
func (f *findings) sorted() []Finding {
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
		return cmp.Or(cmp.Compare(slices.Index(order, a.Severity), slices.Index(order, b.Severity)), cmp.Compare(a.Where, b.Where))
	})
	return f.all
}

// versionWords is "v1 (a, b), v2 (c)".
func versionWords(versions map[string][]string) string {
	words := make([]string, 0, len(versions))
	for v, shards := range versions {
		slices.Sort(shards)
		named := shards[:min(len(shards), groupsNamed)]
		more := ""
		if n := len(shards) - len(named); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		words = append(words, fmt.Sprintf("%s (%s%s)", v, strings.Join(named, ", "), more))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}
