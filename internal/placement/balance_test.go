package placement

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/test/soaktest"
)

const gib = int64(1) << 30

// moves returns a policy that allows moves without limits.
func moves(copies int) Policy {
	return Policy{Copies: copies, Moves: true, MovesMax: -1, ShardMovesMax: -1}
}

// drawStore draws a store in which all groups are placed, with shards of any size in any domain.
func drawStore(t *rapid.T, copies int) View {
	v := View{Shards: map[string]Shard{}, Groups: map[string]Group{}, Targets: map[string]Target{},
		States: map[string]ShardState{}}
	shards := rapid.IntRange(copies, 9).Draw(t, "shards")
	domains := rapid.IntRange(copies, shards).Draw(t, "domains")
	capacity := rapid.SampledFrom([][]int64{{0}, {1000 * gib}, {1000 * gib, 2000 * gib, 1500 * gib}}).Draw(t, "capacities")
	for i := range shards {
		s := Shard{Name: fmt.Sprint("s", i), Alive: true, Domain: fmt.Sprint("d", i%domains)}
		s.CapacityBytes = rapid.SampledFrom(capacity).Draw(t, "capacity")
		v.Shards[s.Name] = s
	}
	sizes := rapid.SampledFrom([][]int64{{0}, {gib}, {0, 1, 1 << 20, 50 << 20, gib, 20 * gib},
		{gib / 4, gib / 2, gib, 2 * gib}}).Draw(t, "sizes")
	for i := range rapid.IntRange(0, 60).Draw(t, "groups") {
		g := Group{Name: fmt.Sprint("g", i), Bytes: rapid.SampledFrom(sizes).Draw(t, "bytes")}
		used := map[string]bool{}
		for _, s := range rapid.Permutation(slices.Sorted(maps.Keys(v.Shards))).Draw(t, "order") {
			if d := v.Shards[s].Domain; !used[d] && len(g.Members) < copies {
				used[d] = true
				g.Members = append(g.Members, Member{Shard: s})
			}
		}
		g.Leader = g.Members[0].Shard
		v.Groups[g.Name] = g
		v.Targets[g.Name] = Target{Group: g.Name, Shards: membersOf(g)}
	}
	return v
}

func membersOf(g Group) (out []string) {
	for _, m := range g.Members {
		out = append(out, m.Shard)
	}
	return out
}

// arrive returns the view after the named groups have reached their targets, and the number of bytes that moved.
func arrive(v View, groups ...string) (View, int64) {
	bytes := int64(0)
	v.Groups = maps.Clone(v.Groups)
	for _, name := range groups {
		g := v.Groups[name]
		for _, s := range v.Targets[name].Shards {
			if !slices.Contains(membersOf(g), s) {
				bytes += g.Bytes
			}
		}
		g.Members = nil
		for _, s := range v.Targets[name].Shards {
			g.Members = append(g.Members, Member{Shard: s, VolumeUUID: v.Shards[s].VolumeUUID})
		}
		g.Leader = v.Targets[name].Shards[0]
		v.Groups[name] = g
	}
	return v, bytes
}

// carryOut carries out plans until a plan changes nothing, and returns how many bytes moved.
func carryOut(t interface{ Fatalf(string, ...any) }, v View, policy Policy) (View, int64) {
	total := int64(0)
	for round := 0; ; round++ {
		targets, _ := Plan(v, policy)
		if len(targets) == 0 {
			return v, total
		}
		if round == 1000 {
			t.Fatalf("the plans come to no end: %+v", targets)
		}
		var bytes int64
		v = follow(v, targets)
		v, bytes = arrive(v, slices.Collect(maps.Keys(v.Targets))...)
		total += bytes
	}
}

func checkDomains(t *rapid.T, v View, copies int) {
	for name, target := range v.Targets {
		used := map[string]bool{}
		for _, s := range target.Shards {
			used[domainOf(v, s)] = true
		}
		if len(used) != copies || len(target.Shards) != copies {
			t.Fatalf("%s is wanted on %v: %d domains, copies %d", name, target.Shards, len(used), copies)
		}
	}
}

