package finding

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

func wellShard(name string) *recordv1.Shard {
	return &recordv1.Shard{
		Name: name, Alive: true, Address: name + ":7610", Path: "/data/" + name, Version: "v1", CapacityBytes: 100 << 30,
		FreeBytes:    50 << 30,
		ReserveBytes: 1 << 30, MemoryNeedBytes: 1 << 20, MemoryLimitBytes: 1 << 30, Load: &recordv1.Load{Done: true},
	}
}

func wellGroup(name, shard string, leader bool) *recordv1.Group {
	return &recordv1.Group{Group: name, Shard: shard, State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: leader}
}

func TestHealthyStoreHasNoFindings(t *testing.T) {
	found := Of(Facts{
		Shards: []*recordv1.Shard{wellShard("a"), wellShard("b")},
		Groups: []*recordv1.Group{wellGroup("0", "a", true), wellGroup("0", "b", false), wellGroup("1", "b", true)},
		Whole:  true,
	})
	if len(found) != 0 {
		t.Fatalf("%+v", found)
	}
}

func TestEachDefectIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		shard    func(s *recordv1.Shard)
		group    func(g *recordv1.Group)
		severity Severity
		where    string
		words    []string // substrings that the finding must contain, in what is wrong or in what to do
	}{
		"silent shard": {shard: func(s *recordv1.Shard) {
			s.Alive = false
		}, severity: Problem, where: "shard a", words: []string{"a:7610", "start"}},
		"shard message": {shard: func(s *recordv1.Shard) {
			s.Message = "etcd is away"
		}, severity: Problem, where: "shard a", words: []string{"etcd is away"}},
		"shard problem": {shard: func(s *recordv1.Shard) {
			s.Problems = []string{"a journal is kept"}
		}, severity: Problem, where: "shard a",
			words: []string{"journal"}},
		"loading": {shard: func(s *recordv1.Shard) {
			s.Load = &recordv1.Load{GroupsTotal: 4, GroupsLoaded: 1, BytesTotal: 200, BytesDone: 50, EtaSeconds: 3}
		}, severity: Note, where: "shard a", words: []string{"1 of 4", "25%", "3s"}},
		"cordoned": {shard: func(s *recordv1.Shard) {
			s.PlacementState = recordv1.PlacementState_PLACEMENT_STATE_CORDONED.Enum()
		}, severity: Note, where: "shard a", words: []string{"no new groups", "activate a"}},
		"draining": {shard: func(s *recordv1.Shard) {
			s.PlacementState, s.PlacedGroups = recordv1.PlacementState_PLACEMENT_STATE_DRAINING.Enum(), new(int32(1))
		}, severity: Note, where: "shard a", words: []string{"1 group left", "sheaf moves"}},
		"cannot be drained": {shard: func(s *recordv1.Shard) {
			s.PlacementState, s.PlacedGroups = recordv1.PlacementState_PLACEMENT_STATE_DRAINING.Enum(), new(int32(3))
			s.PlacementWaits = new("needs 3 shards")
		}, severity: Warning, where: "shard a", words: []string{"3 groups cannot leave", "needs 3 shards"}},
		"drained": {shard: func(s *recordv1.Shard) {
			s.PlacementState = recordv1.PlacementState_PLACEMENT_STATE_DRAINING.Enum()
		}, severity: Note, where: "shard a", words: []string{"stop its process, then: sheaf shards remove a"}},
		"drained and stopped": {shard: func(s *recordv1.Shard) {
			s.PlacementState, s.Alive = recordv1.PlacementState_PLACEMENT_STATE_DRAINING.Enum(), false
		}, severity: Note, where: "shard a", words: []string{"sheaf shards remove a"}},
		"full": {shard: func(s *recordv1.Shard) {
			s.FreeBytes = s.ReserveBytes
		}, severity: Problem, where: "shard a", words: []string{"DISK_FULL", "--why"}},
		"nearly full": {shard: func(s *recordv1.Shard) {
			s.FreeBytes = s.ReserveBytes + 1<<20
		}, severity: Warning, where: "shard a", words: []string{"soon"}},
		"memory": {shard: func(s *recordv1.Shard) {
			s.MemoryNeedBytes = s.MemoryLimitBytes + 1
		}, severity: Problem, where: "shard a", words: []string{"Index"}},
		"near memory": {shard: func(s *recordv1.Shard) {
			s.MemoryNeedBytes = s.MemoryLimitBytes
		}, severity: Warning, where: "shard a",
			words: []string{"MEMORY_FULL"}},
		"slow syncs": {shard: func(s *recordv1.Shard) {
			s.SlowSyncs = &recordv1.SlowSyncs{Total: 3, NewestSecondsAgo: 12, NewestSeconds: 1.5, NewestFile: "segment"}
		}, severity: Warning, where: "shard a", words: []string{"3 syncs", "12s ago", "1.5s", "segment"}},
		"damaged": {group: func(g *recordv1.Group) {
			g.State, g.Damages = recordv1.GroupState_GROUP_STATE_DAMAGED,
				[]*recordv1.Damage{{File: "segment-1", OffsetBytes: 4096}}
		}, severity: Problem, where: "group 7 on shard a", words: []string{"segment-1", "4096",
			"sheaf group accept-loss 7 --yes", "sheaf group verify 7 names"}},
		"failed": {group: func(g *recordv1.Group) {
			g.State, g.Message = recordv1.GroupState_GROUP_STATE_FAILED, "manifest is gone"
		},
			severity: Problem, where: "group 7 on shard a", words: []string{"manifest is gone", "sheaf verify /data/a"}},
		"unavailable": {group: func(g *recordv1.Group) { g.State, g.Shard = recordv1.GroupState_GROUP_STATE_UNAVAILABLE, "" },
			severity: Problem, where: "group 7", words: []string{"unavailable", "start the shards"}},
		"no leader": {group: func(g *recordv1.Group) {
			g.Leader = false
		}, severity: Problem, where: "group 7", words: []string{"leads", "election"}},
		"cannot write": {group: func(g *recordv1.Group) {
			g.Leader, g.Message = false, "reads are served, writes are not: append:\nread-only file system"
		}, severity: Problem, where: "group 7 on shard a", words: []string{"append: read-only file system",
			"start shard a again"}},
		"cannot write for now": {group: func(g *recordv1.Group) {
			g.Leader, g.Message = false, WritesWait+"open segment-2: too many open files"
		}, severity: Problem, where: "group 7 on shard a", words: []string{"too many open files", "by themselves"}},
		"restored, and copies are missing": {group: func(g *recordv1.Group) {
			g.Message = WritesAwait + "group 7 was restored and has 1 of the 2 copies"
		}, severity: Problem, where: "group 7 on shard a", words: []string{"1 of the 2 copies", "sheaf moves"}},
		"not served yet": {group: func(g *recordv1.Group) {
			g.Leader, g.State, g.Message = false, recordv1.GroupState_GROUP_STATE_PENDING, "needs 3 shards"
		}, severity: Problem, where: "group 7", words: []string{"not served yet", "needs 3 shards", "start"}},
		"quiet copy": {group: func(g *recordv1.Group) {
			g.Members = []*recordv1.Member{{Shard: "a", Active: true}, {Shard: "b"}}
		}, severity: Warning, where: "group 7", words: []string{"start shard b"}},
		"copy made anew": {group: func(g *recordv1.Group) {
			g.Members = []*recordv1.Member{{Shard: "b", Active: true, NeedsFiles: true}}
		}, severity: Note, where: "group 7", words: []string{"copied again"}},
		"superseded": {group: func(g *recordv1.Group) {
			g.StoredBytes, g.SupersededBytes = 1<<30, 1<<30-1
		}, severity: Note, where: "group 7 on shard a",
			words: []string{"sheaf group compact 7 --why"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, g := wellShard("a"), wellGroup("7", "a", true)
			if c.shard != nil {
				c.shard(s)
			}
			if c.group != nil {
				c.group(g)
			}
			found := Of(Facts{Shards: []*recordv1.Shard{s}, Groups: []*recordv1.Group{g}, Whole: true})
			if len(found) != 1 || found[0].Severity != c.severity || found[0].Where != c.where {
				t.Fatalf("%+v", found)
			}
			if rule, ok := RuleOf(found[0].Kind); !ok || rule.Severity != c.severity {
				t.Errorf("the rule of %s is %+v", found[0].Kind, rule)
			}
			for _, w := range c.words {
				if !strings.Contains(found[0].What+"; "+found[0].Do, w) {
					t.Errorf("%+v does not say %q", found[0], w)
				}
			}
		})
	}
}

