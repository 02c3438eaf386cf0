package shard

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// exploreRules lists the rules that an exploration can judge. Each rule is switched off, and an oracle of the rule
// must then find a violation.
var exploreRules = []struct {
	name    string
	off     rules.Off
	copies  int
	faults  []string
	fires   string // the misfortune that must have occurred before the violation
	oracles []oracle
	says    string // a string that the violation contains
	long    bool   // the rule needs many seeds, so only the long run includes it
}{
	{
		name: "what a kill leaves of a learner's folder is replaced", off: rules.Remnant, copies: 3,
		faults: []string{"killed as it begins"}, fires: "killed as it begins", oracles: []oracle{oracleStuck},
		says: "has a learner on shard",
	},
	{
		name: "a stop ends the beginning of a replica that fails", off: rules.Stop, copies: 3,
		faults: []string{"stopped while it cannot begin"}, fires: "stopped while it cannot begin",
		oracles: []oracle{oracleStop},
	},
	{
		name: "the blob of an upload of unknown outcome stays", off: rules.Upload, copies: 1,
		faults: []string{"slow disk"}, fires: "upload cut behind its end", oracles: []oracle{oracleDamage},
	},
	{
		name: "a scan of a damaged group leaves out what may be old", off: rules.DamagedScan, copies: 1,
		faults: []string{"stopped in order"}, fires: "segment truncated, copies 1", oracles: []oracle{oraclePast},
		says: "a scan",
	},
	{
		name: "acknowledged means synced", off: rules.Sync, copies: 1,
		faults: []string{"killed"}, fires: "killed", oracles: []oracle{oracleKept}, long: true,
	},
}

// patienceOfRules limits the waits of an exploration with a rule switched off. An action that takes longer never
// finishes.
const patienceOfRules = 20 * time.Second

// TestEveryRuleOfShardsIsNeeded switches one rule off and runs seeds until the exploration finds the violation that the
// rule prevents.
func TestEveryRuleOfShardsIsNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("of the long run")
	}
	t.Parallel()
	seeds := exploreNumber(t, "SHEAF_EXPLORE_MUTATION_SEEDS", 200) // far more seeds than any rule needs
	for _, rule := range exploreRules {
		if rule.long && !soaktest.Long() {
			continue
		}
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			others := map[oracle]int{}
			for seed := uint64(1); seed <= seeds; seed++ {
				x := explore(t, seed, settings{copies: rule.copies, faults: rule.faults, steps: 6, patience: patienceOfRules,
					off: rule.off})
				if len(x.violations) == 0 {
					continue
				}
				v := x.violations[0] // later violations may be consequences of the first one
				if slices.Contains(rule.oracles, v.oracle) && x.fired[rule.fires] > 0 && strings.Contains(v.what, rule.says) {
					t.Logf("%s: found by seed %d, %v: %.400s; before it %v", rule.name, seed, x.fired, v.String(), others)
					return
				}
				others[v.oracle]++
			}
			t.Errorf("%s: not found within %d seeds: %q; others found %v", rule.name, seeds, rule.oracles, others)
		})
	}
}

// TestEveryRuleOfShardsHolds runs the same faults with the rules on. So a violation that is found with a rule switched
// off has no other cause.
func TestEveryRuleOfShardsHolds(t *testing.T) {
	soaktest.Only(t, "raft", "TestExplore has all of these faults")
	seeds := exploreNumber(t, "SHEAF_EXPLORE_MUTATION_SEEDS", 30)
	for _, rule := range exploreRules {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= seeds; seed++ {
				x := explore(t, seed, settings{copies: rule.copies, faults: rule.faults, steps: 6, patience: usually(seed).
					patience})
				if len(x.violations) > 0 {
					t.Errorf("%s: seed %d, %v: %v\n%s", rule.name, seed, x.fired, x.violations, strings.Join(x.events, "\n"))
				}
			}
		})
	}
}
