package sim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// safetyRule is a rule that can be switched off. It also names the faults that have visible effects without the rule,
// and the oracles that detect those effects.
type safetyRule struct {
	name     string
	off      rules.Off
	mutation mutation
	faults   map[string]int
	tweak    func(*config) // changes the configuration of the run; nil if nothing is changed
	oracles  []oracle
}

// safetyRules are the rules whose absence the simulation can notice. If a rule is switched off, one of its oracles
// must report a violation. The oracles of a rule are those whose violations are a consequence of the missing rule.
var safetyRules = []safetyRule{
	{name: "acknowledged means synced", off: rules.Sync, faults: powerFaults, oracles: lossOracles},
	{name: "a promise waits for the sync", off: rules.Promise, faults: powerFaults, oracles: lossOracles},
	{name: "a vote is remembered", off: rules.Vote, faults: voteFaults, oracles: []oracle{oracleOneLead}},
	{name: "a read asks the majority", off: rules.Read, faults: networkFaults, oracles: stale},
	{name: "a refusal asks the majority", off: rules.Decline, faults: calledFaults, oracles: stale},
	{name: "an answer belongs to its question", off: rules.Question, faults: lateFaults, tweak: lateMessages,
		oracles: stale},
	{name: "requests are remembered over a failover", off: rules.Requests, faults: networkFaults,
		oracles: []oracle{oracleOnce}},
	{name: "a request id is that of one write", off: rules.Reuse, faults: networkFaults, oracles: []oracle{oracleKept}},
	{name: "a write that did nothing is remembered", off: rules.Forget, faults: clockFaults,
		oracles: []oracle{oracleOnce}},
	{name: "requests are remembered whatever the clock says", off: rules.Clock, faults: clockFaults,
		oracles: []oracle{oracleOnce}},
	{name: "a delete is kept while it may be repeated", off: rules.Tombstones, faults: tombstoneFaults,
		tweak: manyDeletes, oracles: []oracle{oracleOnce}},
	{name: "a request is remembered when its write is compacted away", off: rules.Tombstones, faults: tombstoneFaults,
		tweak: fewRecords, oracles: []oracle{oracleOnce}},
	{name: "only what is committed is visible", off: rules.Apply, faults: networkFaults,
		oracles: []oracle{oracleAgree}},
	{name: "a leader serves what its predecessors committed", off: rules.Serve, faults: networkFaults, tweak: fewRecords,
		oracles: stale},
	{name: "a lease ends", off: rules.Lease, faults: partitionFaults, tweak: fewRecords, oracles: stale},
	{name: "who may have promised a lease gives no vote", off: rules.LeaseVote, faults: startedFaults, oracles: stale},
	{name: "a lead that is handed over has no lease", off: rules.LeaseTransfer, faults: handFaults, oracles: stale},
	{name: "nor has one whose handing over was given up", off: rules.LeaseTransfer, faults: calledFaults,
		oracles: stale},
	{name: "who has answered its leader forgets it only when that is silent", off: rules.Silence, faults: silenceFaults,
		oracles: stale},
	{name: "an emptied volume is another replica", mutation: mutateReuse, faults: volumeFaults,
		oracles: lossOracles},
	{name: "a volume rolled back is another replica", mutation: mutateRollBack, faults: volumeFaults,
		oracles: lossOracles},
	{name: "a volume set back to an image of its running shard is another replica", mutation: mutateSteps,
		faults: volumeFaults, oracles: lossOracles},
	{name: "a copy of a volume is no replica", mutation: mutateCopy, faults: copyFaults, oracles: lossOracles},
	{name: "an entry is promised with its blob", mutation: mutateBlobs, faults: networkFaults,
		oracles: []oracle{oracleDisk}},
	{name: "who is damaged does not come to lead", off: rules.Damage, faults: rotFaults,
		tweak: manyRecords, oracles: []oracle{oracleDamaged}},
	{name: "who lost what it acknowledged gives no vote", mutation: mutateTail, faults: tailFaults, tweak: manyRecords,
		oracles: lossOracles},
	{name: "what cannot be read is no torn write", mutation: mutateRead, faults: readFaults, oracles: lossOracles},
	{name: "what a bad record of the journal held is lost, not unwritten", mutation: mutateDoubt, faults: readFaults,
		tweak: journaled, oracles: lossOracles},
	{name: "what the journal holds is written after a power cut", mutation: mutateJournal, faults: powerFaults,
		tweak: journaled, oracles: lossOracles},
	{name: "the journal's room is free when the segments are synced", off: rules.JournalSpace, faults: powerFaults,
		tweak: journaled, oracles: append([]oracle{oracleDisk}, lossOracles...)},
	{name: "a repair comes from one that has applied as much", mutation: mutateRepair, faults: rotFaults,
		tweak: manyRecords, oracles: []oracle{oracleKept, oracleAgree}},
	{name: "a leader obeys the hold", mutation: mutateLeaderHold, faults: historyFaults, tweak: viewed,
		oracles: []oracle{oracleHeld}},
	{name: "members obey the hold", mutation: mutateMemberHold, faults: historyFaults, tweak: viewed,
		oracles: []oracle{oracleHeld}},
	{name: "an installed copy obeys the hold", mutation: mutateInstalledHold, faults: moveFaults, tweak: viewed,
		oracles: []oracle{oracleHeld}},
	{name: "the hold is the least one of all views", mutation: mutateLeast, faults: historyFaults, tweak: viewed,
		oracles: []oracle{oracleHeld}},
	{name: "the index of a view is chosen when a majority holds", mutation: mutateIndex, faults: historyFaults,
		tweak: viewed, oracles: []oracle{oracleHeld}},
	{name: "the index of a view is chosen behind a read barrier of the leader", mutation: mutateBarrier,
		faults: partitionFaults, tweak: viewed, oracles: []oracle{oraclePast}},
	{name: "members hold what the leader reports", mutation: mutateReports, faults: historyFaults, tweak: archived,
		oracles: []oracle{oracleHeld}},
	{name: "the report of a hold outlives the lead", mutation: mutateReport, faults: historyFaults, tweak: forsaken,
		oracles: []oracle{oracleHeld}},
	{name: "a hold that is not known yet holds everything", mutation: mutateUnknown, faults: historyFaults,
		tweak: viewed, oracles: []oracle{oracleHeld}},
}

