package sim

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/soaktest"
)

// defaultConfig returns the configuration of most runs.
func defaultConfig(seed uint64) config {
	c := config{
		machines: 5, copies: 3, clients: 4, keys: 6, length: 15 * time.Second, pause: 80 * time.Millisecond,
		scrub:    5 * time.Second,
		lossOdds: 0.1, lateOdds: 0.02, lateMax: 6 * time.Second, quiet: seed%2 == 0, resident: seed%3 == 0,
		journal: []int64{0, 8 << 10, 32 << 10, 1 << 20}[seed/2%4],
	}
	if seed/3%2 == 1 {
		c.history = historyConfig{archive: seed%5 > 0, views: 3, shortage: seed%4 == 0}
	}
	switch {
	case seed%10 == 9:
		c.machines, c.copies = 7, 5
	case seed%10 == 8 && seed/10%3 == 0:
		c.machines, c.copies = 3, 1
	case seed%10 == 8:
		c.machines, c.copies = 1, 1
	}
	return c
}

// envNumber returns the number in an environment variable, or the argument otherwise if the variable is not set.
func envNumber(t *testing.T, name string, otherwise uint64) uint64 {
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

const again = "run it again: SHEAF_SIM_SEED=%d SHEAF_SIM_SEEDS=20 go test ./internal/test/sim -run TestSeeds (the " +
	"goroutines' turns differ from run to run)"

// ordinarySeeds are seeds for ordinary runs. Over all of these runs, each event that requiredEvents returns occurs at
// least four times. They are the sixty cheapest of the first 240 seeds.
var ordinarySeeds = []uint64{
	5, 6, 7, 15, 18, 24, 30, 33, 40, 42, 44, 46, 47, 49, 54, 55, 64, 68, 70, 72, 75, 80, 87, 88, 93, 94, 97, 101, 108, 111,
	113, 116, 117, 120, 132, 141, 145, 146, 153, 157, 161, 163, 165, 170, 171, 172, 179, 180, 187, 195, 198, 199, 208, 209,
	213, 216, 222, 224, 238, 239,
}

// faultySeeds are seeds that have found a fault in Sheaf. Some of them find it only in a part of their runs.
var faultySeeds = []uint64{
	310, 335, 584, 666, 919, 2109, 3147, 3837, 4561, 5794, 7406, 20555, 21620, 4497660577272346437, 4497660577272348447,
	4497660577272351670, 4497660577272355792, 10861084557594009437, 10861084557594012142, 6854873708417835545,
}

// shortSeeds is how many of the chosen seeds run with -short.
const shortSeeds = 20

// seedsOf returns the seeds that TestSeeds runs. The second result tells whether every kind of fault must occur with
// them.
func seedsOf(t *testing.T) (seeds []uint64, all bool) {
	t.Helper()
	only, first := envNumber(t, "SHEAF_SIM_SEED", 0), envNumber(t, "SHEAF_SIM_FIRST", 1)
	n := envNumber(t, "SHEAF_SIM_SEEDS", 0)
	switch {
	case n > 0 || only > 0:
	case soaktest.Long():
		n, first = 10_000, soaktest.Seed(t, 1)
		for range 5 {
			seeds = append(seeds, faultySeeds...)
		}
	case testing.Short():
		return ordinarySeeds[:shortSeeds], false
	default:
		return slices.Concat(ordinarySeeds, faultySeeds), true
	}
	for i := range max(n, 1) {
		seeds = append(seeds, cmp.Or(only, first+i))
	}
	return seeds, only == 0 && n >= 100
}

// TestSeeds runs many seeds: by default ordinarySeeds and faultySeeds, and in a soak 10,000 consecutive seeds,
// beginning with a random one. SHEAF_SIM_SEEDS sets another number of seeds, which begin with SHEAF_SIM_FIRST.
// SHEAF_SIM_SEED runs a single seed, SHEAF_SIM_SEEDS times or once. With SHEAF_SIM_TRACE, a violation is printed
// together with everything that happened before it.
func TestSeeds(t *testing.T) {
	list, all := seedsOf(t)
	var mu sync.Mutex
	fired, calls := map[string]int{}, 0
	t.Run("all", func(t *testing.T) {
		for i, seed := range list {
			t.Run(fmt.Sprintf("%d/%d", seed, i), func(t *testing.T) {
				t.Parallel()
				r := run(t, seed, defaultConfig(seed))
				if len(r.violations) > 0 {
					t.Fatalf("seed %d, faults %v:\n%v\n"+again+"\n%s", seed, r.fired, r.violations, seed, strings.Join(r.events, "\n"))
				}
				mu.Lock()
				defer mu.Unlock()
				for f, n := range r.fired {
					fired[f] += n
				}
				calls += r.calls
			})
		}
	})
	if all && !t.Failed() {
		for f := range requiredEvents() {
			if fired[f] == 0 {
				t.Errorf("%s never came: the simulation tests less than it says", f)
			}
		}
	}
	soaktest.Report(t, "seeds", len(list))
	t.Logf("%d seeds, %d calls%s", len(list), calls, table(fired))
}

// requiredEvents returns the events that must occur in a run of many seeds: each kind of fault, and its expected
// consequences.
func requiredEvents() map[string]bool {
	must := map[string]bool{
		"message lost": true, "message doubled": true, "message late": true, "membership changed": true,
		"lead handed over in fact": true,
		"installed":                true, "far behind": true, "compaction dropped entries": true, "blob fetched": true,
		"replica of another volume not run": true,
		"step of a volume":                  true, "volume set back, and noticed": true,
		"volume backed up while its machine was down": true,
		"bits flipped": true, "sector zeroed": true, "rot in a segment": true, "rot in a blob": true,
		"read of a segment failed for a moment": true, "read of a segment failed for good": true,
		"read of a journal failed for a moment": true,
		"read of a journal failed for good":     true, "journal damaged at a start": true,
		"a new segment was read back wrong": true,
		"a full disk refused":               true, "a write failed: segment": true, "a write failed: journal": true,
		"a sync failed and lost what it was to write: segment": true,
		"a sync failed and lost what it was to write: journal": true, "a failed replica began anew": true,
		"a run with one copy": true, "a run with three": true, "a run with five": true,
		"both copies bad: manifest": true, "both copies bad: mark": true, "replica without a manifest given up": true,
		"write of a neighbour": true, "neighbour has what it was promised": true,
		"journal written to the segment of a neighbour": true,
		"word of a silence late":                        true, "request id used for another write refused": true,
		"late duplicate of a write":      true,
		"journal written to the segment": true, "start from the hint of the active segment": true,
		"rot found at load": true, "rot found at load, in the tail": true, "rot found by scrub": true, "rot repaired": true,
	}
	for _, f := range faults {
		must[f.name] = true
	}
	for _, event := range historyEvents {
		must[event] = true
	}
	for _, kind := range smallKinds {
		must["rot in a "+kind], must["rot in a "+kind+" found by scrub"] = true, true
	}
	return must
}

// table lists, one per line, how many times each event occurred. It includes events that never occurred.
func table(fired map[string]int) string {
	all := requiredEvents()
	for f := range fired {
		all[f] = true
	}
	var b strings.Builder
	for _, f := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "\n%8d  %s", fired[f], f)
	}
	return b.String()
}
