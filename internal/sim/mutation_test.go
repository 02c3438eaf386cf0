package sim

import (
	"os"
	"slices"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/replica/rules"
)

// safetyRules are those that a simulation can judge. Each is switched off, and the simulation must notice: by the
// oracle that the rule is for, or by another one only where that is what comes of it as well.
var safetyRules = []struct {
	name     string
	unsafe   rules.Off
	mutation mutation
	faults   map[string]int
	tweak    func(*config) // nil: nothing
	oracles  []oracle
}{
	{name: "acknowledged means synced", unsafe: rules.Sync, faults: powerFaults, oracles: lost},
	{name: "a promise waits for the sync", unsafe: rules.Promise, faults: powerFaults, oracles: lost},
	{name: "a vote is remembered", unsafe: rules.Vote, faults: voteFaults, oracles: []oracle{oracleOneLead}},
	{name: "a read asks the majority", unsafe: rules.Read, faults: networkFaults, oracles: stale},
	{name: "a refusal asks the majority", unsafe: rules.Decline, faults: calledFaults, oracles: stale},
	{name: "an answer belongs to its question", unsafe: rules.Question, faults: lateFaults, tweak: late, oracles: stale},
	{name: "requests are remembered over a failover", unsafe: rules.Requests, faults: networkFaults, oracles: []oracle{oracleOnce}},
	{name: "a request id is that of one write", unsafe: rules.Reuse, faults: networkFaults, oracles: []oracle{oracleKept}},
	{name: "a write that did nothing is remembered", unsafe: rules.Forget, faults: clockFaults, oracles: []oracle{oracleOnce}},
	{name: "requests are remembered whatever the clock says", unsafe: rules.Clock, faults: clockFaults, oracles: []oracle{oracleOnce}},
	{name: "a delete is kept while it may be repeated", mutation: mutateTombstones, faults: tombstoneFaults, tweak: deleting, oracles: []oracle{oracleOnce}},
	{name: "a request is remembered when its write is compacted away", mutation: mutateTombstones, faults: tombstoneFaults, tweak: busy, oracles: []oracle{oracleOnce}},
	{name: "only what is committed is visible", unsafe: rules.Apply, faults: networkFaults, oracles: []oracle{oracleAgree}},
	{name: "a leader serves what its predecessors committed", unsafe: rules.Serve, faults: networkFaults, tweak: busy, oracles: stale},
	{name: "a lease ends", unsafe: rules.Lease, faults: cutFaults, tweak: busy, oracles: stale},
	{name: "who may have promised a lease gives no vote", unsafe: rules.LeaseVote, faults: startedFaults, oracles: stale},
	{name: "a lead that is handed over has no lease", unsafe: rules.LeaseTransfer, faults: handFaults, oracles: stale},
	{name: "nor has one whose handing over was given up", unsafe: rules.LeaseTransfer, faults: calledFaults, oracles: stale},
	{name: "who has answered its leader forgets it only when that is silent", unsafe: rules.Silence, faults: silenceFaults, oracles: stale},
	{name: "an emptied volume is another replica", mutation: mutateReuse, faults: volumeFaults, oracles: lost},
	{name: "a volume rolled back is another replica", mutation: mutateRollBack, faults: volumeFaults, oracles: lost},
	{name: "a volume set back to an image of its running shard is another replica", mutation: mutateSteps, faults: volumeFaults, oracles: lost},
	{name: "a copy of a volume is no replica", mutation: mutateCopy, faults: copyFaults, oracles: lost},
	{name: "an entry is promised with its blob", mutation: mutateBlobs, faults: networkFaults, oracles: []oracle{oracleDisk}},
	{name: "who is damaged does not come to lead", unsafe: rules.Damage, faults: rotFaults, tweak: rotten, oracles: []oracle{oracleDamaged}},
	{name: "who lost what it acknowledged gives no vote", mutation: mutateTail, faults: tailFaults, tweak: rotten, oracles: lost},
	{name: "what cannot be read is no torn write", mutation: mutateRead, faults: readFaults, oracles: lost},
	{name: "what a bad record of the journal held is lost, not unwritten", mutation: mutateDoubt, faults: readFaults, tweak: journaled, oracles: lost},
	{name: "what the journal holds is written after a power cut", mutation: mutateJournal, faults: powerFaults, tweak: journaled, oracles: lost},
	{name: "the journal's room is free when the segments are synced", mutation: mutateRoom, faults: powerFaults, tweak: journaled, oracles: append([]oracle{oracleDisk}, lost...)},
	{name: "a repair comes from one that has applied as much", mutation: mutateMend, faults: rotFaults, tweak: rotten, oracles: []oracle{oracleKept, oracleAgree}},
}

