package soaktest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

// randomCalls matches calls that draw cases at random, so that they differ from run to run.
var randomCalls = regexp.MustCompile(
	`\brapid\.(Check|MakeCheck)\(|\brand\.(N|Int|IntN|Int32N|Int64|Int64N|Uint32|Uint32N|Uint64|Uint64N|Float64|Perm|Shuffle)\(|` +
		`NewPCG\([^)]*time\.Now|\bquick\.Check\(`)

// randomAllowed lists files that may use random values, because these cannot affect the result of a test.
var randomAllowed = []string{
	"controllers/shardpool_process_test.go",          // addresses of the loopback network
	"internal/test/scaletest/cluster_test.go",        // addresses of the loopback network
	"internal/consensus/replica/bench_batch_test.go", // a benchmark's data
	"internal/consensus/replica/bench_test.go",       // a benchmark's data
	"internal/test/soaktest/chance_test.go",
	"internal/test/soaktest/soaktest_test.go",
}

// TestRandomTestsUseSeeds requires that tests of properties use Check, and that every source of random
// numbers has a seed. The seed must be fixed, or must come from Seed.
func TestRandomTestsUseSeeds(t *testing.T) {
	const root = "../../.."
	looked := 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		in := strings.TrimPrefix(filepath.ToSlash(name), root+"/")
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != root[:2] ||
			slices.Contains([]string{"bin", "bench/peers", "hack"}, in)) {
			return fs.SkipDir
		}
		if !strings.HasSuffix(name, "_test.go") || slices.Contains(randomAllowed, in) {
			return nil
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		looked++
		for n, line := range strings.Split(string(content), "\n") {
			if found := randomCalls.FindString(line); found != "" {
				t.Errorf("%s:%d: %s draws other cases in each run: take soaktest.Check, or a source seeded by soaktest.Seed", in,
					n+1, found)
			}
		}
		return nil
	})
	must.OK(t, err)
	if looked < 100 {
		t.Errorf("only %d files were looked at", looked)
	}
}
