package placement

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/test/soaktest"
)

// drawView draws a random store with few failure domains and with shards in all states. Its groups are new, placed,
// partly moved, or on shards that are lost.
func drawView(t *rapid.T) View {
	v := View{Shards: map[string]Shard{}, Groups: map[string]Group{}, Targets: map[string]Target{}}
	domains := rapid.IntRange(0, 5).Draw(t, "domains")
	names := []string{"lost0", "lost1"}
	for i := range rapid.IntRange(0, 8).Draw(t, "shards") {
		s := Shard{
			Name: fmt.Sprint("s", i), Alive: true,
			State:         rapid.SampledFrom([]ShardState{"", Active, Active, Cordoned, Draining}).Draw(t, "state"),
			CapacityBytes: rapid.SampledFrom([]int64{0, 0, 500, 5000}).Draw(t, "capacity"),
		}
		if domains > 0 {
			s.Domain = fmt.Sprint("d", rapid.IntRange(1, domains).Draw(t, "domain"))
		}
		v.Shards[s.Name] = s
		names = append(names, s.Name)
	}
	subset := func(what string) []string {
		return rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, min(5, len(names)), rapid.ID[string]).Draw(t, what)
	}
	for i := range rapid.IntRange(0, 20).Draw(t, "groups") {
		g := Group{Name: fmt.Sprint("g", i), Bytes: int64(rapid.IntRange(0, 1000).Draw(t, "bytes"))}
		for _, name := range subset("members") {
			g.Members = append(g.Members, Member{Shard: name})
		}
		g.Restoring = len(g.Members) == 0 && rapid.Bool().Draw(t, "restoring")
		if len(g.Members) > 0 {
			g.Leader = rapid.SampledFrom(g.Members).Draw(t, "leader").Shard
		}
		v.Groups[g.Name] = g
		if shards := subset("target"); len(shards) > 0 {
			v.Targets[g.Name] = Target{Group: g.Name, Shards: shards}
		}
	}
	return v
}

// follow returns the view that results when the targets are written.
func follow(v View, targets []Target) View {
	v.Targets = maps.Clone(v.Targets)
	for _, t := range targets {
		v.Targets[t.Group] = t
	}
	return v
}

func domainOf(v View, shard string) string {
	if d := v.Shards[shard].Domain; d != "" {
		return d
	}
	return "own:" + shard
}

func TestPlanKeepsItsRules(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		v := drawView(t)
		policy := Policy{Copies: rapid.SampledFrom([]int{1, 3, 5}).Draw(t, "copies"),
			ShardGroupsMax: rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "max")}
		targets, unplaced := Plan(v, policy)
		again, unplacedAgain := Plan(v, policy)
		if !reflect.DeepEqual(targets, again) || !reflect.DeepEqual(unplaced, unplacedAgain) {
			t.Fatal("the same input gave another output")
		}
		after := follow(v, targets)
		if more, _ := Plan(after, policy); len(more) > 0 {
			t.Fatalf("the plan does not settle: %+v, then %+v", targets, more)
		}
		for _, target := range targets {
			if reflect.DeepEqual(v.Targets[target.Group].Shards, target.Shards) {
				t.Fatalf("%+v is no change", target)
			}
			if unplaced[target.Group] != "" {
				t.Fatalf("%s has a target and a reason", target.Group)
			}
		}
		for name, g := range v.Groups {
			checkGroup(t, v, after, g, policy, unplaced[name])
		}
	})
}

