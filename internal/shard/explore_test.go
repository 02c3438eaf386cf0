package shard

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/soaktest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// exploration is a random walk through the states of a store's shards. The shards are real and complete, and
// communicate with each other and with their clients over in-memory connections. Their disks are also in memory, and
// lose power from time to time. Groups are moved from shard to shard. In stores with Named routing, empty groups are
// created and deleted. At the same time, shards die while they create, install or remove replicas. Some shards are
// stopped while they are unable to create a replica, and some uploads are cut off. When everything works again, each
// group must come to rest and contain everything that was acknowledged. Time is virtual. The seed determines the random
// choices, but not the order in which goroutines run.
type exploration struct {
	seed        uint64
	copies      int
	routing     placement.Routing // maps records to groups, even if the store has Named routing
	named       bool              // whether the store has Named routing and a deleter
	shardConfig Config
	patience    time.Duration // time limit for everything that has to finish
	began       time.Time

	registry *memRegistry
	network  *bubbletest.Net
	machines []*machine
	// The clients (type person) write the records. Other code reads the records only after all clients have stopped.
	records map[int64]*record
	deleter *deleter // nil if the store has Hash routing

	mu         sync.Mutex // guards the fields below
	random     *rand.Rand // source of randomness for the faults
	deletions  int        // number of requests to delete a group in etcd
	fired      map[string]int
	events     []string
	violations []violation
}

type violation struct {
	oracle oracle
	what   string
}

func (v violation) String() string { return fmt.Sprintf("%s: %s", v.oracle, v.what) }

func (x *exploration) violate(o oracle, format string, args ...any) {
	x.event("VIOLATION %s: "+format, append([]any{o}, args...)...)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.violations = append(x.violations, violation{o, fmt.Sprintf(format, args...)})
}

func (x *exploration) failed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.violations) > 0
}

func (x *exploration) fire(what string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.fired[what]++
}

// dice returns a random number between 0 and n-1.
func (x *exploration) dice(n int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.random.IntN(n)
}

// nextDeletion counts a request to delete a group in etcd. The first number depends on the seed.
func (x *exploration) nextDeletion() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.deletions++
	return x.deletions + int(x.seed%6)
}

func (x *exploration) pause(most time.Duration) { time.Sleep(time.Duration(x.dice(int(most)))) }

// await polls a condition until it is true. It gives up when x.patience has passed, or when a violation is found.
func (x *exploration) await(is func() bool) bool {
	for end := time.Now().Add(x.patience); ; time.Sleep(50 * time.Millisecond) {
		switch {
		case is():
			return true
		case time.Now().After(end):
			return false
		}
	}
}

func (x *exploration) machineOf(name string) *machine {
	for _, m := range x.machines {
		if m.name == name {
			return m
		}
	}
	return nil
}

// key returns the key of a record.
func (x *exploration) key(id int64) *recordv1.RecordKey {
	k := key(id)
	if x.named {
		k.Group = placement.GroupName(x.routing.GroupOf(id))
	}
	return k
}

// keyIn returns the key of a record in the given group.
func (x *exploration) keyIn(group string) *recordv1.RecordKey {
	n, err := strconv.Atoi(group)
	if err != nil {
		return spareKey(group)
	}
	return x.key(idsOf(x.routing, n, 1)[0])
}

func (x *exploration) anyMachine() *machine { return x.machines[x.dice(len(x.machines))] }

// anyReplica chooses a replica at random from those that etcd lists.
func (x *exploration) anyReplica() (*machine, string, placement.Group) {
	groups := x.registry.now().Groups
	names := slices.Sorted(maps.Keys(groups))
	name := names[x.dice(len(names))]
	members := groups[name].Members
	if len(members) == 0 {
		return nil, name, groups[name]
	}
	return x.machineOf(members[x.dice(len(members))].Shard), name, groups[name]
}

// survival chooses at random what survives on a disk: everything, as after a kill, or less, as after a power cut.
func (x *exploration) survival() vfstest.Survival {
	if x.dice(2) == 0 {
		return vfstest.Survival{Kind: vfstest.SurviveAll}
	}
	return vfstest.Survival{Kind: vfstest.SurvivalKinds[x.dice(len(vfstest.SurvivalKinds))], Seed: uint64(x.dice(1 << 30))}
}