// bytesOn returns how many bytes each shard holds once every target in the view is reached.
func bytesOn(v View) map[string]int64 {
	out := map[string]int64{}
	for name, target := range v.Targets {
		for _, s := range target.Shards {
			out[s] += v.Groups[name].Bytes
		}
	}
	return out
}

func TestABalancedPlanIsFollowedByNone(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		copies := rapid.SampledFrom([]int{1, 3}).Draw(t, "copies")
		v := drawStore(t, copies)
		for _, name := range slices.Sorted(maps.Keys(v.Shards)) {
			s := v.Shards[name]
			s.State = rapid.SampledFrom([]ShardState{"", Active, Active, Cordoned}).Draw(t, "state")
			v.Shards[name] = s
		}
		targets, unplaced := Plan(v, moves(copies))
		if len(unplaced) > 0 {
			t.Fatalf("placed groups are unplaced: %v", unplaced)
		}
		again, _ := Plan(v, moves(copies))
		if !reflect.DeepEqual(targets, again) {
			t.Fatal("the same input gave another output")
		}
		planned := follow(v, targets)
		checkDomains(t, planned, copies)
		for name, s := range v.Shards {
			if s.State == Cordoned && bytesOn(planned)[name] != bytesOn(v)[name] {
				t.Fatalf("cordoned shard %s had %d bytes, is to have %d", name, bytesOn(v)[name], bytesOn(planned)[name])
			}
		}
		if more, _ := Plan(planned, moves(copies)); len(more) > 0 {
			t.Fatalf("while it moves the plan changes: %+v, then %+v", targets, more)
		}
		after, _ := arrive(planned, slices.Collect(maps.Keys(planned.Targets))...)
		if more, _ := Plan(after, moves(copies)); len(more) > 0 {
			t.Fatalf("the plan that was carried out is followed by another: %+v, then %+v", targets, more)
		}
	})
}

// In this test, moves run in waves while shards are drained and cordoned, and moves finish in any order. The limits
// must always hold, and balancing must move at most as many bytes as all copies have. A wave is planned from the
// state that the last wave left, so one group may move more than once. In 790,000 changes to 400,000 stores, a group
// with one copy moved at most three times, and a group with three copies at most six times. At most 80 % of the bytes
// moved.
func TestWavesComeToAnEnd(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		copies := rapid.SampledFrom([]int{1, 3}).Draw(t, "copies")
		v := drawStore(t, copies)
		policy := Policy{Copies: copies, Moves: true, MovesMax: rapid.IntRange(1, 8).Draw(t, "all"),
			ShardMovesMax: rapid.IntRange(1, 3).Draw(t, "per shard")}
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			name := rapid.SampledFrom(slices.Sorted(maps.Keys(v.Shards))).Draw(t, "shard")
			s := v.Shards[name]
			s.State = rapid.SampledFrom([]ShardState{Active, Cordoned, Draining}).Draw(t, "state")
			v.Shards = maps.Clone(v.Shards)
			v.Shards[name] = s
			v = runWaves(t, v, policy)
		}
	})
}

// runWaves starts and finishes moves in any order until no moves are left.
func runWaves(t *rapid.T, v View, policy Policy) View {
	changed := map[string]int{} // for each group, the number of times it moved for balance
	moved, all := int64(0), int64(0)
	for _, g := range v.Groups {
		all += g.Bytes * int64(len(g.Members))
	}
	for round := 0; ; round++ {
		targets, _ := Plan(v, policy)
		v = follow(v, targets)
		running := runningMoves(v)
		checkLimits(t, v, running, policy)
		for _, target := range targets {
			if v.Groups[target.Group].Bytes < gib/4 || target.Reason != ForBalance {
				continue
			}
			if changed[target.Group]++; changed[target.Group] > 4*policy.Copies {
				t.Fatalf("group %s moves again and again: %+v", target.Group, target)
			}
			if moved += v.Groups[target.Group].Bytes; moved > all {
				t.Fatalf("%d bytes have moved for balance, all copies have %d: %+v", moved, all, target)
			}
		}
		if len(running) == 0 && len(targets) == 0 {
			return v
		}
		if round > 2000 {
			t.Fatalf("the waves come to no end: %+v", targets)
		}
		for i, name := range running {
			if i > 0 && rapid.Bool().Draw(t, "goes on") {
				continue
			}
			v, _ = arrive(v, name)
		}
	}
}

