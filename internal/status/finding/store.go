package finding

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/units"
)

// supersededMin is the number of superseded bytes above which a finding reports a group's superseded data.
const supersededMin = 64 << 20

// slowSyncsAgo is the age beyond which slow syncs are not reported. A disk that was slow only in the past deserves no
// warning.
const slowSyncsAgo = 10 * time.Minute

// seconds converts a number of seconds to a duration, and rounds it to a multiple of a unit.
func seconds(s float64, to time.Duration) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(to)
}

// Facts holds the collected data. These are the shards, and one row in Groups for each copy, as AdminService lists
// them.
type Facts struct {
	Store    []string // problems of the store itself, as a gateway reports them
	Warnings []string // warnings about the store itself, as a gateway reports them
	Shards   []*recordv1.Shard
	Groups   []*recordv1.Group
	// Whole means that Groups lists all copies of the store. If it is false, no finding says that something is missing.
	Whole bool
	// Managed means that the Kubernetes operator runs the processes. If it is true, no next step tells an
	// administrator to start a process.
	Managed bool
}

// Listed returns the facts of a whole store from the two lists of AdminService.
func Listed(shards *recordv1.ListShardsResponse, groups *recordv1.ListGroupsResponse) Facts {
	return Facts{Store: shards.GetProblems(), Warnings: shards.GetWarnings(), Shards: shards.GetShards(),
		Groups: groups.GetGroups(), Whole: true}
}

// HasLost reports whether the data of a copy is missing on the volume of its shard.
func (f *Facts) HasLost() bool { return slices.ContainsFunc(f.Groups, (*recordv1.Group).GetLost) }

// IsNeeded reports whether a group with a copy on the shard is not served because at least half of its copies do not
// respond or have failed. A fault of such a shard is a problem even if it has a harmless explanation, such as a
// restart.
func (f *Facts) IsNeeded(shard string) bool {
	copies, away, led, here := map[string]int{}, map[string]int{}, map[string]bool{}, map[string]bool{}
	for _, g := range f.Groups {
		name := g.GetGroup()
		copies[name]++
		led[name] = led[name] || g.GetLeader()
		here[name] = here[name] || g.GetShard() == shard
		switch g.GetState() {
		case recordv1.GroupState_GROUP_STATE_UNAVAILABLE, recordv1.GroupState_GROUP_STATE_FAILED:
			away[name]++
		}
	}
	for name, is := range here {
		if is && !led[name] && 2*away[name] >= copies[name] {
			return true
		}
	}
	return false
}

// Of returns what is wrong with the shards and groups in the collected data, sorted from worst to least serious.
func Of(seen Facts) []Finding {
	f := List{managed: seen.Managed}
	for _, p := range seen.Store {
		f.Add(StoreProblem, "store", p, "")
	}
	for _, w := range seen.Warnings {
		f.Add(StoreLimit, "store", w, "")
	}
	st := gather(seen)
	versions := map[string][]string{}
	for _, s := range seen.Shards {
		f.shard(s, st.lacks[s.GetName()])
		if v := s.GetVersion(); v != "" && s.GetAlive() {
			versions[v] = append(versions[v], s.GetName())
		}
	}
	if len(versions) > 1 {
		f.Add(ShardVersions, "shards", fmt.Sprintf("they run %d versions: %s", len(versions), versionWords(versions)),
			"finish the upgrade")
	}
	odd := map[string]bool{} // groups whose key in etcd cannot be read
	for _, g := range seen.Groups {
		if slices.Contains(seen.Store, g.GetMessage()) {
			odd[g.GetGroup()] = true
			continue // a problem of the store already reports this
		}
		f.group(g, st)
	}
	if seen.Whole && len(seen.Shards) == 0 {
		what := "no shard runs, so that nothing is served"
		if st.waits != "" {
			what += ": " + st.waits
		}
		f.Add(NoShards, "store", what, f.byHand("start shards, at least as many as a group has copies: sheaf shard --help"))
		return f.Sorted()
	}
	for name, g := range st.groups {
		switch {
		case !seen.Whole || odd[name] || g.led || g.loading || g.unserved():
		case g.pending == g.copies:
			f.ofGroup(GroupNotMade, name, "", strings.TrimSuffix("it is not served yet, writes and reads wait: "+g.waits, ": "),
				f.byHand("start more shards, or wait where all run"))
		default:
			f.ofGroup(GroupLeaderless, name, "", "no copy of it leads: writes and reads wait",
				f.byHand("wait for an election of some seconds; if it stays, start the shards that hold the other copies"))
		}
	}
	return f.Sorted()
}