func TestManyGroupsWithOneCauseAreOneFinding(t *testing.T) {
	var groups []*recordv1.Group
	for n := range 1000 {
		groups = append(groups, &recordv1.Group{Group: fmt.Sprint(n), State: recordv1.GroupState_GROUP_STATE_UNAVAILABLE})
	}
	found := Of(Facts{Shards: []*recordv1.Shard{wellShard("a")}, Groups: groups, Whole: true})
	if len(found) != 1 || found[0].Where != "groups 0, 1, 2, 3, 4, 5, 6, 7 and 992 more" {
		t.Fatalf("%+v", found)
	}
}

func TestTheWorstComesFirst(t *testing.T) {
	loading, silent, newer := wellShard("a"), wellShard("b"), wellShard("c")
	loading.Load = &recordv1.Load{BytesTotal: 1}
	silent.Alive = false
	newer.Version = "v2"
	nearly := wellShard("d")
	nearly.FreeBytes = nearly.ReserveBytes + 1<<20
	var got []string
	for _, f := range Of(Facts{Shards: []*recordv1.Shard{loading, silent, newer, nearly}}) {
		got = append(got, string(f.Severity)+" "+f.Where)
	}
	if want := "problem shard b, warning shard d, note shard a, note shards"; strings.Join(got, ", ") != want {
		t.Fatalf("%v", got)
	}
}

