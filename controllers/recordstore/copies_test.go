package recordstore

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/fleettest"
)

func TestDecideRedundancy(t *testing.T) {
	zones := v1alpha1.Replication{Copies: 3, TopologyKey: corev1.LabelTopologyZone}
	for name, c := range map[string]struct {
		view        *fleet.Places
		replication v1alpha1.Replication
		wanted      int32
		reason      string
		words       []string
	}{
		"all there": {fleettest.View(3, "a b c", map[string]string{"1": "a b c", "2": "c b a"}),
			v1alpha1.Replication{}, 3, "Redundant", []string{"all 2 groups", "3 copies"}},
		"a move hurts none": {fleettest.View(3, "a b c d", map[string]string{"1": "a b c +d > a b d"}),
			v1alpha1.Replication{}, 4, "Redundant", nil},
		"one shard is away": {fleettest.View(3, "a b", map[string]string{"1": "a b -c", "2": "a b -c"}),
			v1alpha1.Replication{}, 3, "CopiesMissing", []string{"2 of 2 groups", "groups 1, 2", "not registered in etcd: c"}},
		"one is being made": {fleettest.View(3, "a b c", map[string]string{"1": "a b +c > a b c", "2": "a b c"}),
			v1alpha1.Replication{}, 3, "CopiesMissing", []string{"1 of 2 groups", "group 1"}},
		"not made yet": {fleettest.View(3, "a b c", map[string]string{"1": "> a b c"}), v1alpha1.Replication{}, 3,
			"CopiesMissing", nil},
		"too few nodes": {fleettest.View(3, "a@n1 b@n1 c@n2", map[string]string{"1": ""}), v1alpha1.Replication{}, 3,
			"TooFewDomains", []string{"copies is 3", "3 shards", "2 failure domains (kubernetes.io/hostname: n1; n2)", "1 more",
				"Nothing is lost"}},
		"shards start": {fleettest.View(3, "a b", map[string]string{"1": ""}), v1alpha1.Replication{}, 3,
			"CopiesMissing", nil},
		"no label": {fleettest.View(3, "a@node-a b@z1 c@z2", map[string]string{"1": "a b c"}), zones, 3,
			"DomainUnknown", []string{"topology.kubernetes.io/zone", "a (node node-a)", "kubernetes.io/hostname"}},
		"nodes are domains": {fleettest.View(3, "a@node-a b@node-b c@node-c", map[string]string{"1": "a b c"}),
			v1alpha1.Replication{}, 3, "Redundant", nil},
		"two in one": {fleettest.View(3, "a@z1 b@z1 c@z2 d@z3", map[string]string{"1": "a b c > a c d"}), zones, 4,
			"SharedDomain", []string{"two copies in one", "group 1"}},
		"two will be in one": {fleettest.View(3, "a@z1 b@z2 c@z3 d@z1",
			map[string]string{"1": "a b c > d b c", "2": "a b c > a b d", "3": "a b c"}), zones, 4, "Redundant",
			[]string{"all 3 groups", "for a part of their move", "group 2 ", "(z1)", "no order"}},
		"two may be in one, as one is missing": {fleettest.View(3, "a@z1 b@z2 c@z3 d@z1",
			map[string]string{"1": "a b > d b c"}), zones, 4, "CopiesMissing",
			[]string{"1 of 1 group has", "for a part of their move", "(z1)"}},
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
		"a": v1alpha1.ShardServing, "b": v1alpha1.ShardDraining, "c": v1alpha1.ShardLoading, "d": v1alpha1.ShardLoading,
		"x": v1alpha1.ShardDiskLost,
		"y": v1alpha1.ShardNodeDown,
	} {
		states[name] = v1alpha1.ShardStatus{Name: name, State: state}
	}
	v := fleettest.View(3, "a b c d", map[string]string{
		"1": "a b c", "2": "a c d", "3": "a b -y", "4": "a -x -y", "5": "-x", "6": "", "7": "a b -y +d > a b d",
		"8": "a b c > a b d",
	})
	got := countCopies(v, states, fleet.GroupSum{})
	trouble := got.NotWell
	got.NotWell = nil
	if got.Total != 8 || got.Serving != 4 || got.Loading != 1 || got.Degraded != 4 || got.DataLost != 1 ||
		got.Moving != 2 {
		t.Errorf("%+v", got)
	}
	want := map[string]string{"3": "2 of 3 copies are there; shard y is not registered", "4": "too few to go on",
		"5": "every copy is on a volume", "6": "being made", "7": "a copy is being made on shard d"}
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

// A settled store with Hash routing needs no early reconcile. A store with Named routing does, because callers create
// groups.
func TestPauseOfASettledStore(t *testing.T) {
	for routing, want := range map[v1alpha1.RoutingMode]time.Duration{v1alpha1.RoutingHash: 30 * time.Second,
		v1alpha1.RoutingNamed: 2 * time.Second} {
		run := &observed{store: &v1alpha1.RecordStore{Spec: v1alpha1.RecordStoreSpec{Groups: v1alpha1.Groups{
			Routing: routing}}}}
		if got := run.pause(); got != want {
			t.Errorf("%s: %s, want %s", routing, got, want)
		}
	}
}

func TestMovePause(t *testing.T) {
	for groups, want := range map[int32]time.Duration{0: 2 * time.Second, 4096: 3 * time.Second, 65536: 10 * time.Second} {
		run := &observed{store: &v1alpha1.RecordStore{}}
		run.store.Status.Groups.Total = groups
		if got := run.movePause(); got != want {
			t.Errorf("%d groups: %s, want %s", groups, got, want)
		}
	}
}

func TestCountsWhileEtcdIsAwayFollowTheShards(t *testing.T) {
	before := v1alpha1.GroupCounts{Total: 3, Serving: 3, Moving: 1}
	if got := reportedCounts(before, fleet.GroupSum{}, 3); got.Serving != 3 {
		t.Errorf("nobody was asked: %+v", got)
	}
	heard := fleet.GroupSum{Known: true, Groups: map[string]fleet.BookedGroup{"1": {Serving: 3}, "2": {Serving: 2},
		"3": {Serving: 1, Leaderless: true}}}
	got := reportedCounts(before, heard, 3)
	if got.Total != 3 || got.Serving != 2 || got.Degraded != 2 || got.Moving != 1 || len(got.NotWell) != 2 {
		t.Errorf("%+v", got)
	}
	// No shard reports a group if the nodes of all its copies have been down since the operator started.
	delete(heard.Groups, "3")
	if got = reportedCounts(before, heard, 3); got.Serving != 2 {
		t.Errorf("%+v", got)
	}
}

func TestAGroupWithoutALeaderDoesNotServe(t *testing.T) {
	view := fleettest.View(3, "a b c", map[string]string{"1": "a b c", "2": "a b c"})
	states := map[string]v1alpha1.ShardStatus{}
	for _, name := range []string{"a", "b", "c"} {
		states[name] = v1alpha1.ShardStatus{Name: name, State: v1alpha1.ShardServing}
	}
	heard := fleet.GroupSum{Known: true, Groups: map[string]fleet.BookedGroup{"2": {Serving: 3, Leaderless: true}}}
	got := countCopies(view, states, heard)
	if got.Total != 2 || got.Serving != 1 || got.Degraded != 1 || len(got.NotWell) != 1 ||
		got.NotWell[0].State != fleet.GroupNoLeader {
		t.Errorf("%+v", got)
	}
}

func TestAPlanIsOnlyForWhatItWasMadeFor(t *testing.T) {
	store := testStore()
	store.Generation = 3
	pools := []v1alpha1.ShardPool{fleettest.PoolOf("a", 1), fleettest.PoolOf("b", 1)}
	pools[0].Generation, pools[1].Generation = 5, 7
	if got := fleet.PlanMisses(store, pools); got != "RecordStore quotes" {
		t.Errorf("no plan: %q", got)
	}
	store.Status.Planned = plannedFor(store, pools)
	if got := fleet.PlanMisses(store, pools); got != "" {
		t.Errorf("planned: %q", got)
	}
	if got := fleet.PlanMisses(store, pools[:1]); got != "" {
		t.Errorf("a pool is gone: %q", got)
	}
	pools[1].Generation++
	if got := fleet.PlanMisses(store, pools); got != "ShardPool b" {
		t.Errorf("a pool has changed: %q", got)
	}
	pools[1].Generation--
	if got := fleet.PlanMisses(store, append(pools, fleettest.PoolOf("c", 1))); got != "ShardPool c" {
		t.Errorf("a pool is new: %q", got)
	}
	store.Generation++
	if got := fleet.PlanMisses(store, pools); got != "RecordStore quotes" {
		t.Errorf("the store has changed: %q", got)
	}
	// The status holds only a limited number of pools. The store does not wait indefinitely for the others.
	var many []v1alpha1.ShardPool
	for range fleet.PlannedPoolsMax + 1 {
		many = append(many, fleettest.PoolOf("p"+string(rune('a'+len(many)%26))+string(rune('a'+len(many)/26)), 1))
	}
	store.Status.Planned = plannedFor(store, many)
	if got := fleet.PlanMisses(store, many); len(store.Status.Planned.Pools) != fleet.PlannedPoolsMax || got != "" {
		t.Errorf("many: %q", got)
	}
}

// A node with several shards is drained one shard after another, in any order. Meanwhile, no shard on another node may
// be evicted.
func TestTheRestOfADomainMayBeEvicted(t *testing.T) {
	const all = "a@n1 b@n1 c@n2 d@n2 e@n3"
	nodes := map[string]string{"a": "n1", "b": "n1", "c": "n2", "d": "n2", "e": "n3", "f": "n2", "g": "n4"}
	for name, c := range map[string]struct {
		shards string            // the shards that are registered
		groups map[string]string // written as in fleettest.View
		also   string            // an additional shard that is neither registered nor holds a group
		node   func(string) string
		free   string
	}{
		"all there": {shards: all, groups: map[string]string{"1": "a c e"}},
		"one of two": {shards: "a@n1 b@n1 d@n2 e@n3", groups: map[string]string{"1": "a -c e", "2": "b d e"},
			free: "d"},
		"the other of two": {shards: "a@n1 b@n1 c@n2 e@n3", groups: map[string]string{"1": "a c e", "2": "b -d e"},
			free: "c"},
		"one of three": {shards: "a@n1 d@n2 e@n3 f@n2", groups: map[string]string{"1": "a -c e", "2": "a d e",
			"3": "a f e"}, free: "d f"},
		"two of three": {shards: "a@n1 e@n3 f@n2", groups: map[string]string{"1": "a -c e", "2": "a -d e", "3": "a f e"},
			free: "f"},
		"both of two":       {shards: "a@n1 b@n1 e@n3", groups: map[string]string{"1": "a -c e", "2": "b -d e"}},
		"two domains":       {shards: "b@n1 d@n2 e@n3", groups: map[string]string{"1": "-a -c e", "2": "b d e"}},
		"two, other groups": {shards: "b@n1 d@n2 e@n3", groups: map[string]string{"1": "-a d e", "2": "b -c e"}},
		"two, each group has a majority": {shards: "b@n1 d@n2 e@n3 g@n4",
			groups: map[string]string{"1": "-a e g", "2": "-c e g", "3": "d e g"}},
		"it holds no group":  {shards: "a@n1 b@n1 d@n2 e@n3", groups: map[string]string{"1": "a d e"}, also: "c", free: "d"},
		"one here, one away": {shards: "b@n1 d@n2 e@n3", groups: map[string]string{"1": "-a d e"}, also: "c"},
		"no majority without": {shards: "a@n1 b@n1 d@n2 e@n3",
			groups: map[string]string{"1": "a -c e", "2": "d e +a > a d e"}},
		"two copies in it": {shards: "a@n1 b@n1 d@n2 e@n3", groups: map[string]string{"1": "a -c d"}},
		"its node is unknown": {shards: "a@n1 b@n1 d@n2 e@n3", groups: map[string]string{"1": "a -c e", "2": "b d e"},
			node: func(string) string { return "" }},
	} {
		v := fleettest.View(3, c.shards, c.groups)
		seen := map[string]v1alpha1.ShardStatus{}
		for _, name := range strings.Fields(strings.Join([]string{"a b c d e f g", c.also}, " ")) {
			place, here := v.Shards[name]
			place.Node = nodes[name]
			if here {
				v.Shards[name] = place
			}
			mentioned := len(v.ShardsWith(fleet.OnShard(name))) > 0
			if here || mentioned || name == c.also {
				seen[name] = v1alpha1.ShardStatus{Name: name, Node: nodes[name]}
			}
		}
		if c.node != nil {
			for name, s := range seen {
				s.Node = c.node(name)
				seen[name] = s
			}
		}
		if free := strings.Join(disruptable(v, seen), " "); free != c.free {
			t.Errorf("%s: %q may be evicted, wanted is %q", name, free, c.free)
		}
	}
}

// With one copy of each group, a node can be drained completely if all missing shards are on that node and a person has
// cordoned it.
func TestEmptied(t *testing.T) {
	for name, c := range map[string]struct {
		here     string
		seen     map[string]string // maps each shard to its node
		cordoned string
		free     string
	}{
		"nothing is missing": {"a@n1 b@n1 c@n2", map[string]string{"a": "n1", "b": "n1", "c": "n2"}, "n1", ""},
		"the first has gone": {"b@n1 c@n2 d@n1", map[string]string{"a": "n1", "b": "n1", "c": "n2", "d": "n1"}, "n1",
			"b d"},
		"two have gone":            {"c@n2 d@n1", map[string]string{"a": "n1", "b": "n1", "c": "n2", "d": "n1"}, "n1", "d"},
		"all have gone":            {"c@n2", map[string]string{"a": "n1", "c": "n2"}, "n1", ""},
		"its process ended":        {"b@n1 c@n2", map[string]string{"a": "n1", "b": "n1", "c": "n2"}, "", ""},
		"another node is cordoned": {"b@n1 c@n2", map[string]string{"a": "n1", "b": "n1", "c": "n2"}, "n2", ""},
		"two nodes at once":        {"b@n1 d@n2", map[string]string{"a": "n1", "b": "n1", "c": "n2", "d": "n2"}, "n1", ""},
		"nobody knows where":       {"b@n1 c@n2", map[string]string{"a": "", "b": "n1", "c": "n2"}, "n1", ""},
	} {
		seen := map[string]v1alpha1.ShardStatus{}
		for shard, node := range c.seen {
			seen[shard] = v1alpha1.ShardStatus{Name: shard, Node: node}
		}
		v := fleettest.View(1, c.here, nil)
		for shard := range v.Shards {
			v.Shards[shard] = placement.Shard{Domain: v.Shards[shard].Domain, Node: c.seen[shard]}
		}
		free, err := emptied(v, seen, func(node string) (bool, error) { return node == c.cordoned, nil })
		if err != nil || strings.Join(free, " ") != c.free {
			t.Errorf("%s: %q may be evicted, wanted is %q: %v", name, free, c.free, err)
		}
	}
}