// aim gives a group a random target. The target includes the machine that is passed as must, unless must is nil, and
// never includes the machine that is passed as not. The first machine in the target should lead the group.
func (x *exploration) aim(name string, must, not *machine) {
	order := slices.Clone(x.machines)
	x.mu.Lock()
	x.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	x.mu.Unlock()
	order = slices.DeleteFunc(order, func(m *machine) bool { return m == not || m == must })
	if must != nil {
		order = slices.Insert(order, x.dice(x.copies), must)
	}
	var shards []string
	for _, m := range order[:x.copies] {
		shards = append(shards, m.name)
	}
	x.event("group %s is wanted on %v", name, shards)
	x.registry.change(func(v *placement.View) {
		if _, there := v.Groups[name]; !there {
			return // the deleter has just deleted this group
		}
		v.Targets[name] = placement.Target{Group: name, Shards: shards, Revision: int64(v.Epoch)}
	})
}

// isOn reports whether the shard of machine m is a member of the group.
func (x *exploration) isOn(m *machine, g placement.Group) bool {
	_, on := replicas.MemberOf(g, m.name)
	return on
}

// some returns the name of a group. If member is true, the shard of m is a member of that group, and otherwise it is
// not. If there is no such group, some returns an empty string.
func (x *exploration) some(m *machine, member bool) string {
	var names []string
	for name, g := range x.registry.now().Groups {
		if x.isOn(m, g) == member {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return names[x.dice(len(names))]
}

// settings determine how an exploration runs.
type settings struct {
	copies   int
	named    bool     // whether the store has Named routing, so that groups are also deleted
	faults   []string // names of the faults to cause; empty means all kinds
	steps    int
	patience time.Duration
	off      rules.Off // rules that are switched off
}

const exploreGroups = 3

// explore runs an exploration with one seed, in a bubble of its own.
func explore(t *testing.T, seed uint64, set settings) (x *exploration) {
	bubbletest.Run(t, func(_ *testing.T, network *bubbletest.Net) { x = exploreOn(network, seed, set) })
	return x
}

func exploreOn(network *bubbletest.Net, seed uint64, set settings) *exploration {
	x := &exploration{
		network: network,
		seed:    seed, copies: set.copies, patience: set.patience, began: time.Now(), random: rand.New(rand.NewPCG(seed, 1)),
		routing: placement.Routing{Mode: placement.Hash, Groups: exploreGroups}, records: map[int64]*record{},
		fired: map[string]int{}, named: set.named,
	}
	x.registry = newRegistry(x.routing, "")
	if x.named {
		x.registry = newRegistry(named, "", "0", "1", "2")
		x.deleter = &deleter{x: x, random: rand.New(rand.NewPCG(seed, 4))}
	}
	x.registry.view.Meta.Copies = x.copies
	x.shardConfig = Config{
		SegmentBytes: []int64{16 << 10, 64 << 10, 1 << 20}[x.dice(3)], ReserveBytes: 16 << 20,
		ReportInterval: 100 * time.Millisecond,
		stepEvery:      []time.Duration{20 * time.Millisecond, time.Second}[x.dice(2)], repairEvery: 100 * time.Millisecond,
		off:        set.off,
		TrashDelay: []time.Duration{time.Millisecond, time.Second, time.Hour}[x.dice(3)], scrubBytesPerSecond: -1,
		Residency:  []group.Residency{group.Index, group.Resident}[x.dice(2)],
		Compaction: Compaction{Off: x.dice(2) == 0, SupersededBytesMin: 16 << 10, Interval: 300 * time.Millisecond},
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		m := &machine{x: x, name: name, disk: vfstest.NewMem()}
		m.disk.SetCheapOverwrite(x.dice(2) == 0)
		m.faulty = vfstest.NewFaulty(m.disk)
		x.machines = append(x.machines, m)
	}
	for n := range exploreGroups {
		x.aim(placement.GroupName(n), nil, nil)
	}
	for _, m := range x.machines {
		m.start(vfstest.Survival{})
	}
	watched := x.watch()
	ps := x.newPeople(3, 5)
	if x.rests() {
		for n := range set.steps {
			if x.failed() {
				break
			}
			x.step(n, set.faults)
		}
	}
	whole := !x.failed() && x.rests()
	ps.quit()
	ps.wait.Wait()
	if whole && !x.failed() && x.rests() {
		x.judge()
		if !x.failed() {
			x.truncated()
		}
	}
	watched()
	for _, m := range x.machines {
		m.end(func(s *Shard) { s.Kill() })
	}
	for _, p := range ps.all {
		x.fired["calls"] += p.calls
	}
	return x
}

// watch checks what the shards report about themselves, until the function that it returns is called.
func (x *exploration) watch() (end func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			for _, m := range x.machines {
				if s, _ := m.running(); s != nil {
					if what := impossible(s.Status()); what != "" {
						x.violate(oracleSigns, "the status of %s: %s", m.name, what)
					}
				}
			}
			select {
			case <-quit:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

// impossible returns the names of those metrics in a status whose values are impossible.
func impossible(st *recordv1.ShardStatus) string {
	row := st.GetShard()
	var bad []string
	for name, n := range map[string]int64{
		"capacity": row.CapacityBytes, "free": row.FreeBytes, "reserve": row.ReserveBytes,
		"memory needed": row.MemoryNeedBytes,
		"memory used":   row.MemoryUsedBytes,
	} {
		if n < 0 {
			bad = append(bad, fmt.Sprintf("%s %d", name, n))
		}
	}
	if row.FreeBytes > row.CapacityBytes {
		bad = append(bad, fmt.Sprintf("%d bytes are free of %d", row.FreeBytes, row.CapacityBytes))
	}
	for _, g := range st.Groups {
		if g.Records < 0 || g.StoredBytes < 0 || g.SupersededBytes < 0 || g.MemoryBytes < 0 || g.TruncatedBytes < 0 ||
			g.Segments < 0 {
			bad = append(bad, fmt.Sprintf("%+v", g))
		}
	}
	return strings.Join(bad, ", ")
}

const exploreAgain = "again: SHEAF_EXPLORE_SEED=%d SHEAF_EXPLORE_SEEDS=5 go test ./internal/shard -run TestExplore " +
	"-v (the goroutines' turns differ from run to run)"

// exploreNumber returns the number in an environment variable. If the variable is empty, it returns the default,
// which is passed as otherwise.
func exploreNumber(t *testing.T, name string, otherwise uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// usually returns the settings that most seeds use.
func usually(seed uint64) settings {
	set := settings{copies: 3, named: seed%2 == 0, steps: 10, patience: 2 * time.Minute}
	if seed%3 == 0 {
		set.copies = 1
	}
	return set
}

// TestExplore runs explorations with several seeds. By default there are 6 of them. In a soak there are more, and the
// first one is random. SHEAF_EXPLORE_SEEDS sets their number. If SHEAF_EXPLORE_SEED is set, every exploration uses
// that one seed.
func TestExplore(t *testing.T) {
	t.Parallel()
	seeds, first := uint64(6), uint64(1)
	switch {
	case soaktest.Long():
		seeds, first = 300, soaktest.Seed(t, 1)
	case testing.Short():
		seeds = 1
	}
	seeds = exploreNumber(t, "SHEAF_EXPLORE_SEEDS", seeds)
	only := exploreNumber(t, "SHEAF_EXPLORE_SEED", 0)
	var mu sync.Mutex
	fired := map[string]int{}
	t.Run("seeds", func(t *testing.T) {
		for i := range seeds {
			seed := cmp.Or(only, first+i)
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				x := explore(t, seed, usually(seed))
				mu.Lock()
				defer mu.Unlock()
				for what, n := range x.fired {
					fired[what] += n
				}
				if len(x.violations) > 0 {
					t.Errorf("seed %d, %v: %v\n"+exploreAgain+"\n%s", seed, x.fired, x.violations, seed, strings.Join(x.events, "\n"))
				}
			})
		}
	})
	for _, what := range []string{"empty group deleted", "name of a deleted group used again", "put kept its group",
		"deletion lost on its way to etcd"} {
		if only == 0 && seeds >= 6 && !t.Failed() && fired[what] == 0 {
			t.Errorf("%q never came: the exploration tests less than it says", what)
		}
	}
	if only == 0 && seeds >= 30 && !t.Failed() {
		for _, m := range misfortunes {
			if fired[m.name] == 0 {
				t.Errorf("%q never came: the exploration tests less than it says", m.name)
			}
		}
	}
	var table strings.Builder
	for _, what := range slices.Sorted(maps.Keys(fired)) {
		fmt.Fprintf(&table, "\n%8d  %s", fired[what], what)
	}
	t.Logf("%d seeds%s", seeds, table.String())
	soaktest.Report(t, "seeds", seeds)
}
