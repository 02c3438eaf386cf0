package placement

import (
	"slices"
	"strings"
	"testing"
)

func TestSharedDomains(t *testing.T) {
	domain := func(shard string) string { // the domain consists of the digits in the shard's name
		return strings.TrimLeft(shard, "abc")
	}
	for name, c := range map[string]struct{ from, to, want string }{
		"to another pool":                      {"a1 a2 a3", "c3 c1 c2", ""},
		"one stays":                            {"a1 a2 a3", "a1 c2 c4", ""},
		"it stays":                             {"a1 a2 a3", "a1 a2 a3", ""},
		"two are in one":                       {"a1 b1 a3", "c1 c2 c3", "1"},
		"two are to be in one":                 {"a1 a2 a3", "b3 c3 b2", "3"},
		"both":                                 {"a2 b2 a3", "b1 c1 a3", "1 2"},
		"no domain is known":                   {"a b c", "b c a", ""},
		"a copy is missing, its domain free":   {"a1 a2", "a1 a2 c3", ""},
		"a copy is missing, and others change": {"a1 a2", "a1 c2 c3", "2"},
		"one copy":                             {"a1", "c1", ""},
		"from three to one":                    {"a1 a2 a3", "c1", ""},
		"named twice, on two volumes":          {"a1 a1 a2 a3", "a1 a2 a3", ""},
	} {
		if got := SharedDomains(strings.Fields(c.from), strings.Fields(c.to), domain); !slices.Equal(got,
			strings.Fields(c.want)) {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

// If a move cannot avoid two copies in one domain, Moves reports this before the move's target is set. In this test,
// two of the group's shards are in one domain because a node was relabelled.
func TestMovesReportSharedDomains(t *testing.T) {
	v := loaded(5, 10, 3)
	for name, s := range v.Shards {
		s.Domain = "of " + name
		v.Shards[name] = s
	}
	if list := Moves(v, moves(3)); len(list) != 0 {
		t.Fatalf("%+v", list)
	}
	s := v.Shards["s0001"]
	s.State = Draining
	v.Shards["s0001"] = s
	list := Moves(v, moves(3))
	if len(list) == 0 || slices.ContainsFunc(list, func(m Move) bool { return len(m.SharedDomains) > 0 }) {
		t.Fatalf("a drain: %+v", list)
	}
	s.State, s.Domain = Active, "of s0002"
	v.Shards["s0001"] = s
	list = Moves(v, moves(3))
	both := 0
	for _, m := range list {
		if slices.Contains(m.From, "s0001") && slices.Contains(m.From, "s0002") {
			both++
			if m.Reason != ForDomain || !slices.Equal(m.SharedDomains, []string{"of s0002"}) {
				t.Errorf("%+v", m)
			}
		}
	}
	if both == 0 {
		t.Fatalf("%+v", list)
	}
}

// A shard that is not registered counts as being in its last domain, so no second copy is placed in that domain while
// the shard is unreachable.
func TestNoCopyGoesToTheDomainOfAShardThatIsAway(t *testing.T) {
	v := View{
		Shards: map[string]Shard{}, Targets: map[string]Target{"g": {Group: "g", Shards: []string{"a", "b", "c"}}},
		Groups: map[string]Group{"g": {
			Name: "g", Bytes: gib, Leader: "b", Members: []Member{{Shard: "a", RaftID: 1}, {Shard: "b", RaftID: 3},
				{Shard: "c", RaftID: 5}},
		}},
	}
	for name, domain := range map[string]string{"b": "n2", "c": "n3", "x": "n1", "y": "n4"} {
		v.Shards[name] = Shard{Name: name, Alive: true, Domain: domain}
	}
	c := v.Shards["c"]
	c.State = Draining
	v.Shards["c"] = c
	// Shard x is the first by name, so the planner prefers it if no domain is known.
	for want, known := range map[string]map[string]string{"y": {"a": "n1"}, "x": nil} {
		v.Domains = known
		targets, unplaced := Plan(v, moves(3))
		if len(targets) != 1 || !slices.Contains(targets[0].Shards, want) || !slices.Contains(targets[0].Shards, "a") {
			t.Errorf("with domains %v: %+v, %v; want one on %s", known, targets, unplaced, want)
		}
	}
	delete(v.Shards, "y")
	v.Domains = map[string]string{"a": "n1"}
	if targets, unplaced := Plan(v, moves(3)); len(targets) != 0 || unplaced["g"] == "" {
		t.Errorf("no domain is free: %+v, %v", targets, unplaced)
	}
}
