package floors

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "sheaf.dev/sheaf/"

// floors from the top to the bottom. A name that ends in /... stands for all packages below it that are not named
// themselves.
var floors = []struct {
	name     string
	packages []string
}{
	{"programs", []string{"cmd/...", "examples/..."}},
	{"measured and explored", []string{"bench", "bench/layouts", "bench/demo", "internal/test/chaos", "internal/test/sim", "internal/test/scaletest", "internal/test/powercut"}},
	{"whole stores", []string{"internal/local/dev", "internal/local/cli", "internal/local/doctor", "internal/operator"}},
	{"services", []string{"client", "internal/gateway", "internal/shard/...", "controllers/...", "internal/kube/finding"}},
	{"consensus and moves", []string{"internal/consensus/replica/...", "internal/consensus/move", "internal/consensus/peer", "internal/kube/workload"}},
	{"the log", []string{"internal/storage/group/...", "internal/storage/journal"}},
	{"placement and volumes", []string{"internal/placement/...", "internal/storage/volume", "internal/placement/etcd", "internal/call/routing", "internal/base/telemetry", "internal/status/finding", "internal/security/authority", "internal/security/certs", "internal/security/access/...", "internal/shard/quota"}},
	{"base", []string{
		"api/...", "internal/storage/vfs", "internal/storage/index", "internal/call/message", "internal/base/backoff", "internal/base/parallel", "internal/base/longlock", "internal/call/liveness", "internal/security/ratelimit", "internal/security/reload", "internal/call/reason", "internal/security/identity", "internal/base/units", "internal/base/cgroup", "internal/test/loop",
		"internal/test/loopback", "internal/status/page", "internal/storage/wipe", "internal/call/cursor", "bench/result", "internal/test/floors",
	}},
}

// floorOf a package, without the module's name; -1: none. The longest name that fits counts.
func floorOf(pkg string) int {
	at, length := -1, -1
	for i, floor := range floors {
		for _, name := range floor.packages {
			base, below := strings.CutSuffix(name, "/...")
			if (pkg == base || below && strings.HasPrefix(pkg, base+"/")) && len(base) > length {
				at, length = i, len(base)
			}
		}
	}
	return at
}

// forTests says that a package is for tests alone: depguard keeps it out of the programs.
func forTests(pkg string) bool {
	return strings.HasSuffix(pkg, "test") || slices.Contains([]string{"internal/test/faultdisk", "e2e"}, pkg) || strings.HasPrefix(pkg, "hack/")
}

func TestImportsGoDown(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := map[int]int{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkg := strings.TrimPrefix(p.ImportPath, module)
		if forTests(pkg) {
			continue
		}
		floor := floorOf(pkg)
		if floor < 0 {
			t.Errorf("%s stands on no floor: name it in internal/test/floors, and in docs/architecture.md", pkg)
			continue
		}
		seen[floor]++
		for _, i := range p.Imports {
			to, ours := strings.CutPrefix(i, module)
			if !ours {
				continue
			}
			if f := floorOf(to); f < floor {
				t.Errorf("%s (%s) imports %s, which stands above it", pkg, floors[floor].name, to)
			}
		}
	}
	for i, floor := range floors {
		if seen[i] == 0 {
			t.Errorf("nothing stands on the floor %q", floor.name)
		}
	}
}