// summary indexes the facts by shard and by group.
type summary struct {
	shards map[string]*recordv1.Shard
	groups map[string]*copies
	lacks  map[string]*lack // for each shard that does not serve all of its groups
	stuck  map[string]bool  // copies that are reported as separate findings; a key is group/shard
	here   map[string]bool  // copies that are served and have all their files; a key is group/shard
	waits  string           // why a group is not placed; empty if every group is placed, or if the reason is unknown
	whole  bool             // value of Facts.Whole
}

// copies summarizes the rows of one group.
type copies struct {
	copies, pending int
	stuck           int      // number of copies with their own finding, which explains why they cannot lead
	silent          []string // shards with a finding that explains why their copy is not served
	led, loading    bool
	waits           string
}

// unserved reports whether the group has no leader because too many of its copies are stuck: the remaining copies are
// not a majority.
func (c *copies) unserved() bool { return !c.led && c.stuck > 0 && 2*c.stuck >= c.copies }

// lack describes the effect on the store of a shard that does not serve all of its groups.
type lack struct {
	part     bool     // the shard serves some of its groups
	less     int      // number of groups that are served with one copy fewer than usual
	unserved []string // names of the groups that are not served
	own      int      // number of the shard's groups for which it is unknown whether other shards serve them
}

// servesNothing reports whether a shard runs, serves none of its groups, and has a message that explains why.
func servesNothing(s *recordv1.Shard) bool {
	switch s.GetState() {
	case recordv1.ShardState_SHARD_STATE_UNSPECIFIED, recordv1.ShardState_SHARD_STATE_SERVING,
		recordv1.ShardState_SHARD_STATE_LOADING, recordv1.ShardState_SHARD_STATE_DRAINING,
		recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL: // in this state, a shard serves the groups that fit into memory
		return false
	}
	return s.GetAlive() && s.GetMessage() != ""
}

// servesSome reports whether a shard serves only the groups that fit into its memory. The message of each group that it
// does not serve contains the shard's message.
func servesSome(s *recordv1.Shard) bool {
	return s.GetAlive() && s.GetState() == recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL && s.GetMessage() != ""
}

// stick records that a separate finding reports a copy as stuck.
func (st *summary) stick(g *copies, row *recordv1.Group) {
	g.stuck++
	st.stuck[row.GetGroup()+"/"+row.GetShard()] = true
}

// isOut reports whether a shard is silent or serves nothing.
func (st *summary) isOut(shard string) bool { return st.lacks[shard] != nil && !st.lacks[shard].part }

// isCaused reports whether a copy is not served because of a problem that the finding about its shard reports.
func (st *summary) isCaused(row *recordv1.Group) bool {
	l := st.lacks[row.GetShard()]
	if row.GetState() == recordv1.GroupState_GROUP_STATE_FAILED {
		return l != nil && l.part && strings.Contains(row.GetMessage(), st.shards[row.GetShard()].GetMessage())
	}
	return st.isOut(row.GetShard())
}

// gather collects the rows of each group. It also records which shards are silent, which serve nothing, and which
// serve only some of their groups.
func gather(seen Facts) *summary {
	st := &summary{
		shards: map[string]*recordv1.Shard{}, groups: map[string]*copies{}, lacks: map[string]*lack{},
		stuck: map[string]bool{}, here: map[string]bool{}, whole: seen.Whole,
	}
	for _, s := range seen.Shards {
		st.shards[s.GetName()] = s
		if part := servesSome(s); part || !s.GetAlive() || servesNothing(s) {
			st.lacks[s.GetName()] = &lack{part: part}
		}
	}
	for _, row := range seen.Groups {
		g := st.groups[row.GetGroup()]
		if g == nil {
			g = &copies{}
			st.groups[row.GetGroup()] = g
		}
		g.copies++
		g.led = g.led || row.GetLeader()
		switch row.GetState() {
		case recordv1.GroupState_GROUP_STATE_PENDING:
			g.pending++
			g.waits = cmp.Or(g.waits, row.GetMessage())
			st.waits = cmp.Or(st.waits, row.GetMessage())
			load := st.shards[row.GetShard()].GetLoad()
			g.loading = g.loading || load != nil && !load.GetDone()
		case recordv1.GroupState_GROUP_STATE_LOADING:
			g.loading = true
		case recordv1.GroupState_GROUP_STATE_UNAVAILABLE, recordv1.GroupState_GROUP_STATE_FAILED:
			st.stick(g, row)
			if st.isCaused(row) {
				g.silent = append(g.silent, row.GetShard())
			}
		default:
			st.here[row.GetGroup()+"/"+row.GetShard()] = row.GetCopy() == nil
			if cannotWrite(row) {
				st.stick(g, row)
			}
		}
	}
	for name, g := range st.groups {
		for _, shard := range g.silent {
			switch l := st.lacks[shard]; {
			case !seen.Whole:
				l.own++
			case g.unserved():
				l.unserved = append(l.unserved, name)
			default:
				l.less++
			}
		}
	}
	return st
}

