package soaktest

import (
	"flag"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/test/must"
)

// rapidFlags defines the flags that rapid defines, calls pin, and returns the values that the flags then have.
func rapidFlags(t *testing.T, args ...string) (seed uint64, checks int) {
	t.Helper()
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	flags.Uint64Var(&seed, "rapid.seed", 0, "")
	flags.IntVar(&checks, "rapid.checks", 100, "")
	must.OK(t, flags.Parse(args))
	must.OK(t, pin(flags))
	return seed, checks
}

func TestPropertiesAreDrawnByAFixedSeedOutsideASoak(t *testing.T) {
	t.Setenv(Variable, "")
	t.Setenv(SeedVariable, "")
	if seed, checks := rapidFlags(t); seed != fixedSeed || checks != 100 {
		t.Errorf("seed %d, %d checks", seed, checks)
	}
	if seed, checks := rapidFlags(t, "-rapid.seed=5", "-rapid.checks=7"); seed != 5 || checks != 7 {
		t.Errorf("seed %d, %d checks, given were 5 and 7", seed, checks)
	}
	t.Setenv(SeedVariable, "77")
	if seed, _ := rapidFlags(t); seed != 77 {
		t.Errorf("seed %d, that of the environment is 77", seed)
	}
	t.Setenv(SeedVariable, "")
	t.Setenv(Variable, "1")
	one, checks := rapidFlags(t)
	if other, _ := rapidFlags(t); one == other || checks != checksOfSoak {
		t.Errorf("seeds %d and %d, %d checks of a soak", one, other, checks)
	}
}

func TestCheckDrawsTheSameCasesEachTime(t *testing.T) {
	if Long() {
		t.Skip("a soak draws other cases each time")
	}
	var runs [2][]uint64
	for i := range runs {
		Check(t, func(rt *rapid.T) { runs[i] = append(runs[i], rapid.Uint64().Draw(rt, "n")) })
	}
	if len(runs[0]) == 0 || !slices.Equal(runs[0], runs[1]) {
		t.Errorf("%v, then %v", runs[0], runs[1])
	}
}
