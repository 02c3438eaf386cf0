package floors

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

// inBubbles lists the packages whose tests run in virtual time, on disks and networks in memory
// (internal/test/bubbletest).
var inBubbles = []string{
	"internal/test/clienttest", "internal/local/dev", "internal/gateway", "internal/storage/group",
	"internal/storage/index", "internal/storage/journal", "internal/consensus/move", "internal/consensus/peer",
	"internal/placement/registry", "internal/consensus/replica", "internal/shard", "internal/test/sim",
	"internal/archive/archiver", "internal/local/restoresource", "internal/placement/listing",
	"internal/local/parquetcli",
}

// outsideBubbles lists, for each of these packages, the files whose tests run outside of bubbles, with the reason. A
// comment in the file itself must also explain why its tests cannot run in a bubble.
var outsideBubbles = map[string]string{
	"internal/archive/archiver/bucket_test.go":       "is in the bubbles of sim_test.go",
	"internal/archive/archiver/owner_test.go":        "is in the bubbles of archiver_test.go",
	"internal/test/clienttest/tls_test.go":           "certificates are files, which are read again when they change",
	"internal/local/dev/folder_test.go":              "settings are a file of the operating system",
	"internal/local/dev/tls_test.go":                 "a whole `sheaf dev` on files and sockets, with certificates",
	"internal/gateway/bench_test.go":                 "a benchmark measures TCP",
	"internal/gateway/name_test.go":                  "names are looked up by a server of DNS",
	"internal/storage/group/install_follow_test.go":  "also a copy to files of the machine",
	"internal/storage/group/log_bench_test.go":       "a benchmark measures the disk of the machine",
	"internal/storage/group/renew_test.go":           "a guard against hanging",
	"internal/storage/group/replica_folder_test.go":  "a folder of the machine",
	"internal/consensus/peer/fetch_test.go":          "a guard against hanging",
	"internal/consensus/peer/harness_test.go":        "connections break as those of TCP do",
	"internal/consensus/peer/hub_test.go":            "the process itself is stopped, which virtual time does not have",
	"internal/placement/registry/register_test.go":   "a registration dials the address of a live shard",
	"internal/placement/registry/store_test.go":      "the contract of registries, on a real etcd, too",
	"internal/placement/registry/waits_test.go":      "a registration dials the address of a live shard",
	"internal/consensus/replica/bench_batch_test.go": "a benchmark measures the disk of the machine",
	"internal/consensus/replica/bench_idle_test.go":  "a benchmark measures what idle groups cost",
	"internal/consensus/replica/bench_test.go":       "a benchmark measures the disk of the machine",
	"internal/consensus/replica/fault_test.go":       "polls replicas on a disk in memory, in real time",
	"internal/consensus/replica/rules_test.go":       "polls replicas on a disk in memory, in real time",
	"internal/consensus/replica/storage_test.go":     "polls replicas on a disk in memory, in real time",
	"internal/local/dev/main_test.go": "a first sync of a file starts a goroutine of the process, before " +
		"any bubble",
	"internal/shard/bench_test.go":           "a benchmark measures TCP",
	"internal/shard/disklost_test.go":        "loop devices",
	"internal/shard/explore_client_test.go":  "is in the bubble of explore_test.go",
	"internal/shard/explore_delete_test.go":  "is in the bubble of explore_test.go",
	"internal/shard/explore_machine_test.go": "is in the bubble of explore_test.go",
	"internal/shard/explore_nemesis_test.go": "is in the bubble of explore_test.go",
	"internal/shard/harness_test.go":         "the harness of tests in bubbles and beside them",
	"internal/shard/rebuilt_test.go":         "a real etcd that is stopped and rebuilt",
	"internal/shard/secure_test.go":          "sockets of a listener with TLS",
	"internal/shard/setback_test.go":         "a real etcd that is set back",
	"internal/shard/smalldisk_test.go":       "the disk-full tests on a real ext4, in a soak",
	"internal/shard/tenant_bench_test.go":    "a benchmark measures tenants by the real clock",
	"internal/shard/unread_test.go":          "memory that the process holds is counted",
	"internal/test/sim/blob_test.go":         "is in the bubble of world_test.go",
	"internal/test/sim/holds_test.go":        "is in the bubble of world_test.go",
	"internal/test/sim/lease_test.go":        "is in the bubble of world_test.go",
	"internal/test/sim/machine_test.go":      "is in the bubble of world_test.go",
}

var (
	// realTime matches calls that wait, and calls to TempDir. They are allowed only in a file that uses bubbles, because
	// in a bubble waiting takes no real time, and folders are on disks in memory.
	realTime = regexp.MustCompile(`\btime\.(Sleep|After|Tick)\(|\.TempDir\(`)
	// realThings matches calls that create something real, such as a socket or a folder, which no bubble may contain.
	realThings = regexp.MustCompile(
		`\bnet\.Listen\(|\bnet\.ListenConfig\b|\bos\.MkdirTemp\(|\betcdtest\.(Shared|NewOwn)\(`)
	// zeroTimer matches timers with a duration of 0. Two of them in one bubble crash the race detector of Go 1.26 (see
	// conn in package bubbletest).
	zeroTimer = regexp.MustCompile(`\btime\.(After|AfterFunc|NewTimer)\(0\b|\.Reset\(0\)`)
	bubble    = regexp.MustCompile(`\bsynctest\.|\bbubbletest\.|\binBubble\(`)
)

// refused returns the reason why a test file is not allowed, or "" if it is allowed.
func refused(source string) string {
	switch {
	case realThings.MatchString(source):
		return "opens a listener or an etcd of the machine (" + realThings.FindString(source) + "...)"
	case zeroTimer.MatchString(source):
		return "has a timer that fires at once (" + zeroTimer.FindString(source) + "...)"
	case realTime.MatchString(source) && !bubble.MatchString(source):
		return "waits for real time or has a folder of the machine (" + realTime.FindString(source) + "...)"
	}
	return ""
}

func TestTestsStayInVirtualTime(t *testing.T) {
	unused := map[string]bool{}
	for name := range outsideBubbles {
		unused[name] = true
	}
	for _, pkg := range inBubbles {
		files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
		must.OK(t, err)
		if len(files) == 0 {
			t.Errorf("%s has no tests", pkg)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			must.OK(t, err)
			name := strings.TrimPrefix(filepath.ToSlash(file), root+"/")
			why := refused(string(source))
			if why != "" && outsideBubbles[name] == "" {
				t.Errorf("%s %s: tests of %s run in bubbles, see \"Rules for chance\" in CONTRIBUTING.md; what cannot says so, "+
					"and is listed here", name, why, pkg)
			}
			if why != "" {
				delete(unused, name)
			}
		}
	}
	for name := range unused {
		t.Errorf("%s is listed as outside of bubbles, and may be in one: take it off the list", name)
	}
}

func TestRefused(t *testing.T) {
	for source, want := range map[string]bool{
		"time.Sleep(time.Second)":                                      true,
		"synctest.Test(t, f); time.Sleep(time.Second)":                 false,
		"inBubble(t, f)\n<-time.After(1)":                              false,
		"bubbletest.Run(t, f); l, err := net.Listen(\"tcp\", address)": true,
		"dir := t.TempDir()":                                           true,
		"bubbletest.Run(t, f); time.AfterFunc(0, f)":                   true,
		"vfstest.NewMem()":                                             false,
		"registry.NewStore(etcdtest.Shared(t), name); synctest.Wait()": true,
	} {
		if got := refused(source) != ""; got != want {
			t.Errorf("refused %v, want %v: %s", got, want, source)
		}
	}
}