// These strings begin a gateway's messages about etcd. The first says that etcd does not respond, the second that the
// gateway ignores the contents of etcd.
const (
	EtcdSilent = "Without etcd for "
	EtcdHeld   = "What etcd says is not followed: "
)

// WritesWait begins the message of a copy that cannot be written while there is not enough space, memory or file
// descriptors. Writes to the copy resume without a restart when there is enough.
const WritesWait = "reads are served, writes wait: "

// WritesAwait begins the message of a copy of a restored group that accepts no writes until more copies have joined.
const WritesAwait = "reads are served, writes wait for copies: "

// These strings occur in the message of a copy whose writes wait for space or memory. They come from errors of the
// packages that store groups.
const (
	lacksSpace  = "no free space on the volume"
	lacksMemory = "memory budget exceeded"
)

// fullShard reports whether a finding about a shard's full disk or memory already explains why writes to a copy wait.
func (f *List) fullShard(g *recordv1.Group) bool {
	return slices.ContainsFunc(f.all, func(one Finding) bool {
		return one.Where == "shard "+g.GetShard() &&
			(one.Kind == DiskFull && strings.Contains(g.GetMessage(), lacksSpace) ||
				one.Kind == MemoryFull && strings.Contains(g.GetMessage(), lacksMemory))
	})
}

// cannotWrite reports whether a copy is served but has a message, which then explains why it cannot be written.
func cannotWrite(g *recordv1.Group) bool {
	return g.GetState() == recordv1.GroupState_GROUP_STATE_SERVING && g.GetMessage() != "" &&
		!strings.HasPrefix(g.GetMessage(), WritesAwait)
}

// shard adds the findings about one shard. If the shard does not serve all of its groups, l describes what the store
// lacks because of that. Otherwise l is nil.
func (f *List) shard(s *recordv1.Shard, l *lack) {
	where := "shard " + s.GetName()
	if f.placement(where, s); s.GetPlacementState() == recordv1.PlacementState_PLACEMENT_STATE_DRAINING &&
		!s.GetAlive() && s.GetPlacedGroups() == 0 {
		return // a drained shard without groups was stopped on purpose
	}
	if !s.GetAlive() {
		what := "it does not answer at " + s.GetAddress()
		if s.GetAddress() == "" {
			what = fmt.Sprintf("it is not registered, and %d copies of groups are on it", s.GetGroups())
		}
		do := "start its process, or read its log"
		if s.GetPlacementState() != recordv1.PlacementState_PLACEMENT_STATE_DRAINING {
			do += "; if it does not come back: sheaf shards drain " + s.GetName()
		}
		f.Add(ShardSilent, where, what+l.words(),
			f.byHand(do+"; if its disk is lost: docs/operations/troubleshooting.md, What is lost"))
		return
	}
	if m := s.GetMessage(); m != "" {
		f.Add(ShardState, where, m+l.words(), "")
	}
	for _, p := range s.GetProblems() {
		if p != s.GetMessage() {
			f.Add(ShardProblem, where, p, "")
		}
	}
	if l := s.GetLoad(); !l.GetDone() && l.GetBytesTotal() > 0 {
		eta := time.Duration(l.GetEtaSeconds() * float64(time.Second)).Round(time.Second)
		f.Add(ShardLoads, where, fmt.Sprintf("it loads: %d of %d groups, %d%%, about %v left", l.GetGroupsLoaded(),
			l.GetGroupsTotal(), 100*l.GetBytesDone()/l.GetBytesTotal(), eta), "wait")
	}
	free, reserve := s.GetFreeBytes(), s.GetReserveBytes()
	space := fmt.Sprintf("%s are free of %s, and %s are kept in reserve", units.Bytes(free),
		units.Bytes(s.GetCapacityBytes()), units.Bytes(reserve))
	// recordBytesMax is the size of the largest record that is not a blob. A volume without space for such a record
	// counts as full.
	const recordBytesMax = 1 << 20
	const spaceAdvice = "enlarge the volume or delete records; sheaf group compact GROUP --why says what is " +
		"superseded and still stored"
	switch {
	case s.GetCapacityBytes() <= 0:
	case free < reserve+recordBytesMax:
		f.Add(DiskFull, where, space+": writes are refused as DISK_FULL", spaceAdvice)
	case free < 2*reserve:
		f.Add(DiskNearlyFull, where, space+": writes will be refused soon", spaceAdvice)
	}
	if slow := s.GetSlowSyncs(); slow.GetTotal() > 0 && slow.GetNewestSecondsAgo() <= slowSyncsAgo.Seconds() {
		f.Add(SlowSyncs, where, fmt.Sprintf(
			"%s longer than half a second since it started; the last one, of a file of kind %s, %v, %v ago: writes wait for it",
			units.Count(slow.GetTotal(), "sync took", "syncs took"), slow.GetNewestFile(),
			seconds(slow.GetNewestSeconds(), time.Millisecond), seconds(slow.GetNewestSecondsAgo(), time.Second)),
			"see what else uses the disk, and whether it fails (dmesg, smartctl); /status of the shard has the last syncs "+
				"that were slow")
	}
	// The message of a shard in the state MEMORY_TOO_SMALL already reports that memory is short.
	if limit := s.GetMemoryLimitBytes(); limit > 0 && s.GetState() != recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL {
		// The need was computed when the shard started, so the usage may have outgrown it.
		need := max(s.GetMemoryNeedBytes(), s.GetMemoryUsedBytes())
		memory := fmt.Sprintf("index and resident data need %s of a memory limit of %s", units.Bytes(need),
			units.Bytes(limit))
		switch {
		case need > limit:
			f.Add(MemoryFull, where, memory, "raise --memory-limit, or take residency Index")
		case need > limit/10*9:
			f.Add(MemoryNearlyFull, where, memory+": writes will be refused soon as MEMORY_FULL",
				"raise --memory-limit, or take residency Index")
		}
	}
}

