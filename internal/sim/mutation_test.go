package sim

import (
	"os"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/replica"
)

// rules are those of safety that a simulation can judge. Each is switched off, and the simulation must notice.
var rules = []struct {
	name     string
	unsafe   replica.Unsafe
	mutation mutation
	faults   map[string]int
	tweak    func(*config) // nil: nothing
	rare     bool          // takes too many seeds for every run; internal/replica has a test that fails without it
}{
	{name: "acknowledged means synced", unsafe: replica.UnsafeSync, faults: powerFaults},
	{name: "a promise waits for the sync", unsafe: replica.UnsafePromise, faults: powerFaults},
	{name: "a vote is remembered", unsafe: replica.UnsafeVote, faults: voteFaults, tweak: sparse},
	{name: "a read asks the majority", unsafe: replica.UnsafeRead, faults: networkFaults},
	{name: "a refusal asks the majority", unsafe: replica.UnsafeDecline, faults: networkFaults, tweak: crowded},
	{name: "an answer belongs to its question", unsafe: replica.UnsafeQuestion, faults: lateFaults, tweak: late},
	{name: "requests are remembered over a failover", unsafe: replica.UnsafeRequests, faults: networkFaults},
	{name: "only what is committed is visible", unsafe: replica.UnsafeApply, faults: networkFaults},
	{name: "a leader serves what its predecessors committed", unsafe: replica.UnsafeServe, faults: networkFaults},
	{name: "a lease ends", unsafe: replica.UnsafeLease, faults: cutFaults, tweak: busy},
	{name: "who may have promised a lease gives no vote", unsafe: replica.UnsafeLeaseVote, faults: leaseFaults, tweak: busy, rare: true},
	{name: "a lead that is handed over has no lease", unsafe: replica.UnsafeLeaseTransfer, faults: handFaults, tweak: busy, rare: true},
	{name: "an emptied volume is another replica", mutation: mutateReuse, faults: volumeFaults},
	{name: "a volume rolled back is another replica", mutation: mutateRollBack, faults: volumeFaults},
	{name: "an entry is promised with its blob", mutation: mutateBlobs, faults: networkFaults},
	{name: "who is damaged does not come to lead", unsafe: replica.UnsafeDamage, faults: rotFaults, tweak: rotten},
	{name: "who lost what it acknowledged gives no vote", mutation: mutateTail, faults: tailFaults},
	{name: "a repair comes from one that has applied as much", mutation: mutateMend, faults: rotFaults, tweak: rotten},
}

var (
	powerFaults = map[string]int{
		"power cut of all": 10, "crash": 5, "slow disk": 5, "lead handed over": 3, "partition": 3, "network healed": 3,
	}
	voteFaults = map[string]int{
		"power cut of all": 10, "crash": 10, "crash at an operation": 5, "partition": 4, "network healed": 4, "network bad": 4,
	}
	networkFaults = map[string]int{
		"partition": 10, "one-way cut": 5, "network healed": 4, "network bad": 8, "lead handed over": 4, "crash": 3,
	}
	volumeFaults = map[string]int{
		"volume lost at the worst moment": 10, "network healed": 6, "crash": 1,
	}
	cutFaults   = map[string]int{"partition": 10, "network healed": 5}
	leaseFaults = map[string]int{"partition": 10, "crash": 20, "network healed": 6}
	handFaults  = map[string]int{"lead handed over": 20, "one-way cut": 10, "partition": 8, "network healed": 8, "network bad": 6}
	rotFaults   = map[string]int{"bytes rot": 20, "bytes rot at the worst moment": 10, "partition": 12, "network healed": 6, "crash": 4}
	tailFaults  = map[string]int{"bytes rot at the worst moment": 10, "network healed": 6, "crash": 1}
	lateFaults  = map[string]int{"network bad": 10, "lead handed over": 1}
)

// crowded has many conditional calls.
func crowded(c *config) { c.keys, c.clients, c.pause = 12, 6, 60*time.Millisecond }

// busy has many calls on few records: where two lead, what one writes is soon read through the other.
func busy(c *config) { c.keys, c.clients, c.pause = 2, 10, 40*time.Millisecond }

// sparse has few calls: what matters are the elections.
func sparse(c *config) {
	c.clients, c.pause, c.length = 3, 200*time.Millisecond, 20*time.Second
}

// rotten has many records, and what is bad is found soon.
func rotten(c *config) { c.keys, c.scrub = 30, 500*time.Millisecond }

// late has many messages that come late, though soon enough to be of the same term.
func late(c *config) {
	c.keys, c.clients, c.pause = 2, 6, 60*time.Millisecond
	c.lossOdds, c.lateOdds, c.lateMax = 0.02, 0.3, 3*time.Second
}

// TestEveryRuleIsNeeded switches one rule off and lives through seeds until the simulation finds a violation.
func TestEveryRuleIsNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("of the long run")
	}
	seeds := number(t, "SHEAF_SIM_MUTATION_SEEDS", 3000) // far more than any rule takes
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			if rule.rare && os.Getenv("SHEAF_SOAK") == "" {
				t.Skip("of the long run")
			}
			for seed := uint64(1); seed <= seeds; seed++ {
				cfg := usual(seed)
				cfg.unsafe, cfg.mutation, cfg.faults, cfg.length = rule.unsafe, rule.mutation, rule.faults, 10*time.Second
				cfg.machines, cfg.copies = 5, 3
				if rule.tweak != nil {
					rule.tweak(&cfg)
				}
				if r := run(t, seed, cfg); len(r.violations) > 0 && !r.stuck {
					t.Logf("seed %d: %s", seed, r.violations[0])
					return
				}
			}
			t.Fatalf("the simulation finds nothing within %d seeds", seeds)
		})
	}
}
