package soaktest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/test/must"
)

const (
	fixedSeed = 1 // seed of properties outside a soak
	// checksOfSoak is the number of cases that a soak tries for each property. The default of rapid is 100.
	checksOfSoak = 2000
)

// Check calls rapid.Check with the seed of SHEAF_SEED or of -rapid.seed. If neither is set, the seed is random in a
// soak, and fixed otherwise. In a soak, Check draws more cases, and writes the seed to its report. Check is safe for
// concurrent use.
func Check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	must.OK(t, pinned())
	Report(t, "seed", flag.Lookup("rapid.seed").Value)
	rapid.Check(t, property)
}

// pinned sets rapid's flags. It does so only once, before the first property is checked, because the flags apply to
// the whole process.
var pinned = sync.OnceValue(func() error { return pin(flag.CommandLine) })

func pin(flags *flag.FlagSet) error {
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if !given["rapid.seed"] {
		seed := strconv.Itoa(fixedSeed)
		switch text := os.Getenv(SeedVariable); {
		case text != "":
			seed = text
		case Long():
			seed = strconv.FormatUint(rand.Uint64(), 10)
		}
		if err := flags.Set("rapid.seed", seed); err != nil {
			return fmt.Errorf("%s=%q is no seed, such as 77: %w", SeedVariable, seed, err)
		}
	}
	if Long() && !given["rapid.checks"] {
		return flags.Set("rapid.checks", strconv.Itoa(checksOfSoak))
	}
	return nil
}