// placement adds a finding for a shard that an administrator has cordoned or drained.
func (f *List) placement(where string, s *recordv1.Shard) {
	name, groups := s.GetName(), units.Count(int64(s.GetPlacedGroups()), "group", "groups")
	switch s.GetPlacementState() {
	case recordv1.PlacementState_PLACEMENT_STATE_CORDONED:
		f.Add(ShardCordoned, where, "it gets no new groups, as it is cordoned",
			f.byHand("sheaf shards activate "+name+" ends that"))
	case recordv1.PlacementState_PLACEMENT_STATE_DRAINING:
		switch {
		case s.GetPlacedGroups() == 0 && s.GetAlive():
			f.Add(ShardDrained, where, "it is drained", f.byHand("stop its process, then: sheaf shards remove "+name))
		case s.GetPlacedGroups() == 0:
			f.Add(ShardDrained, where, "it is drained, and does not run", f.byHand("sheaf shards remove "+name))
		case s.GetPlacementWaits() != "":
			f.Add(DrainWaits, where, groups+" cannot leave it, though it is being drained: "+s.GetPlacementWaits(),
				f.byHand("start more shards, or take it back: sheaf shards activate "+name))
		default:
			f.Add(ShardDraining, where, "it is being drained: "+groups+" left", "wait; sheaf moves shows how far they are")
		}
	}
}

// words describes the effect on the store in words. It returns an empty string if l is nil.
func (l *lack) words() (words string) {
	if l == nil {
		return ""
	}
	if n := len(l.unserved); n > 0 {
		SortNames(l.unserved)
		words += fmt.Sprintf("; without it too few copies are well to serve %s", named(l.unserved))
	}
	if l.own > 0 {
		words += fmt.Sprintf("; %s not served by it", units.Count(int64(l.own), "group is", "groups are"))
	}
	if l.less > 0 {
		words += fmt.Sprintf("; %s served with one copy less", units.Count(int64(l.less), "group is", "groups are"))
	}
	return words
}

