package shard

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// exploreRules lists the rules that explorations can check. The test switches each of them off, and one of the rule's
// oracles must then find a violation.
var exploreRules = []struct {
	name    string
	off     rules.Off
	copies  int
	faults  []string
	fires   string // name of the misfortune that must have occurred before the violation
	oracles []oracle
	says    string // text that the violation must contain
	long    bool   // whether the rule is tested only in the long run, because it needs many seeds
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

// patienceOfRules limits the waiting times of an exploration in which a rule is switched off. An action that takes
// longer than this would never finish.
const patienceOfRules = 20 * time.Second

// TestEveryRuleOfShardsIsNeeded switches off one rule at a time, and tries seeds until an exploration finds the
// violation that the rule should prevent.
func TestEveryRuleOfShardsIsNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("of the long run")
	}
	t.Parallel()
	seeds := exploreNumber(t, "SHEAF_EXPLORE_MUTATION_SEEDS", 200) // many more seeds than any rule needs
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
				v := x.violations[0] // any further violations may be consequences of the first one
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

// TestEveryRuleOfShardsHolds causes the same faults without switching off a rule, and expects no violation. This
// shows that the violations in the other test are caused by the rule that is switched off.
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