// These are the oracles that may report a missing rule.
var (
	// lossOracles are the oracles for rules without which an applied entry or a vote is lost, or differs between
	// replicas.
	lossOracles = []oracle{oracleAgree, oracleKept, oracleOneLead}
	stale       = []oracle{oracleLinear} // for rules without which a client sees an outdated state
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
	partitionFaults = map[string]int{"partition": 10, "network healed": 5}
	startedFaults   = map[string]int{"vote asked of one just started": 1}
	handFaults      = map[string]int{"lead handed over behind a cut": 1}
	calledFaults    = map[string]int{"call to lead comes late": 1}
	clockFaults     = map[string]int{"clock set": 10, "lead handed over": 5, "crash": 3}
	tombstoneFaults = map[string]int{"compaction": 20, "power cut of all": 3, "orderly restart": 3}
	silenceFaults   = map[string]int{"told late of a silence": 1}
	rotFaults       = map[string]int{"bytes rot": 20, "bytes rot at the worst moment": 10, "partition": 12,
		"network healed": 6, "crash": 4}
	tailFaults    = map[string]int{"bytes rot at the worst moment": 10, "network healed": 6, "crash": 1}
	readFaults    = map[string]int{"reads fail at the worst moment": 10, "network healed": 6, "crash": 1}
	lateFaults    = map[string]int{"network bad": 10, "lead handed over": 1}
	historyFaults = map[string]int{"crash": 5, "orderly restart": 5, "lead handed over": 4, "etcd silent": 4}
	moveFaults    = map[string]int{"members changed": 10, "volume lost": 5, "crash": 1}
)

// fewRecords configures many calls on few records. If two processes lead at the same time, a write through one of them
// is soon followed by a read through the other.
func fewRecords(c *config) { c.keys, c.clients, c.pause = 2, 10, 40*time.Millisecond }

// manyDeletes configures few records and short pauses, so that there are many deletes.
func manyDeletes(c *config) { c.keys, c.clients, c.pause = 3, 6, 40*time.Millisecond }

func journaled(c *config) { c.journal = 8 << 10 }

// viewed configures views, and few calls besides the writes without request ids.
func viewed(c *config) {
	c.history, c.clients, c.pause = historyConfig{views: 3}, 2, 40*time.Millisecond
}

// archived does the same with an archiver.
func archived(c *config) { viewed(c); c.history = historyConfig{archive: true} }

// forsaken configures an archiver that is mostly away, so that members depend on what leaders have reported.
func forsaken(c *config) { archived(c); c.history.away = true }

// manyRecords configures many records and frequent scrubs, so that bad bytes are found soon.
func manyRecords(c *config) { c.keys, c.scrub = 30, 500*time.Millisecond }

// lateMessages configures a network in which many messages are late. They are not so late that the term has changed
// when they arrive.
func lateMessages(c *config) {
	c.keys, c.clients, c.pause = 2, 6, 60*time.Millisecond
	c.lossOdds, c.lateOdds, c.lateMax = 0.02, 0.3, 3*time.Second
}