// group adds the findings about one copy of a group. It adds none for a fault caused by a shard that is silent or
// serves nothing, because the finding about that shard already covers the fault.
func (f *List) group(g *recordv1.Group, st *summary) {
	name, shard, path := g.GetGroup(), g.GetShard(), st.shards[g.GetShard()].GetPath()
	what := cmp.Or(g.GetMessage(), "its state is "+strings.ToLower(strings.TrimPrefix(g.GetState().String(),
		"GROUP_STATE_")))
	switch g.GetState() {
	case recordv1.GroupState_GROUP_STATE_DAMAGED:
		if n := len(g.GetDamages()); n > 0 {
			what = fmt.Sprintf("%s; the first: %s, offset %d", Places(max(n, int(g.GetDamagesTotal()))),
				g.GetDamages()[0].GetFile(), g.GetDamages()[0].GetOffsetBytes())
		}
		f.ofGroup(GroupDamaged, name, shard, what, fmt.Sprintf(
			"sheaf group verify %s names every bad place; put those records again, or give them up: sheaf group accept-loss "+
				"%s --yes", name, name))
	case recordv1.GroupState_GROUP_STATE_FAILED:
		do := ""
		switch {
		case g.GetLost() && st.whole && !st.groups[name].led:
			do = "bring back what its shards have lost, or restore its records from a backup"
		case !g.GetLost() && path != "" && !f.managed:
			do = "with the shard stopped, sheaf verify " + path + " reads all of it; then start the shard again"
		}
		if !st.isCaused(g) {
			f.ofGroup(GroupFailed, name, shard, what, do)
		}
	case recordv1.GroupState_GROUP_STATE_UNAVAILABLE:
		if !st.isCaused(g) {
			f.ofGroup(GroupUnanswered, name, shard, what, f.byHand("start the shards that hold it"))
		}
	case recordv1.GroupState_GROUP_STATE_SERVING:
		switch wait := strings.HasPrefix(g.GetMessage(), WritesWait); {
		case strings.HasPrefix(g.GetMessage(), WritesAwait):
			f.ofGroup(GroupReadOnly, name, shard, what,
				"writes begin by themselves when the other copies have joined: sheaf moves shows how far they are")
		case wait && f.fullShard(g): // the finding about the shard already gives the reason
		case wait:
			f.ofGroup(GroupReadOnly, name, shard, what,
				"give it what lacks: space, memory or file descriptors (ulimit -n, LimitNOFILE); then writes go on by themselves")
		case cannotWrite(g):
			f.ofGroup(GroupReadOnly, name, shard, what,
				f.byHand("repair what it names (of a disk dmesg says more), then start shard "+shard+" again"))
		}
	case recordv1.GroupState_GROUP_STATE_PENDING, recordv1.GroupState_GROUP_STATE_LOADING:
		if g.GetMessage() != "" && (!st.whole || st.groups[name].led) { // a group without a leader has a finding of its own
			f.ofGroup(CopyWaits, name, shard, what, "")
		}
	}
	for _, m := range g.GetMembers() {
		switch at := cmp.Or(m.GetShard(), "(not known)"); {
		case m.GetRole() == recordv1.MemberRole_MEMBER_ROLE_REMOVED, st.isOut(m.GetShard()):
		case !m.GetActive() && st.stuck[name+"/"+m.GetShard()]: // the finding about the copy gives the reason
		case !m.GetActive() && m.GetRole() == recordv1.MemberRole_MEMBER_ROLE_LEARNER:
			// A learner that does not have its files yet is fetching them from the leader, and its own shard reports any
			// errors.
			if st.here[name+"/"+m.GetShard()] {
				f.ofGroup(CopySilent, name, "", "its new copy on shard "+at+" has its files, and the leader on shard "+shard+
					" does not hear it: it gets no vote", "see that shard "+shard+" reaches shard "+at)
			}
		case !m.GetActive():
			f.ofGroup(CopySilent, name, "", "its copy on shard "+at+" is not heard of: what is written now has one copy less",
				f.byHand("start shard "+at))
		case m.GetNeedsFiles():
			f.ofGroup(CopyBehind, name, "", "its copy on shard "+at+" is too far behind and is copied again", "wait")
		}
	}
	if s := g.GetSupersededBytes(); s > supersededMin && s > g.GetStoredBytes()/2 {
		f.ofGroup(Superseded, name, shard, "more than half of what is stored is superseded",
			"sheaf group compact "+name+" --why says why it is still there")
	}
}

// Places formats a number of damaged places, as in "1 place of damage".
func Places(n int) string { return units.Count(int64(n), "place of damage", "places of damage") }

// versionWords returns a string like "v1 (a, b), v2 (c)".
func versionWords(versions map[string][]string) string {
	words := make([]string, 0, len(versions))
	for v, shards := range versions {
		slices.Sort(shards)
		words = append(words, fmt.Sprintf("%s (%s)", v, units.Some(shards, groupsNamed)))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}