// What comes of a rule that is broken.
var (
	lost  = []oracle{oracleAgree, oracleKept, oracleOneLead} // what was applied is another entry elsewhere, or gone; so may a vote be
	stale = []oracle{oracleLinear}                           // somebody saw what was no longer so
)

var (
	powerFaults = map[string]int{
		"power cut of all": 10, "crash": 5, "slow disk": 5, "lead handed over": 3, "partition": 3, "network healed": 3,
	}
	voteFaults    = map[string]int{"power cut behind a vote": 1}
	networkFaults = map[string]int{
		"partition": 10, "one-way cut": 5, "network healed": 4, "network bad": 8, "lead handed over": 4, "crash": 3,
	}
	volumeFaults = map[string]int{
		"volume lost at the worst moment": 10, "network healed": 6, "crash": 1,
	}
	copyFaults      = map[string]int{"volume copied at the worst moment": 10, "network healed": 6, "crash": 1}
	cutFaults       = map[string]int{"partition": 10, "network healed": 5}
	startedFaults   = map[string]int{"vote asked of one just started": 1}
	handFaults      = map[string]int{"lead handed over behind a cut": 1}
	calledFaults    = map[string]int{"call to lead comes late": 1}
	clockFaults     = map[string]int{"clock set": 10, "lead handed over": 5, "crash": 3}
	tombstoneFaults = map[string]int{"compaction": 20, "power cut of all": 3, "orderly restart": 3}
	silenceFaults   = map[string]int{"told late of a silence": 1}
	rotFaults       = map[string]int{"bytes rot": 20, "bytes rot at the worst moment": 10, "partition": 12, "network healed": 6, "crash": 4}
	tailFaults      = map[string]int{"bytes rot at the worst moment": 10, "network healed": 6, "crash": 1}
	readFaults      = map[string]int{"reads fail at the worst moment": 10, "network healed": 6, "crash": 1}
	lateFaults      = map[string]int{"network bad": 10, "lead handed over": 1}
)

// busy has many calls on few records: where two lead, what one writes is soon read through the other.
func busy(c *config) { c.keys, c.clients, c.pause = 2, 10, 40*time.Millisecond }

// deleting has few records and calls that follow each other soon, so that there are many deletes.
func deleting(c *config) { c.keys, c.clients, c.pause = 3, 6, 40*time.Millisecond }

// journaled has a small journal.
func journaled(c *config) { c.journal = 8 << 10 }

// rotten has many records, and what is bad is found soon.
func rotten(c *config) { c.keys, c.scrub = 30, 500*time.Millisecond }

// late has many messages that come late, though soon enough to be of the same term.
func late(c *config) {
	c.keys, c.clients, c.pause = 2, 6, 60*time.Millisecond
	c.lossOdds, c.lateOdds, c.lateMax = 0.02, 0.3, 3*time.Second
}

// TestEveryRuleIsNeeded switches one rule off and lives through seeds until the simulation finds what that rule is for.
// That something else breaks does not count.
func TestEveryRuleIsNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("of the long run")
	}
	seeds := number(t, "SHEAF_SIM_MUTATION_SEEDS", 3000) // far more than any rule takes
	for _, rule := range safetyRules {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			others := map[oracle]int{}
			for seed := uint64(1); seed <= seeds; seed++ {
				cfg := usual(seed)
				cfg.unsafe, cfg.mutation, cfg.faults, cfg.length = rule.unsafe, rule.mutation, rule.faults, 10*time.Second
				cfg.machines, cfg.copies = 5, 3
				if rule.tweak != nil {
					rule.tweak(&cfg)
				}
				r := run(t, seed, cfg)
				if len(r.violations) == 0 {
					continue
				}
				if v := r.violations[0]; slices.Contains(rule.oracles, v.oracle) { // what follows may come of it
					t.Logf("seed %d: %v; before it %v", seed, v, others)
					return
				}
				others[r.violations[0].oracle]++
			}
			t.Fatalf("not found within %d seeds: %q; others found %v", seeds, rule.oracles, others)
		})
	}
}

// TestEveryRuleHolds lives through the same faults with the rule on: what is found without it comes of nothing else.
func TestEveryRuleHolds(t *testing.T) {
	if os.Getenv("SHEAF_SOAK") == "" {
		t.Skip("of the long run; TestSeeds has all of these faults")
	}
	seeds := number(t, "SHEAF_SIM_MUTATION_SEEDS", 300)
	for _, rule := range safetyRules {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= seeds; seed++ {
				cfg := usual(seed)
				cfg.faults, cfg.length, cfg.machines, cfg.copies = rule.faults, 10*time.Second, 5, 3
				if rule.tweak != nil {
					rule.tweak(&cfg)
				}
				if r := run(t, seed, cfg); len(r.violations) > 0 {
					t.Fatalf("seed %d, faults %v: %v", seed, r.fired, r.violations)
				}
			}
		})
	}
}
