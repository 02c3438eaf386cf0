package shard

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/test/soaktest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// smallDisk gives a shard a disk of the given size. In a bubble, the disk is in memory. Outside a bubble, it is a
// mounted ext4 file system. Tests that fill disks are skipped in short runs, because they take minutes with the race
// detector. Nothing is missed, because other tests also write, compact and scan concurrently.
func smallDisk(t testing.TB, c *Config, megabytes int64) {
	t.Helper()
	if testing.Short() {
		t.Skip("short: fills a disk")
	}
	if disk, ok := c.FS.(*vfstest.Mem); ok {
		disk.SetCapacity(megabytes << 20)
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, megabytes<<20))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", "-m", "0", image).CombinedOutput(); err != nil {
		t.Skipf("mkfs.ext4: %v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		t.Skipf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	c.Dir = dir
}

// TestSmallRealDisks takes tests that otherwise use an in-memory disk, and runs them on a real ext4 file system in real
// time. An in-memory disk imitates neither the space that a file system itself uses, nor the moment at which it reports
// that it is full.
func TestSmallRealDisks(t *testing.T) {
	soaktest.Only(t, "log", "it writes gigabytes to disks")
	for name, test := range map[string]func(t testing.TB){
		"a full disk makes room of what was overwritten":   aFullDiskFreesWhatWasOverwritten,
		"full disk is refused early":                       fullDiskIsRefusedEarly,
		"the reserve is not allocated ahead":               theReserveIsNotAllocatedAhead,
		"no write is refused beside trash":                 noWriteIsRefusedBesideTrash,
		"the trash goes where nothing is compacted":        theTrashGoesWhereNothingIsCompacted,
		"a returning group gets the room of the trash":     aReturningGroupGetsTheSpaceOfTheTrash,
		"on a small volume less is superseded":             onASmallVolumeLessIsSuperseded,
		"scans do not fill a volume":                       scansDoNotFillAVolume,
		"scans that are cut off keep a part of the volume": scansThatAreInterruptedKeepAPartOfTheVolume,
	} {
		t.Run(name, func(t *testing.T) { test(t) })
	}
}