// TestHarmlessReportsCauseNoFinding checks that there is no finding if only one copy does not know the leader, or if
// syncs were slow only long ago.
func TestHarmlessReportsCauseNoFinding(t *testing.T) {
	s := wellShard("a")
	s.SlowSyncs = &recordv1.SlowSyncs{Total: 3, NewestSecondsAgo: 601, NewestSeconds: 1.5, NewestFile: "segment"}
	if found := Of(Facts{Shards: []*recordv1.Shard{s}, Groups: []*recordv1.Group{wellGroup("0", "a",
		false)}}); len(found) != 0 {
		t.Fatalf("%+v", found)
	}
}

// awayRow returns the row that a gateway reports for a copy whose shard does not respond.
func awayRow(name, shard string) *recordv1.Group {
	return &recordv1.Group{Group: name, Shard: shard, State: recordv1.GroupState_GROUP_STATE_UNAVAILABLE,
		Message: "the shard does not answer for this group"}
}

// TestOneSilentShardIsOneFinding checks that a silent shard causes only one finding, although its groups, their leaders
// and the other copies also report the effects.
func TestOneSilentShardIsOneFinding(t *testing.T) {
	silent := wellShard("c")
	silent.Alive = false
	seen := Facts{Shards: []*recordv1.Shard{wellShard("a"), wellShard("b"), silent}, Whole: true}
	for _, name := range []string{"0", "1", "2"} {
		leader := wellGroup(name, "a", true)
		leader.Members = []*recordv1.Member{{Shard: "a", Active: true}, {Shard: "b", Active: true}, {Shard: "c"}}
		seen.Groups = append(seen.Groups, leader, wellGroup(name, "b", false), awayRow(name, "c"))
	}
	seen.Groups = append(seen.Groups, awayRow("10", "c"), awayRow("9", "c"))
	found := Of(seen)
	if len(found) != 1 || found[0].Severity != Problem || found[0].Where != "shard c" {
		t.Fatalf("%+v", found)
	}
	for _, words := range []string{"to serve groups 9, 10;", "3 groups are served with one copy less"} {
		if !strings.Contains(found[0].What, words) {
			t.Errorf("%q does not say %q", found[0].What, words)
		}
	}
	if !strings.Contains(found[0].Do, "sheaf shards drain c") {
		t.Errorf("%q", found[0].Do)
	}
}

// TestAStoreWithoutShardsHasOneProblem checks that a store without a running shard has one problem, with or without
// groups. The problem includes the reason why the planner waits.
func TestAStoreWithoutShardsHasOneProblem(t *testing.T) {
	for name, groups := range map[string][]*recordv1.Group{
		"no groups": nil,
		"groups": {
			{Group: "0", State: recordv1.GroupState_GROUP_STATE_PENDING, Message: "the first placement waits"},
			{Group: "1", State: recordv1.GroupState_GROUP_STATE_PENDING, Message: "the first placement waits"},
		},
	} {
		found := Of(Facts{Groups: groups, Whole: true})
		if len(found) != 1 || found[0].Severity != Problem || found[0].Where != "store" ||
			groups != nil && !strings.Contains(found[0].What, "the first placement waits") {
			t.Errorf("%s: %+v", name, found)
		}
	}
	if found := Of(Facts{}); len(found) != 0 {
		t.Errorf("a part of a store: %+v", found)
	}
}