func checkGroup(t *rapid.T, before, after View, g Group, policy Policy, reason string) {
	wanted := after.Targets[g.Name].Shards
	if reason != "" {
		if !reflect.DeepEqual(wanted, before.Targets[g.Name].Shards) {
			t.Fatalf("%s cannot be placed (%s), but its target changed", g.Name, reason)
		}
		return
	}
	if len(wanted) != policy.Copies {
		t.Fatalf("%s is wanted on %v, copies is %d", g.Name, wanted, policy.Copies)
	}
	installs := ""
	if was := before.Targets[g.Name].Shards; g.Restoring && len(was) > 0 && before.Shards[was[0]].Alive {
		if installs = was[0]; wanted[0] != installs {
			t.Fatalf("%s may be installing on %s, and is wanted on %v first", g.Name, installs, wanted)
		}
	}
	domains := map[string]bool{}
	for _, shard := range wanted {
		if domains[domainOf(before, shard)] {
			t.Fatalf("%s has two copies in domain %s: %v", g.Name, domainOf(before, shard), wanted)
		}
		domains[domainOf(before, shard)] = true
		s, registered := before.Shards[shard]
		member := slices.ContainsFunc(g.Members, func(m Member) bool { return m.Shard == shard })
		wasTarget := slices.Contains(before.Targets[g.Name].Shards, shard)
		switch {
		case shard == installs:
		case s.State == Draining:
			t.Fatalf("%s is wanted on %s, which is draining", g.Name, shard)
		case !registered && !member && (len(g.Members) == 0 || !wasTarget):
			t.Fatalf("%s is wanted on %s, which is not there and does not hold it", g.Name, shard)
		case s.State == Cordoned && !member && (len(g.Members) == 0 || !wasTarget):
			t.Fatalf("%s is newly wanted on %s, which is cordoned", g.Name, shard)
		}
	}
	checkLeastMovement(t, before, g, wanted, policy)
}

