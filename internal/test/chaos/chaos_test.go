package chaos

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/clitest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

var (
	faultsFlag   = flag.String("faults", "", "faults to bring, by comma; empty: all")
	durationFlag = flag.Duration("duration", 0, "how long to go on; 0: until every fault came and the calls are made")
	callsFlag    = flag.Int64("calls", 0, "calls to make at least; 0: 100,000, with -faults 5,000")
	etcdFlag     = flag.Duration("etcd-stop", 0, "how long etcd is stopped; 0: 5 minutes, with -faults 30 s")
	seedFlag     = flag.Uint64("seed", 0,
		"of the order of the faults and of the calls; 0: that of SHEAF_SEED, 1 without, and in a soak another each time")
	binaryFlag = flag.String("binary", "", "program to run; empty: it is built")
	logsFlag   = flag.String("logs", "", "folder to copy the logs of all processes to")
)

type config struct {
	shards, etcds, groups, workers int
	disks, spare                   bool
	faults                         string
	etcdStop, duration             time.Duration
	calls                          int64
	seed                           uint64
}

// These are the paths of the programs under test.
var sheafBinary, slowdiskBinary string

// TestMain runs the tests, and then removes the programs that the function build has compiled.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if sheafBinary != *binaryFlag {
		_ = os.RemoveAll(filepath.Dir(sheafBinary))
	}
	os.Exit(code)
}

// required reports whether the test must fail on a machine that cannot run it.
func required() bool { return os.Getenv("SHEAF_CHAOS") == "required" }

// checkRequirements checks that this machine has everything that the test needs. If something is missing, it skips the
// test, or fails it if the test is required. The message lists everything that is missing.
func checkRequirements(t *testing.T, disks bool) {
	t.Helper()
	var missing []string
	if os.Getuid() != 0 {
		missing = append(missing, "root")
	}
	programs := []string{"ip iproute2", "nft nftables", "nsenter util-linux", "mount mount", "losetup mount"}
	if disks {
		programs = append(programs, "mkfs.ext4 e2fsprogs")
		for _, device := range []string{"/dev/fuse", "/dev/loop-control"} {
			if _, err := os.Stat(device); err != nil {
				missing = append(missing, device)
			}
		}
		var err error
		if slowdiskBinary, err = filepath.Abs("../../../bin/kube/slowdisk"); err == nil {
			_, err = os.Stat(slowdiskBinary)
		}
		if err != nil {
			missing = append(missing, "bin/kube/slowdisk (hack/kube/build.sh slowdisk)")
		}
	}
	for _, p := range programs {
		name, from, _ := strings.Cut(p, " ")
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name+" (Debian's package "+from+")")
		}
	}
	if len(missing) == 0 && os.Getuid() == 0 {
		if out, err := exec.Command("nsenter", "--net=/proc/self/ns/net", "unshare", "--net", "--mount", "true").
			CombinedOutput(); err != nil {
			missing = append(missing, "namespaces: "+strings.TrimSpace(string(out)))
		}
	}
	switch {
	case len(missing) == 0:
	case required():
		t.Fatalf("SHEAF_CHAOS=required, and this machine lacks %s", strings.Join(missing, ", "))
	default:
		t.Skipf("it needs %s", strings.Join(missing, ", "))
	}
}

var buildOnce sync.Once

// build builds the program, once for all tests.
func build(t *testing.T) {
	t.Helper()
	if *binaryFlag != "" {
		sheafBinary = *binaryFlag
		return
	}
	buildOnce.Do(func() {
		dir, err := os.MkdirTemp("", "sheaf-bin-")
		must.OK(t, err)
		dir, err = clitest.Programs(t.Context(), dir, "sheaf.dev/sheaf/cmd/sheaf")
		must.OK(t, err)
		sheafBinary = filepath.Join(dir, "sheaf")
	})
}

// TestChaos is the long run of `make chaos`.
func TestChaos(t *testing.T) {
	if !required() && !soaktest.Long() && *faultsFlag == "" {
		t.Skip("of make chaos, or with -faults")
	}
	checkRequirements(t, true)
	cfg := config{
		shards: 5, etcds: 3, groups: 16, workers: 24, disks: true, spare: true, faults: *faultsFlag, duration: *durationFlag,
		calls: 100_000, etcdStop: 5 * time.Minute, seed: *seedFlag,
	}
	if cfg.faults != "" {
		cfg.calls, cfg.etcdStop = 5000, 30*time.Second
	}
	if *callsFlag != 0 {
		cfg.calls = *callsFlag
	}
	if *etcdFlag != 0 {
		cfg.etcdStop = *etcdFlag
	}
	if soaktest.Long() && cfg.duration == 0 {
		cfg.duration = 30 * time.Minute
	}
	runChaos(t, cfg)
}

// runChaos starts a store, puts it under load, causes faults, and judges the result.
func runChaos(t *testing.T, cfg config) {
	build(t)
	if cfg.seed == 0 {
		cfg.seed = soaktest.Seed(t, 1)
	}
	t.Logf("seed %d", cfg.seed)
	begin := time.Now()
	r := newRig(t)
	s := newStore(r, cfg)
	t.Logf("the store stands after %.1f s", time.Since(begin).Seconds())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l := newLoad(s, ctx, cfg.calls)
	t.Cleanup(func() {
		cancel()
		l.wait.Wait()
	})
	n := &nemesis{store: s, load: l, random: rand.New(rand.NewPCG(cfg.seed, 7))}
	n.watchStatus(ctx)
	t.Cleanup(func() {
		cancel()
		n.signs.wait.Wait()
	})
	lived := n.injectFaults()
	if lived == nil {
		l.end()
		t.Logf("the workers have ended after %.1f s", time.Since(begin).Seconds())
	}
	cancel()
	l.wait.Wait()
	n.signs.wait.Wait()
	n.judge(lived)
	t.Logf("%.1f s in all", time.Since(begin).Seconds())
}

// judge checks everything that the clients saw, and the data on the shards.
func (n *nemesis) judge(lived error) {
	t, l := n.t, n.load
	if lived != nil {
		t.Errorf("the faults ended early: %v", lived)
	}
	var newest map[int64]uint64
	if lived == nil {
		var err error
		l.ctx = context.Background()
		must.OK(t, n.settle())
		newest, err = l.readAll()
		must.OK(t, err)
	}
	violations := l.history.judge(time.Minute)
	if lived == nil {
		l.history.mutate(t)
		if n := len(l.history.leftOut); n > 0 {
			t.Errorf("%d records are not judged", n)
		}
	}
	for _, v := range violations[:min(len(violations), 10)] {
		t.Errorf("violation: %s", v)
	}
	agreed := "not asked"
	if lived == nil {
		entries, err := n.compareReplicas(newest)
		if err != nil {
			t.Errorf("the copies disagree: %v", err)
		}
		agreed = fmt.Sprintf("%d entries compared, %d records read", entries, len(newest))
	}
	soaktest.Report(t, "faults", len(n.spans))
	soaktest.Report(t, "calls", l.calls.Load())
	t.Logf("\n%s%s\ncopies: %s\n%d violations\n", n.report()+n.signs.summary()+n.looks.summary(), l.summary(), agreed,
		len(violations))
}
