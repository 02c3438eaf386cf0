package controllers

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// viewOf makes a view in words: groups as "a b c", where -c is a voter that is not there, +d a learner, and after > the target.
func viewOf(copies int32, shards string, groups map[string]string) *PlacementView {
	v := &PlacementView{Copies: copies, Shards: map[string]ShardPlace{}, Groups: map[string]GroupPlace{}, Unplaced: map[string]string{}}
	for _, s := range strings.Fields(shards) { // name or name@domain
		name, domain, found := strings.Cut(s, "@")
		if !found {
			domain = name
		}
		v.Shards[name] = ShardPlace{Domain: domain, Node: "node-" + name}
	}
	for name, words := range groups {
		var g GroupPlace
		is, wanted, _ := strings.Cut(words, ">")
		for _, w := range strings.Fields(is) {
			switch shard := strings.TrimLeft(w, "+-"); w[0] {
			case '+':
				g.Learners = append(g.Learners, CopyPlace{Shard: shard, Here: true})
			default:
				g.Voters = append(g.Voters, CopyPlace{Shard: shard, Volume: "volume-" + shard, Here: w[0] != '-'})
			}
		}
		if g.Target = strings.Fields(wanted); len(g.Target) == 0 {
			for _, c := range g.Voters {
				g.Target = append(g.Target, c.Shard)
			}
		}
		v.Groups[name] = g
	}
	return v
}

// shares says of groups of a view which failure domains two copies share on the way.
func (v *PlacementView) shares(domain string, groups ...string) *PlacementView {
	for _, name := range groups {
		g := v.Groups[name]
		g.Shares = []string{domain}
		v.Groups[name] = g
	}
	return v
}

func TestDecideRedundancy(t *testing.T) {
	zones := v1alpha1.Replication{Copies: 3, TopologyKey: corev1.LabelTopologyZone}
	for name, c := range map[string]struct {
		view        *PlacementView
		replication v1alpha1.Replication
		wanted      int32
		reason      string
		words       []string
	}{
		"all there":         {viewOf(3, "a b c", map[string]string{"1": "a b c", "2": "c b a"}), v1alpha1.Replication{}, 3, "Redundant", []string{"all 2 groups", "3 copies"}},
		"a move hurts none": {viewOf(3, "a b c d", map[string]string{"1": "a b c +d > a b d"}), v1alpha1.Replication{}, 4, "Redundant", nil},
		"one shard is away": {viewOf(3, "a b", map[string]string{"1": "a b -c", "2": "a b -c"}), v1alpha1.Replication{}, 3, "CopiesMissing", []string{"2 of 2 groups", "groups 1, 2", "not registered in etcd: c"}},
		"one is being made": {viewOf(3, "a b c", map[string]string{"1": "a b +c > a b c", "2": "a b c"}), v1alpha1.Replication{}, 3, "CopiesMissing", []string{"1 of 2 groups", "group 1"}},
		"not made yet":      {viewOf(3, "a b c", map[string]string{"1": "> a b c"}), v1alpha1.Replication{}, 3, "CopiesMissing", nil},
		"too few nodes":     {viewOf(3, "a@n1 b@n1 c@n2", map[string]string{"1": ""}), v1alpha1.Replication{}, 3, "TooFewDomains", []string{"copies is 3", "3 shards", "2 failure domains (kubernetes.io/hostname: n1; n2)", "1 more", "Nothing is lost"}},
		"shards start":      {viewOf(3, "a b", map[string]string{"1": ""}), v1alpha1.Replication{}, 3, "CopiesMissing", nil},
		"no label":          {viewOf(3, "a@node-a b@z1 c@z2", map[string]string{"1": "a b c"}), zones, 3, "DomainUnknown", []string{"topology.kubernetes.io/zone", "a (node node-a)", "kubernetes.io/hostname"}},
		"nodes are domains": {viewOf(3, "a@node-a b@node-b c@node-c", map[string]string{"1": "a b c"}), v1alpha1.Replication{}, 3, "Redundant", nil},
		"two in one":        {viewOf(3, "a@z1 b@z1 c@z2 d@z3", map[string]string{"1": "a b c > a c d"}), zones, 4, "SharedDomain", []string{"two copies in one", "group 1"}},
		"two will be in one": {viewOf(3, "a@z1 b@z2 c@z3 d@z1", map[string]string{"1": "a b c > d b c", "2": "a b c > a b d", "3": "a b c"}).shares("z1", "2", "3"), zones, 4, "Redundant",
			[]string{"all 3 groups", "for a part of their move", "group 2 ", "(z1)", "no order"}},
		"two may be in one, as one is missing": {viewOf(3, "a@z1 b@z2 c@z3 d@z1", map[string]string{"1": "a b > d b c"}).shares("z1", "1"), zones, 4, "CopiesMissing",
			[]string{"1 of 1 groups", "for a part of their move", "(z1)"}},
	} {
		got := decideRedundancy(c.view, c.replication, c.wanted)
		if got.reason != c.reason {
			t.Errorf("%s: %s, want %s: %s", name, got.reason, c.reason, got.message)
		}
		for _, w := range c.words {
			if !strings.Contains(got.message, w) {
				t.Errorf("%s: %q is not in %q", name, w, got.message)
			}
		}
	}
}

