package powercut

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/etcdtest"
	"sheaf.dev/sheaf/internal/test/faultdisk"
	"sheaf.dev/sheaf/internal/test/loop"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// The mounts of the tests are in their own mount namespace, so that other processes do not see the mounts, and the
// mounts disappear when the process exits.
func TestMain(m *testing.M) {
	if err := loop.OwnMounts(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	etcdtest.Main(m)
}

const (
	// cutsOfTest is the number of cuts on each file system. With so few cuts, some runs neither tear nor reorder a
	// write.
	cutsOfTest       = 7
	cutsOfSoak       = 2000
	cutsOfARecording = 50
	writesRecorded   = 1500
	wrongMax         = 5 // the test stops after this many cuts that reveal a fault
)

// cutsWanted returns the number of cuts on each file system.
func cutsWanted(t *testing.T) int {
	t.Helper()
	if text := os.Getenv("SHEAF_POWERCUTS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("SHEAF_POWERCUTS=%s: give a number of cuts for each file system", text)
		}
		return n
	}
	if soaktest.Long() {
		return cutsOfSoak
	}
	return cutsOfTest
}

// seedWanted returns the first seed for loads and cuts.
func seedWanted(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("SHEAF_POWERCUT_SEED")
	if text == "" {
		return soaktest.Seed(t, 1)
	}
	n, err := strconv.ParseUint(text, 10, 64)
	must.OK(t, err)
	return n
}

// TestPowerCuts checks that everything that was acknowledged before a power cut survives, that no data appears that no
// client wrote, and that neither the file system's check nor `sheaf verify` finds an error.
func TestPowerCuts(t *testing.T) {
	for _, fs := range fileSystems {
		t.Run(fs.name, func(t *testing.T) {
			if testing.Short() {
				t.Skip("of the long tests")
			}
			fs.skipUnlessMountable(t)
			etcd := newStoreEtcd(t)
			total := &tally{keeps: map[faultdisk.Keep]int{}}
			wanted, wrong := cutsWanted(t), 0
			for seed := seedWanted(t); total.cuts < wanted && wrong < wrongMax; seed++ {
				r, err := record(t.Context(), fs, etcd, t.TempDir(), vfs.OS{}, writesRecorded, seed)
				must.OK(t, err)
				for i, name := range evidence {
					if r.counted[i] == 0 {
						t.Errorf("seed %d: %s is 0: the load does not test", seed, name)
					}
				}
				c := &cutter{recording: r, dir: t.TempDir(), tally: total}
				for _, err := range c.cutMany(t.Context(), min(cutsOfARecording, wanted-total.cuts), seed) {
					wrong++
					t.Errorf("seed %d: %v", seed, err)
				}
			}
			soaktest.Report(t, "cuts", total.cuts)
			t.Logf("%s: %v", fs.name, total)
			if total.repaired > 1+total.cuts/200 {
				t.Errorf("%d file systems had to be repaired, which is more than was ever seen", total.repaired)
			}
			rare := total.cuts >= cutsOfARecording && (total.loss.Reordered == 0 || total.loss.Torn == 0)
			if total.loss.Dropped == 0 || total.redo == 0 || rare {
				t.Error("some of it never came: the test does not test")
			}
		})
	}
}

// TestUnmountableFileSystemIsRepaired tears the superblock of ext4, so that the kernel refuses to mount the file system
// before it is repaired.
func TestUnmountableFileSystemIsRepaired(t *testing.T) {
	fs := fileSystemOf("ext4")
	fs.skipUnlessMountable(t)
	dir, disk := t.TempDir(), faultdisk.New(fs.bytes)
	m, err := fs.mount(dir, disk, true)
	must.OK(t, err)
	must.OK(t, os.WriteFile(filepath.Join(m.point, "x"), []byte("kept"), 0o600))
	must.OK(t, m.detach())
	sector := make([]byte, 512)
	const second = 1024 + 512 // offset of the second half of the superblock
	_, err = disk.WriteAt(sector, second)
	must.OK(t, err)
	if _, err := fs.mount(dir, disk, false); !errors.Is(err, errMount) {
		t.Fatalf("it is not needed: %v", err)
	}
	m, repaired, err := fs.mountOrRepair(dir, disk)
	must.OK(t, err)
	if !repaired {
		t.Error("that it was repaired is not told")
	}
	got, err := os.ReadFile(filepath.Join(m.point, "x"))
	if err != nil || string(got) != "kept" {
		t.Errorf("%q, %v", got, err)
	}
	must.OK(t, m.detach())
}