// The first shard of the target of a group that waits for its restore may be installing the group.
func TestAWaitingGroupKeepsTheShardThatInstallsIt(t *testing.T) {
	shards := func(states ...string) map[string]Shard {
		out := map[string]Shard{}
		for i, state := range states {
			name := string(rune('a' + i))
			if state != "gone" {
				out[name] = Shard{Name: name, Alive: true, State: ShardState(state), Domain: "d" + name}
			}
		}
		return out
	}
	for name, c := range map[string]struct {
		shards map[string]Shard
		target string
		copies int
		want   string // empty: no change
		moves  bool
		lists  bool
	}{
		"new":                            {shards: shards("", "", ""), copies: 3, want: "abc"},
		"placed":                         {shards: shards("", "", ""), target: "cab", copies: 3},
		"placed, and moves are allowed":  {shards: shards("", "", ""), target: "cab", copies: 3, moves: true},
		"the first is gone":              {shards: shards("gone", "", "", ""), target: "abc", copies: 3, want: "bcd"},
		"the first is gone, one copy":    {shards: shards("gone", ""), target: "a", copies: 1, want: "b"},
		"the first is cordoned":          {shards: shards("Cordoned", "", "", ""), target: "abc", copies: 3},
		"the first is drained":           {shards: shards("Draining", "", "", ""), target: "abc", copies: 3},
		"another is drained":             {shards: shards("", "Draining", "", ""), target: "abc", copies: 3, want: "acd"},
		"the first is gone, and no more": {shards: shards("gone", "", ""), target: "abc", copies: 3},
		"the groups are being listed":    {shards: shards("", "", ""), copies: 3, lists: true},
	} {
		v := View{Shards: c.shards, Targets: map[string]Target{},
			Groups: map[string]Group{"g": {Name: "g", Restoring: true}}}
		v.Meta.Restore = &Restore{Source: "source:1", Listing: c.lists}
		if c.target != "" {
			v.Targets["g"] = Target{Group: "g", Shards: strings.Split(c.target, "")}
		}
		targets, unplaced := Plan(v, Policy{Copies: c.copies, Moves: c.moves})
		got := ""
		for _, t := range targets {
			got += strings.Join(t.Shards, "")
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if c.lists != strings.Contains(unplaced["g"], "list of its groups") {
			t.Errorf("%s: %q", name, unplaced["g"])
		}
		if moves := Moves(v, Policy{Copies: c.copies, Moves: true}); len(moves) > 0 {
			t.Errorf("%s: %+v", name, moves)
		}
	}
}

// checkLeastMovement checks that the plan removes a member only if there is a reason for it.
func checkLeastMovement(t *rapid.T, v View, g Group, wanted []string, policy Policy) {
	stay := map[string]bool{} // domains of the members that may stay
	for _, m := range g.Members {
		if v.Shards[m.Shard].State != Draining {
			stay[domainOf(v, m.Shard)] = true
		}
	}
	kept := 0
	for _, m := range g.Members {
		if slices.Contains(wanted, m.Shard) {
			kept++
		}
	}
	if want := min(len(stay), policy.Copies); kept < want {
		t.Fatalf("%s: %d members kept of %d that may stay: members %+v, wanted %v", g.Name, kept, want, g.Members, wanted)
	}
}

func cluster(shards, groups, domains int) View {
	v := View{Shards: map[string]Shard{}, Groups: map[string]Group{}, Targets: map[string]Target{}}
	for i := range shards {
		name := fmt.Sprintf("s%04d", i)
		v.Shards[name] = Shard{Name: name, Alive: true, State: Active, Domain: fmt.Sprint("d", i%domains)}
	}
	for i := range groups {
		name := GroupName(i)
		v.Groups[name] = Group{Name: name, UUID: uuid.New()}
	}
	return v
}

// settle returns the view in which every group has reached its target and holds some bytes.
func settle(v View) View {
	groups := map[string]Group{}
	for name, g := range v.Groups {
		g.Members, g.Bytes = nil, 100
		for _, shard := range v.Targets[name].Shards {
			g.Members = append(g.Members, Member{Shard: shard})
		}
		groups[name] = g
	}
	v.Groups = groups
	return v
}

func TestPlanSpreadsNewGroupsAndLeadersEvenly(t *testing.T) {
	v := cluster(10, 1000, 5)
	targets, unplaced := Plan(v, Policy{Copies: 3})
	if len(targets) != 1000 || len(unplaced) != 0 {
		t.Fatalf("%d targets, unplaced %v", len(targets), unplaced)
	}
	replicas, leaders := map[string]int{}, map[string]int{}
	for _, target := range targets {
		leaders[target.Shards[0]]++
		for _, s := range target.Shards {
			replicas[s]++
		}
	}
	for name := range v.Shards {
		if n := replicas[name]; n < 295 || n > 305 {
			t.Errorf("%s has %d replicas, want about 300", name, n)
		}
		if n := leaders[name]; n < 80 || n > 120 {
			t.Errorf("%s leads %d groups, want about 100", name, n)
		}
	}
}

func TestPlanMovesOnlyWhatMustMove(t *testing.T) {
	v := cluster(10, 1000, 10)
	targets, _ := Plan(v, Policy{Copies: 3})
	v = settle(follow(v, targets))
	v.Shards["s9999"] = Shard{Name: "s9999", Alive: true, State: Active, Domain: "new"}
	if targets, _ := Plan(v, Policy{Copies: 3}); len(targets) != 0 {
		t.Fatalf("a new shard moved %d groups", len(targets))
	}
	on := map[string]int{}
	for _, target := range v.Targets {
		for _, s := range target.Shards {
			on[s]++
		}
	}
	s := v.Shards["s0003"]
	s.State = Draining
	v.Shards["s0003"] = s
	targets, unplaced := Plan(v, Policy{Copies: 3})
	if len(targets) != on["s0003"] || len(unplaced) != 0 {
		t.Fatalf("draining a shard of %d replicas moved %d groups, unplaced %v", on["s0003"], len(targets), unplaced)
	}
	for _, target := range targets {
		stayed := 0
		for _, name := range target.Shards {
			if slices.Contains(v.Targets[target.Group].Shards, name) {
				stayed++
			}
		}
		if stayed != 2 {
			t.Fatalf("%+v keeps %d of %v", target, stayed, v.Targets[target.Group].Shards)
		}
	}
	// The drain is cancelled halfway. Groups that have not moved yet must stay where they are.
	moved := follow(v, targets)
	s.State = Active
	moved.Shards["s0003"] = s
	back, _ := Plan(moved, Policy{Copies: 3})
	if final := follow(moved, back); len(back) != len(targets) || !sameTargets(final.Targets, v.Targets) {
		t.Fatalf("%d targets changed back of %d", len(back), len(targets))
	}
	// A shard that is no longer registered keeps its groups, because it holds their data.
	delete(v.Shards, "s0005")
	if _, unplaced := Plan(v, Policy{Copies: 3}); len(unplaced) != 0 {
		t.Fatalf("a shard that went away unplaced %v", unplaced)
	}
}

func sameTargets(a, b map[string]Target) bool {
	for name := range a {
		if !SameSet(a[name].Shards, b[name].Shards) {
			return false
		}
	}
	return len(a) == len(b)
}

func TestPlanSaysWhyAGroupIsUnplaced(t *testing.T) {
	v := cluster(4, 1, 2)
	s := v.Shards["s0000"]
	s.State = Cordoned
	v.Shards["s0000"] = s
	targets, unplaced := Plan(v, Policy{Copies: 3})
	want := "needs 3 shards in different failure domains, has 2: 3 shards in 2 domains can take a group (1 cordoned)"
	if len(targets) != 0 || unplaced["0"] != want {
		t.Fatalf("targets %v, unplaced %q, want %q", targets, unplaced, want)
	}
	if _, unplaced := Plan(v, Policy{Copies: 4}); unplaced["0"] == "" {
		t.Fatal("4 copies were planned")
	}
}

// TestPlanAtFullSize plans a store of the largest supported size, and logs the time that this takes (see
// BenchmarkPlan).
func TestPlanAtFullSize(t *testing.T) {
	v := cluster(1000, 10_000, 3)
	began := time.Now()
	targets, unplaced := Plan(v, Policy{Copies: 3})
	t.Logf("10,000 groups x 1,000 shards: %v", time.Since(began))
	if len(targets) != 10_000 || len(unplaced) != 0 {
		t.Fatalf("%d targets, %d unplaced", len(targets), len(unplaced))
	}
	if more, _ := Plan(settle(follow(v, targets)), Policy{Copies: 3}); len(more) != 0 {
		t.Fatalf("%d targets change again", len(more))
	}
}

func BenchmarkPlan(b *testing.B) {
	fresh := cluster(1000, 10_000, 100)
	targets, _ := Plan(fresh, Policy{Copies: 3})
	settled := settle(follow(fresh, targets))
	for name, v := range map[string]View{"fresh": fresh, "settled": settled} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Plan(v, Policy{Copies: 3})
			}
		})
	}
}

