package placement

import (
	"slices"
	"testing"
)

// loaded returns a settled store with groups of 1 GiB. Each shard is a domain of its own.
func loaded(shards, groups, copies int) View {
	v := cluster(shards, groups, shards)
	for name, g := range v.Groups {
		g.Bytes = gib
		v.Groups[name] = g
	}
	targets, _ := Plan(v, Policy{Copies: copies})
	v = follow(v, targets)
	v, _ = arrive(v, groupsOf(v)...)
	return v
}

// groupsOf lists the groups of a view.
func groupsOf(v View) (names []string) {
	for name := range v.Groups {
		names = append(names, name)
	}
	return names
}

func TestWithoutMovesNothingIsBalanced(t *testing.T) {
	v := loaded(3, 30, 1)
	v.Shards["new"] = Shard{Name: "new", Alive: true}
	if targets, _ := Plan(v, Policy{Copies: 1}); len(targets) != 0 {
		t.Fatalf("%+v", targets)
	}
	if targets, _ := Plan(v, Policy{Copies: 1, Moves: true}); len(targets) == 0 {
		t.Fatal("with moves nothing is balanced either")
	}
}

func TestLoadsFollowCapacity(t *testing.T) {
	v := cluster(3, 80, 3)
	for name, tib := range map[string]int64{"s0000": 1, "s0001": 2, "s0002": 1} {
		s := v.Shards[name]
		s.CapacityBytes = tib << 40
		v.Shards[name] = s
	}
	for name, g := range v.Groups { // at first, all groups are on one shard
		g.Bytes, g.Members, g.Leader = gib, []Member{{Shard: "s0000"}}, "s0000"
		v.Groups[name] = g
		v.Targets[name] = Target{Group: name, Shards: []string{"s0000"}}
	}
	v, _ = carryOut(t, v, moves(1))
	on := bytesOn(v)
	if on["s0001"]/gib < 36 || on["s0001"]/gib > 44 || on["s0000"]/gib < 18 || on["s0000"]/gib > 24 {
		t.Fatalf("%v", on)
	}
}

func TestLeadersAreLevelled(t *testing.T) {
	v := loaded(4, 100, 3)
	for name, target := range v.Targets { // shard s0002 leads every group of which it has a copy
		if n := slices.Index(target.Shards, "s0002"); n > 0 {
			target.Shards = slices.Clone(target.Shards)
			target.Shards[0], target.Shards[n] = target.Shards[n], target.Shards[0]
			v.Targets[name] = target
		}
	}
	v, bytes := carryOut(t, v, Policy{Copies: 3, Moves: true})
	leads := map[string]int{}
	for _, target := range v.Targets {
		leads[target.Shards[0]]++
	}
	for name, n := range leads {
		if n < 22 || n > 28 {
			t.Errorf("%s leads %d groups of 100, want about 25", name, n)
		}
	}
	if bytes != 0 {
		t.Errorf("%d bytes moved for the leaders' sake", bytes)
	}
}

// A shard that is no longer registered keeps its groups until a person, or the operator, requests a drain.
func TestAShardThatIsGoneIsEmptiedWhenItIsToBe(t *testing.T) {
	v := loaded(4, 20, 3)
	on := bytesOn(v)["s0001"]
	delete(v.Shards, "s0001")
	if targets, _ := Plan(v, moves(3)); len(targets) != 0 {
		t.Fatalf("silent, and %d groups leave it", len(targets))
	}
	v.States = map[string]ShardState{"s0001": Draining}
	if targets, _ := Plan(v, Policy{Copies: 3}); len(targets) != 0 {
		t.Fatalf("without moves %d groups leave it", len(targets))
	}
	v, bytes := carryOut(t, v, Policy{Copies: 3, Moves: true})
	if bytes != on || bytesOn(v)["s0001"] != 0 {
		t.Fatalf("%d bytes moved of %d, %d are left", bytes, on, bytesOn(v)["s0001"])
	}
}

// A move that balances the load continues even if the shard that the group leaves could keep the group. A move off a
// draining shard is reversed when the drain is cancelled.
func TestWhetherAMoveGoesBackDependsOnItsReason(t *testing.T) {
	v := cluster(2, 1, 2)
	v.Groups["0"] = Group{Name: "0", Bytes: gib, Members: []Member{{Shard: "s0000"}, {Shard: "s0001", Role: Learner}},
		Leader: "s0000"}
	for reason, want := range map[Reason]string{ForBalance: "s0001", ForDrain: "s0000"} {
		v.Targets["0"] = Target{Group: "0", Shards: []string{"s0001"}, Reason: reason}
		targets, _ := Plan(v, moves(1))
		if got := follow(v, targets).Targets["0"].Shards; !slices.Equal(got, []string{want}) {
			t.Errorf("%s: the group is wanted on %v, want %s", reason, got, want)
		}
	}
}

func TestMovesShowsWhatRunsAndWhatWouldFollow(t *testing.T) {
	v := loaded(3, 12, 1)
	if m := Moves(v, moves(1)); len(m) != 0 {
		t.Fatalf("a settled store shows %+v", m)
	}
	v.Shards["s0001"] = Shard{Name: "s0001", Alive: true, State: Draining}
	policy := Policy{Copies: 1, Moves: true, MovesMax: 1}
	targets, _ := Plan(v, policy)
	if len(targets) != 1 {
		t.Fatalf("%d moves begin, the limit is 1", len(targets))
	}
	v = follow(v, targets)
	list := Moves(v, policy)
	running := 0
	for _, m := range list {
		if m.Running {
			running++
		}
		if m.Reason != ForDrain || m.Bytes != gib || !slices.Equal(m.From, []string{"s0001"}) || len(m.To) != 1 ||
			m.To[0] == "s0001" {
			t.Errorf("%+v", m)
		}
	}
	if len(list) != 4 || running != 1 {
		t.Fatalf("%d moves, %d run: want 4, 1", len(list), running)
	}
	if m := Moves(v, Policy{Copies: 2}); m != nil {
		t.Fatalf("a policy that cannot be shows %+v", m)
	}
}

// TestBalanceAtFullSize plans a store of the largest supported size, with 1,000 shards and 10,000 groups.
// BenchmarkBalance measures how long such a plan takes.
func TestBalanceAtFullSize(t *testing.T) {
	v := crowded()
	targets, _ := Plan(v, moves(3))
	after := follow(v, targets)
	after, bytes := arrive(after, groupsOf(after)...)
	if more, _ := Plan(after, moves(3)); len(targets) == 0 || len(more) != 0 {
		t.Fatalf("%d targets, then %d", len(targets), len(more))
	}
	if part := float64(bytes) / float64(30_000*gib); part > 1.2*500/1000 {
		t.Fatalf("%.2f of the bytes moved to half of the shards", part)
	}
}

// crowded returns a store whose 10,000 groups are all on one half of its 1,000 shards.
func crowded() View {
	v := cluster(500, 10_000, 500)
	for name, g := range v.Groups {
		g.Bytes = gib
		v.Groups[name] = g
	}
	targets, _ := Plan(v, Policy{Copies: 3})
	v = follow(v, targets)
	v, _ = arrive(v, groupsOf(v)...)
	for name, s := range cluster(1000, 0, 1000).Shards {
		v.Shards[name] = s
	}
	return v
}

func BenchmarkBalance(b *testing.B) {
	v := crowded()
	for name, policy := range map[string]Policy{"all": moves(3), "wave": {Copies: 3, Moves: true}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Plan(v, policy)
			}
		})
	}
}