// run runs one seed. If on is true, the rule is switched on. Otherwise it is switched off.
func (rule *safetyRule) run(t *testing.T, seed uint64, on bool) *result {
	cfg := defaultConfig(seed)
	cfg.faults, cfg.length, cfg.machines, cfg.copies = rule.faults, 10*time.Second, 5, 3
	if !on {
		cfg.off, cfg.mutation = rule.off, rule.mutation
	}
	if rule.tweak != nil {
		rule.tweak(&cfg)
	}
	return run(t, seed, cfg)
}

// seedsFor returns the seeds with which a rule is tested while it is switched off. The rule's pins come first, and
// are repeated. The result pinned is the number of seeds before the other ones begin.
func seedsFor(t *testing.T, rule *safetyRule) (seeds []uint64, pinned int) {
	t.Helper()
	n, first := envNumber(t, "SHEAF_SIM_MUTATION_SEEDS", 0), uint64(1)
	switch {
	case n > 0:
	case soaktest.Long():
		n, first = seedsMax, soaktest.Seed(t, 1)
	default:
		n = seedsMax
		if len(pins[rule.name]) == 0 {
			t.Errorf("%q has no pins: SHEAF_SIM_PINS=100 go test ./internal/test/sim -run 'TestPins' -v chooses some", rule.name)
		}
		for range pinRounds {
			seeds = append(seeds, pins[rule.name]...)
		}
	}
	pinned = len(seeds)
	for i := range n {
		seeds = append(seeds, first+i)
	}
	return seeds, pinned
}

// TestEveryRuleIsNeeded switches off one rule and runs seeds until the simulation finds a fault that the rule would
// prevent. Other faults do not count. The rule's pins are tried first. If they find nothing, the test prints PIN,
// because new pins must be chosen, and continues with the seeds from 1 on.
func TestEveryRuleIsNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("of the long run")
	}
	for i := range safetyRules {
		rule := &safetyRules[i]
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			others := map[oracle]int{}
			seeds, pinned := seedsFor(t, rule)
			for n, seed := range seeds {
				r := rule.run(t, seed, false)
				if len(r.violations) == 0 {
					continue
				}
				// Only the first violation counts, because later ones may be consequences of it.
				if v := r.violations[0]; slices.Contains(rule.oracles, v.oracle) {
					t.Logf("seed %d, the %d. one: %v; before it %v", seed, n+1, v, others)
					soaktest.Report(t, "found by seed", seed)
					if pinned > 0 && n >= pinned {
						soaktest.Note(t, "PIN %s: found by seed %d, and not by its pins %v: choose others (SHEAF_SIM_PINS)", rule.name,
							seed, pins[rule.name])
					}
					return
				}
				others[r.violations[0].oracle]++
			}
			t.Fatalf("not found within %d seeds: %q; others found %v", len(seeds), rule.oracles, others)
		})
	}
}

// TestPins helps to choose pins. If SHEAF_SIM_PINS=n is set, it tries the seeds from 1 to n with each rule switched
// off, and prints those with which the missing rule is found in at least four of five runs.
func TestPins(t *testing.T) {
	last := envNumber(t, "SHEAF_SIM_PINS", 0)
	if last == 0 {
		t.Skip("it chooses pins: SHEAF_SIM_PINS=100")
	}
	for i := range safetyRules {
		rule := &safetyRules[i]
		t.Run(rule.name, func(t *testing.T) {
			for seed := uint64(1); seed <= last; seed++ {
				finds := 0
				for n := 0; n < 5 && finds == n; n++ {
					if r := rule.run(t, seed, false); len(r.violations) > 0 && slices.Contains(rule.oracles, r.violations[0].oracle) {
						finds++
					}
				}
				if finds >= 4 {
					t.Logf("seed %d: found in %d of 5 runs", seed, finds)
				}
			}
		})
	}
}

// TestEveryRuleHolds runs the same faults with the rule switched on, and must find no violation. This shows that the
// violations of TestEveryRuleIsNeeded have no other cause.
func TestEveryRuleHolds(t *testing.T) {
	soaktest.Only(t, "raft", "TestSeeds has all of these faults")
	first, seeds := soaktest.Seed(t, 1), envNumber(t, "SHEAF_SIM_MUTATION_SEEDS", 300)
	for i := range safetyRules {
		rule := &safetyRules[i]
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			for seed := first; seed < first+seeds; seed++ {
				if r := rule.run(t, seed, true); len(r.violations) > 0 {
					t.Fatalf("seed %d, faults %v: %v\n%s", seed, r.fired, r.violations, strings.Join(r.events, "\n"))
				}
			}
		})
	}
}