func TestFirstPlacementWaitsForShards(t *testing.T) {
	view := View{
		Shards: map[string]Shard{"a": {Name: "a", Alive: true}, "b": {Name: "b"}},
		Groups: map[string]Group{"0": {Name: "0"}, "1": {Name: "1"}},
	}
	policy := Policy{Copies: 1, ShardsMin: 2}
	if targets, unplaced := Plan(view, policy); len(targets) != 0 || len(unplaced) != 2 {
		t.Fatalf("one shard of two alive: targets %v, unplaced %v", targets, unplaced)
	}
	view.Shards["b"] = Shard{Name: "b", Alive: true}
	targets, unplaced := Plan(view, policy)
	if len(targets) != 2 || len(unplaced) != 0 || targets[0].Shards[0] == targets[1].Shards[0] {
		t.Fatalf("both alive: targets %v, unplaced %v", targets, unplaced)
	}
	// A store whose groups were placed earlier does not wait for ShardsMin, and uses the shards that are alive.
	delete(view.Shards, "b")
	view.Groups["0"] = Group{Name: "0", Members: []Member{{Shard: "a"}}}
	if targets, unplaced := Plan(view, policy); len(targets) == 0 || len(unplaced) != 0 {
		t.Fatalf("placed before: targets %v, unplaced %v", targets, unplaced)
	}
}

// TestPlanForgetsWhatItCouldNotPlace places group a, which needs three shards but finds only two. When the plan then
// places group b, these two shards must not count as used by group a.
func TestPlanForgetsWhatItCouldNotPlace(t *testing.T) {
	v := cluster(0, 0, 1)
	for name, domain := range map[string]string{"s1": "d1", "s2": "d1", "s3": "d2"} {
		v.Shards[name] = Shard{Name: name, Alive: true, Domain: domain}
	}
	v.Groups["a"] = Group{Name: "a", Bytes: 1000}
	v.Groups["b"] = Group{Name: "b", Bytes: 10, Members: []Member{{Shard: "lost"}}}
	targets, unplaced := Plan(v, Policy{Copies: 3})
	if len(targets) != 1 || !slices.Equal(targets[0].Shards, []string{"lost", "s1", "s3"}) || unplaced["a"] == "" {
		t.Fatalf("targets %+v, unplaced %v", targets, unplaced)
	}
}