// TestUnwritableCopyDoesNotHideMissingLeader checks that the finding about a copy that cannot be written does not
// hide the finding that the other copies elect no leader.
func TestUnwritableCopyDoesNotHideMissingLeader(t *testing.T) {
	stuck := wellGroup("7", "a", false)
	stuck.Message = "reads are served, writes are not: append: input/output error"
	found := Of(Facts{Shards: []*recordv1.Shard{wellShard("a"), wellShard("b"), wellShard("c")}, Whole: true,
		Groups: []*recordv1.Group{stuck, wellGroup("7", "b", false), wellGroup("7", "c", false)}})
	if len(found) != 2 || found[0].Where != "group 7" || found[1].Where != "group 7 on shard a" {
		t.Fatalf("%+v", found)
	}
}

// TestTemporaryShortageSuggestsNoRestart checks that the finding about a temporary shortage, for example of file
// descriptors, does not suggest a restart.
func TestTemporaryShortageSuggestsNoRestart(t *testing.T) {
	g := wellGroup("7", "a", true)
	g.Message = WritesWait + "open segment-2: too many open files"
	found := Of(Facts{Shards: []*recordv1.Shard{wellShard("a")}, Groups: []*recordv1.Group{g}, Whole: true})
	if len(found) != 1 || found[0].Severity != Problem || strings.Contains(found[0].Do, "start") {
		t.Errorf("%+v", found)
	}
}

// TestNewLearnerIsNotReportedMissing checks that a learner that has not responded yet is not reported as a
// missing copy. The move has just begun, the learner has no vote, and nobody needs to start its shard.
func TestNewLearnerIsNotReportedMissing(t *testing.T) {
	g := wellGroup("7", "a", true)
	g.Members = []*recordv1.Member{{Shard: "a", Active: true},
		{Shard: "b", Role: recordv1.MemberRole_MEMBER_ROLE_LEARNER}}
	found := Of(Facts{Shards: []*recordv1.Shard{wellShard("a"), wellShard("b")}, Groups: []*recordv1.Group{g},
		Whole: true})
	if len(found) != 0 {
		t.Errorf("%+v", found)
	}
}

// TestUnheardLearnerIsReportedSilent checks that a learner is reported if it has all its files but its
// leader receives no messages from it.
func TestUnheardLearnerIsReportedSilent(t *testing.T) {
	g := wellGroup("7", "a", true)
	g.Members = []*recordv1.Member{{Shard: "a", Active: true},
		{Shard: "b", Role: recordv1.MemberRole_MEMBER_ROLE_LEARNER}}
	learner := wellGroup("7", "b", false)
	learner.Role = recordv1.MemberRole_MEMBER_ROLE_LEARNER
	seen := Facts{Shards: []*recordv1.Shard{wellShard("a"), wellShard("b")}, Groups: []*recordv1.Group{g, learner},
		Whole: true}
	found := Of(seen)
	if len(found) != 1 || found[0].Kind != CopySilent || found[0].Do != "see that shard a reaches shard b" {
		t.Errorf("%+v", found)
	}
	learner.State, learner.Copy = recordv1.GroupState_GROUP_STATE_LOADING, &recordv1.Copy{Shard: "b"}
	if found := Of(seen); len(found) != 0 {
		t.Errorf("while its files are copied: %+v", found)
	}
}

func TestSingleDamageUsesSingular(t *testing.T) {
	g := wellGroup("7", "a", true)
	g.State, g.Damages = recordv1.GroupState_GROUP_STATE_DAMAGED, []*recordv1.Damage{{File: "segment-1"}}
	found := Of(Facts{Shards: []*recordv1.Shard{wellShard("a")}, Groups: []*recordv1.Group{g}, Whole: true})
	if len(found) != 1 || !strings.HasPrefix(found[0].What, "1 place of damage; ") {
		t.Errorf("%+v", found)
	}
}

