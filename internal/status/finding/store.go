package finding

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/base/units"
)

// supersededMin is the number of superseded bytes of a group below which they are not reported.
const supersededMin = 64 << 20

// slowSyncsAgo is the age beyond which slow syncs are not reported.
const slowSyncsAgo = time.Hour

// seconds returns s seconds as a duration, rounded to a multiple of to.
func seconds(s float64, to time.Duration) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(to)
}

// Seen is the collected data: shards, and one row of groups for each copy, as AdminService lists them.
type Seen struct {
	Store  []string // what is wrong with the store itself, as a gateway says
	Shards []*recordv1.Shard
	Groups []*recordv1.Group
	// Whole: these are all copies of the store. Otherwise findings do not rely on other copies.
	Whole bool
}

// Of returns what is wrong with the shards and groups in the collected data, the worst first.
func Of(seen Seen) []Finding {
	var f List
	for _, p := range seen.Store {
		f.Add(Problem, "store", p, "")
	}
	paths := map[string]string{}
	versions := map[string][]string{}
	for _, s := range seen.Shards {
		paths[s.GetName()] = s.GetPath()
		f.shard(s)
		if v := s.GetVersion(); v != "" && s.GetAlive() {
			versions[v] = append(versions[v], s.GetName())
		}
	}
	if len(versions) > 1 {
		f.Add(Note, "shards", fmt.Sprintf("they run %d versions: %s", len(versions), versionWords(versions)),
			"finish the upgrade")
	}
	led := map[string]bool{}
	unknown := map[string]bool{} // a copy is not served, so the leader cannot be determined
	for _, g := range seen.Groups {
		if slices.Contains(seen.Store, g.GetMessage()) {
			unknown[g.GetGroup()] = true
			continue // it is told as what is wrong with the store
		}
		led[g.GetGroup()] = led[g.GetGroup()] || g.GetLeader()
		switch g.GetState() {
		case recordv1.GroupState_GROUP_STATE_SERVING, recordv1.GroupState_GROUP_STATE_DAMAGED:
		default:
			unknown[g.GetGroup()] = true
		}
		f.group(g, paths[g.GetShard()])
	}
	for name, is := range led {
		if seen.Whole && !is && !unknown[name] {
			f.ofGroup(Problem, name, "", "no copy of it leads: writes and reads wait",
				"wait for an election of some seconds; if it stays, start the shards that hold the other copies")
		}
	}
	return f.Sorted()
}

// shard checks one shard.
func (f *List) shard(s *recordv1.Shard) {
	where := "shard " + s.GetName()
	if !s.GetAlive() {
		what := "it does not answer at " + s.GetAddress()
		if s.GetAddress() == "" {
			what = fmt.Sprintf("it is not registered, and %d copies of groups are on it", s.GetGroups())
		}
		f.Add(Problem, where, what,
			"start its process, or read its log; if its disk is lost: docs/operations/troubleshooting.md, What is lost")
		return
	}
	if m := s.GetMessage(); m != "" {
		f.Add(Problem, where, m, "")
	}
	for _, p := range s.GetProblems() {
		if p != s.GetMessage() {
			f.Add(Problem, where, p, "")
		}
	}
	if l := s.GetLoad(); !l.GetDone() && l.GetBytesTotal() > 0 {
		eta := time.Duration(l.GetEtaSeconds() * float64(time.Second)).Round(time.Second)
		f.Add(Note, where, fmt.Sprintf("it loads: %d of %d groups, %d%%, about %v left", l.GetGroupsLoaded(),
			l.GetGroupsTotal(),
			100*l.GetBytesDone()/l.GetBytesTotal(), eta), "wait")
	}
	free, reserve := s.GetFreeBytes(), s.GetReserveBytes()
	room := fmt.Sprintf("%s are free of %s, and %s are kept in reserve", units.Bytes(free),
		units.Bytes(s.GetCapacityBytes()),
		units.Bytes(reserve))
	const roomDo = "enlarge the volume or delete records; sheaf group compact GROUP --why says what is superseded and " +
		"still stored"
	switch {
	case s.GetCapacityBytes() <= 0:
	case free <= reserve:
		f.Add(Problem, where, room+": writes are refused as DISK_FULL", roomDo)
	case free < 2*reserve:
		f.Add(Warning, where, room+": writes will be refused soon", roomDo)
	}
	if slow := s.GetSlowSyncs(); slow.GetTotal() > 0 && slow.GetNewestSecondsAgo() <= slowSyncsAgo.Seconds() {
		f.Add(Warning, where, fmt.Sprintf(
			"%d syncs took longer than half a second since it started; the last one, of a file of kind %s, %v, %v ago: writes "+
				"wait for them",
			slow.GetTotal(), slow.GetNewestFile(), seconds(slow.GetNewestSeconds(), time.Millisecond),
			seconds(slow.GetNewestSecondsAgo(), time.Second)),
			"see what else uses the disk, and whether it fails (dmesg, smartctl); /status of the shard has the last syncs "+
				"that were slow")
	}
	// A shard in the state MEMORY_TOO_SMALL already says this in its message.
	if limit := s.GetMemoryLimitBytes(); limit > 0 && s.GetState() != recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL {
		memory := fmt.Sprintf("index and resident data need %s of a memory limit of %s", units.Bytes(s.GetMemoryNeedBytes()),
			units.Bytes(limit))
		switch need := s.GetMemoryNeedBytes(); {
		case need > limit:
			f.Add(Problem, where, memory, "raise --memory-limit, or take residency Index")
		case need > limit/10*9:
			f.Add(Warning, where, memory+": writes will be refused soon as MEMORY_FULL",
				"raise --memory-limit, or take residency Index")
		}
	}
}

// group checks one copy of a group; path is the folder of its shard's volume.
func (f *List) group(g *recordv1.Group, path string) {
	name, shard := g.GetGroup(), g.GetShard()
	what := cmp.Or(g.GetMessage(), "its state is "+strings.ToLower(strings.TrimPrefix(g.GetState().String(),
		"GROUP_STATE_")))
	switch g.GetState() {
	case recordv1.GroupState_GROUP_STATE_DAMAGED:
		if n := len(g.GetDamages()); n > 0 {
			what = fmt.Sprintf("%d places of damage; the first: %s, offset %d", n, g.GetDamages()[0].GetFile(),
				g.GetDamages()[0].GetOffsetBytes())
		}
		f.ofGroup(Problem, name, shard, what, fmt.Sprintf(
			"sheaf group verify %s names every bad place; put those records again, or give them up: sheaf group accept-loss "+
				"%s --yes", name, name))
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
			f.ofGroup(Warning, name, "", "its copy on shard "+at+" is not heard of: what is written now has one copy less",
				"start shard "+at)
		case m.GetNeedsFiles():
			f.ofGroup(Note, name, "", "its copy on shard "+at+" is too far behind and is made anew", "wait")
		}
	}
	if s := g.GetSupersededBytes(); s > supersededMin && s > g.GetStoredBytes()/2 {
		f.ofGroup(Note, name, shard, "more than half of what is stored is superseded",
			"sheaf group compact "+name+" --why says why it is still there")
	}
}

// versionWords returns text like "v1 (a, b), v2 (c)".
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