func runningMoves(v View) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(v.Groups)) {
		if !SameSet(membersOf(v.Groups[name]), v.Targets[name].Shards) {
			names = append(names, name)
		}
	}
	return names
}

func checkLimits(t *rapid.T, v View, running []string, policy Policy) {
	perShard := map[string]int{}
	for _, name := range running {
		from, to := membersOf(v.Groups[name]), v.Targets[name].Shards
		for _, s := range slices.Concat(from, to) {
			if slices.Contains(from, s) != slices.Contains(to, s) {
				perShard[s]++
			}
		}
	}
	for s, n := range perShard {
		if n > policy.ShardMovesMax || len(running) > policy.MovesMax {
			t.Fatalf("shard %s has %d moves, %d are under way: the limits are %d, %d", s, n, len(running), policy.ShardMovesMax,
				policy.MovesMax)
		}
	}
}

func TestANewShardTakesItsPart(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		copies := rapid.SampledFrom([]int{1, 3}).Draw(t, "copies")
		shards := rapid.IntRange(copies, 12).Draw(t, "shards")
		v := cluster(shards, rapid.IntRange(20, 40).Draw(t, "groups per shard")*shards, shards)
		sizes := rapid.SampledFrom([][]int64{{gib}, {1 << 20, gib, 20 * gib}, {gib / 4, gib / 2, gib, 2 * gib}}).
			Draw(t, "sizes")
		total := int64(0)
		for _, name := range slices.Sorted(maps.Keys(v.Groups)) {
			g := v.Groups[name]
			g.Bytes = rapid.SampledFrom(sizes).Draw(t, "bytes")
			v.Groups[name] = g
			total += g.Bytes * int64(copies)
		}
		policy := moves(copies)
		if rapid.Bool().Draw(t, "in waves") {
			policy.MovesMax, policy.ShardMovesMax = 4, 2
		}
		v, _ = carryOut(t, v, policy)
		v.Shards = maps.Clone(v.Shards)
		v.Shards["new"] = Shard{Name: "new", Alive: true, State: Active, Domain: "new"}
		v, bytes := carryOut(t, v, policy)
		if limit := total * 12 / 10 / int64(shards+1); bytes > limit {
			t.Fatalf("%d bytes of %d moved, at most %d may: %d shards", bytes, total, limit, shards)
		}
		if on := bytesOn(v)["new"]; sizes[0] == gib && len(sizes) == 1 && on*2 < total/int64(shards+1) &&
			total/gib > int64(4*shards) {
			t.Fatalf("the new shard got %d of %d bytes", on, total)
		}
	})
}

func TestADrainMovesOnlyWhatIsThere(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		copies := rapid.SampledFrom([]int{1, 3}).Draw(t, "copies")
		shards := rapid.IntRange(copies+1, 9).Draw(t, "shards")
		v := cluster(shards, 20*shards, shards)
		for i, name := range slices.Sorted(maps.Keys(v.Groups)) {
			g := v.Groups[name]
			g.Bytes = int64(1+i%3) * gib
			v.Groups[name] = g
		}
		policy := Policy{Copies: copies, Moves: true}
		v, _ = carryOut(t, v, policy)
		before := v.Targets
		on := bytesOn(v)["s0000"]
		v.Shards = maps.Clone(v.Shards)
		v.Shards["s0000"] = Shard{Name: "s0000", Alive: true, State: Draining, Domain: "d0"}
		moved := int64(0)
		for range 1000 {
			targets, _ := Plan(v, policy)
			for _, target := range targets {
				if !slices.Contains(before[target.Group].Shards, "s0000") {
					t.Fatalf("group %s moves from %v to %+v", target.Group, before[target.Group].Shards, target)
				}
				if target.Reason != ForDrain {
					t.Fatalf("%+v", target)
				}
			}
			v = follow(v, targets)
			var bytes int64
			v, bytes = arrive(v, slices.Collect(maps.Keys(v.Targets))...)
			if moved += bytes; bytesOn(v)["s0000"] == 0 {
				break
			}
		}
		if moved != on {
			t.Fatalf("%d bytes moved, %d were on the shard", moved, on)
		}
	})
}