// TestAlmostFullVolumeIsAProblem checks that a volume counts as full when less than 1 MiB is free above the
// reserve. A record may have up to 1 MiB, so some writes already fail then.
func TestAlmostFullVolumeIsAProblem(t *testing.T) {
	for above, want := range map[int64]Severity{0: Problem, 272: Problem, 1<<20 - 1: Problem, 1 << 20: Warning} {
		s := wellShard("a")
		s.FreeBytes = s.GetReserveBytes() + above
		found := Of(Facts{Shards: []*recordv1.Shard{s}})
		if len(found) != 1 || found[0].Severity != want {
			t.Errorf("%d bytes above the reserve: %+v", above, found)
		}
	}
}

// TestListedHasTheProblemsOfTheStore checks that the facts built from the two lists include store-wide problems, so
// that every command that reads the lists reports them.
func TestListedHasTheProblemsOfTheStore(t *testing.T) {
	const odd = "key /sheaf/q/states/a in etcd cannot be used"
	found := Of(Listed(&recordv1.ListShardsResponse{Problems: []string{odd}, Shards: []*recordv1.Shard{wellShard("a")}},
		&recordv1.ListGroupsResponse{}))
	if len(found) != 1 || found[0].Severity != Problem || found[0].What != odd {
		t.Errorf("%+v", found)
	}
}

// TestOneShardThatRefusesItsVolumeIsOneFinding checks that a shard that runs but refuses its volume causes only one
// finding, although its groups and their leaders also report the effects.
func TestOneShardThatRefusesItsVolumeIsOneFinding(t *testing.T) {
	refuses := wellShard("c")
	refuses.State, refuses.Message = recordv1.ShardState_SHARD_STATE_FOREIGN, "the volume is of another store"
	seen := Facts{Shards: []*recordv1.Shard{wellShard("a"), wellShard("b"), refuses}, Whole: true}
	for _, name := range []string{"0", "1"} {
		leader := wellGroup(name, "a", true)
		leader.Members = []*recordv1.Member{{Shard: "a", Active: true}, {Shard: "b", Active: true}, {Shard: "c"}}
		seen.Groups = append(seen.Groups, leader, wellGroup(name, "b", false), awayRow(name, "c"))
	}
	seen.Groups = append(seen.Groups, awayRow("9", "c"))
	found := Of(seen)
	const want = "the volume is of another store; without it too few copies are well to serve group 9; " +
		"2 groups are served with one copy less"
	if len(found) != 1 || found[0].Kind != ShardState || found[0].What != want {
		t.Errorf("%+v", found)
	}
}

// TestLostDataIsRestoredOnlyIfNoCopyServes checks that the next step for lost data is a restore from a backup only if
// no copy of the group serves.
func TestLostDataIsRestoredOnlyIfNoCopyServes(t *testing.T) {
	lost := wellGroup("7", "a", false)
	lost.State, lost.Lost, lost.Message = recordv1.GroupState_GROUP_STATE_FAILED, true, "bring the old volume back"
	shards := []*recordv1.Shard{wellShard("a"), wellShard("b")}
	for name, groups := range map[string][]*recordv1.Group{
		"": {lost, wellGroup("7", "b", true)}, "restore its records from a backup": {lost},
	} {
		found := Of(Facts{Shards: shards, Groups: groups, Whole: true, Managed: true})
		if len(found) != 1 || found[0].Kind != GroupFailed || !strings.Contains(found[0].Do, name) ||
			name == "" && found[0].Do != "" {
			t.Errorf("%+v", found)
		}
	}
}