func TestCountCopies(t *testing.T) {
	states := map[string]v1alpha1.ShardStatus{}
	for name, state := range map[string]v1alpha1.ShardState{
		"a": v1alpha1.ShardServing, "b": v1alpha1.ShardDraining, "c": v1alpha1.ShardLoading, "d": v1alpha1.ShardLoading, "x": v1alpha1.ShardDiskLost,
		"y": v1alpha1.ShardNodeDown,
	} {
		states[name] = v1alpha1.ShardStatus{Name: name, State: state}
	}
	v := viewOf(3, "a b c d", map[string]string{
		"1": "a b c", "2": "a c d", "3": "a b -y", "4": "a -x -y", "5": "-x", "6": "", "7": "a b -y +d > a b d", "8": "a b c > a b d",
	})
	got := countCopies(v, states, groupSum{})
	trouble := got.NotWell
	got.NotWell = nil
	if got.Total != 8 || got.Serving != 4 || got.Loading != 1 || got.Degraded != 4 || got.DataLost != 1 || got.Moving != 2 {
		t.Errorf("%+v", got)
	}
	want := map[string]string{"3": "2 of 3 copies are there; shard y is not registered", "4": "too few to go on", "5": "every copy is on a volume", "6": "being made", "7": "a copy is being made on shard d"}
	for _, g := range trouble {
		if !strings.Contains(g.Message, want[g.Group]) || want[g.Group] == "" {
			t.Errorf("group %s: %+v", g.Group, g)
		}
		delete(want, g.Group)
	}
	if len(want) > 0 {
		t.Errorf("not named: %v", want)
	}
}

func TestWhatGroupsGoOnWithout(t *testing.T) {
	v := viewOf(3, "a b c d", map[string]string{"1": "a b c", "2": "b -c d", "3": "d", "10": "a b d", "11": "-c"})
	for without, want := range map[string][]string{"a": nil, "b": {"2"}, "c": {"11"}, "d": {"2", "3"}, "e": nil} {
		if got := v.undecided(onShard(without)); !slices.Equal(got, want) {
			t.Errorf("without %s: %v, want %v", without, got, want)
		}
	}
	if got := v.undecided(func(c CopyPlace) bool { return c.Shard == "a" || c.Shard == "b" }); !slices.Equal(got, []string{"1", "2", "10"}) {
		t.Errorf("without a and b: %v", got)
	}
	if got := v.holds("c"); !slices.Equal(got, []string{"1", "2", "11"}) {
		t.Errorf("c holds %v", got)
	}
	v.Unplaced["2"] = "no room"
	if names, why := v.stuck("d"); !slices.Equal(names, []string{"2"}) || why != "no room" {
		t.Errorf("stuck on d: %v %s", names, why)
	}
	if got := groupWords([]string{"1", "2", "3", "4", "5", "6", "7"}); got != "groups 1, 2, 3, 4, 5 and 2 more" {
		t.Error(got)
	}
}

// TestPauseOfASettledStore: nothing has to be done soon, but for a store whose groups come by name.
func TestPauseOfASettledStore(t *testing.T) {
	for routing, want := range map[v1alpha1.RoutingMode]time.Duration{v1alpha1.RoutingHash: 30 * time.Second, v1alpha1.RoutingNamed: 2 * time.Second} {
		run := &storeRun{store: &v1alpha1.RecordStore{Spec: v1alpha1.RecordStoreSpec{Groups: v1alpha1.Groups{Routing: routing}}}}
		if got := new(RecordStoreReconciler).pause(run); got != want {
			t.Errorf("%s: %s, want %s", routing, got, want)
		}
	}
}

func TestMovePause(t *testing.T) {
	for groups, want := range map[int32]time.Duration{0: 2 * time.Second, 4096: 3 * time.Second, 65536: 10 * time.Second} {
		run := &storeRun{state: PlacementState{Groups: groups}}
		if got := run.movePause(); got != want {
			t.Errorf("%d groups: %s, want %s", groups, got, want)
		}
	}
}