// TestBrokenCopyIsNotAlsoReportedSilent checks that a copy that reports a fault of its own has only that finding, and
// no second finding that its leader receives no messages from it.
func TestBrokenCopyIsNotAlsoReportedSilent(t *testing.T) {
	for name, state := range map[string]recordv1.GroupState{
		"manifest is gone":                         recordv1.GroupState_GROUP_STATE_FAILED,
		"the shard does not answer for this group": recordv1.GroupState_GROUP_STATE_UNAVAILABLE,
		"reads are served, writes are not: append": recordv1.GroupState_GROUP_STATE_SERVING,
	} {
		leader, broken := wellGroup("7", "a", true), wellGroup("7", "b", false)
		leader.Members = []*recordv1.Member{{Shard: "a", Active: true}, {Shard: "b"}, {Shard: "c"}}
		broken.State, broken.Message = state, name
		found := Of(Facts{Shards: []*recordv1.Shard{wellShard("a"), wellShard("b"), wellShard("c")},
			Groups: []*recordv1.Group{leader, broken, wellGroup("7", "c", false)}, Whole: true})
		if len(found) != 2 || found[0].Where != "group 7 on shard b" || found[1].Kind != CopySilent ||
			!strings.Contains(found[1].What, "shard c") {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// TestAMemoryLimitThatIsTooSmallIsOneFinding checks that a memory limit that is too small for several groups causes
// only one finding.
func TestAMemoryLimitThatIsTooSmallIsOneFinding(t *testing.T) {
	const small = "memory budget exceeded: the groups need 3 GiB, the limit is 1 GiB"
	limited := wellShard("b")
	limited.State, limited.Message = recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL, small
	limited.Problems = []string{small}
	seen := Facts{Shards: []*recordv1.Shard{wellShard("a"), limited}, Whole: true}
	for name, need := range map[string]string{"1": "1 GiB", "2": "2 GiB", "3": "0.5 GiB"} {
		kept := wellGroup(name, "b", false)
		kept.State, kept.Message = recordv1.GroupState_GROUP_STATE_FAILED, "it needs "+need+": "+small
		seen.Groups = append(seen.Groups, kept)
		if name != "3" {
			leader := wellGroup(name, "a", true)
			leader.Members = []*recordv1.Member{{Shard: "a", Active: true}, {Shard: "b"}}
			seen.Groups = append(seen.Groups, leader)
		}
	}
	found := Of(seen)
	const want = small + "; without it too few copies are well to serve group 3; 2 groups are served with one copy less"
	if len(found) != 1 || found[0].Kind != ShardState || found[0].What != want {
		t.Errorf("%+v", found)
	}
	alone := Facts{Shards: []*recordv1.Shard{limited}} // a single shard does not know which groups other shards serve
	for _, row := range seen.Groups {
		if row.GetShard() == "b" {
			alone.Groups = append(alone.Groups, row)
		}
	}
	if found = Of(alone); len(found) != 1 || found[0].What != small+"; 3 groups are not served by it" {
		t.Errorf("%+v", found)
	}
	broken := wellGroup("4", "b", false) // a different cause on the same shard
	broken.State, broken.Message = recordv1.GroupState_GROUP_STATE_FAILED, "manifest is gone"
	seen.Groups = append(seen.Groups, broken)
	if found = Of(seen); len(found) != 2 || found[0].Where != "group 4 on shard b" {
		t.Errorf("%+v", found)
	}
}

// TestWritesThatWaitForAFullShardAreOneFinding checks that writes which wait for the space or memory of a shard are
// part of the finding about that shard. Writes that wait for something else have a finding of their own.
func TestWritesThatWaitForAFullShardAreOneFinding(t *testing.T) {
	for _, c := range []struct {
		why   error
		shard func(*recordv1.Shard)
		kinds []Kind
	}{
		{format.ErrNoSpace, func(s *recordv1.Shard) { s.FreeBytes = 0 }, []Kind{DiskFull}},
		{format.ErrNoSpace, func(*recordv1.Shard) {}, []Kind{GroupReadOnly}},
		{format.ErrShortage, func(s *recordv1.Shard) { s.FreeBytes = 0 }, []Kind{GroupReadOnly, DiskFull}},
		{group.ErrMemory, func(s *recordv1.Shard) { s.MemoryUsedBytes = s.MemoryLimitBytes + 1 }, []Kind{MemoryFull}},
		{group.ErrMemory, func(s *recordv1.Shard) { s.FreeBytes = 0 }, []Kind{GroupReadOnly, DiskFull}},
	} {
		s, g := wellShard("a"), wellGroup("7", "a", true)
		g.Message = WritesWait + fmt.Errorf("append: %w", c.why).Error()
		c.shard(s)
		var kinds []Kind
		for _, f := range Of(Facts{Shards: []*recordv1.Shard{s}, Groups: []*recordv1.Group{g}, Whole: true}) {
			kinds = append(kinds, f.Kind)
		}
		if !slices.Equal(kinds, c.kinds) {
			t.Errorf("%v: %v, not %v", c.why, kinds, c.kinds)
		}
	}
}
