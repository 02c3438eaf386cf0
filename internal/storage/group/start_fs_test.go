package group

import (
	"os"
	"path/filepath"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/grouptest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestAStartOnRealFileSystems checks that a start after a kill reads only the group's content, and takes memory only
// for that content. The tested file systems allocate the unused space at the end of the active segment in different
// ways, but on none of them may this space cost anything.
func TestAStartOnRealFileSystems(t *testing.T) {
	if testing.Short() {
		t.Skip("short: makes file systems")
	}
	for fsType, size := range map[string]int64{"ext4": 128 << 20, "xfs": 320 << 20, "btrfs": 256 << 20} {
		t.Run(fsType, func(t *testing.T) {
			point := vfstest.LoopMount(t, fsType, "", size)
			residencies(t, func(t *testing.T, residency Residency) {
				opts := driverOptions(vfs.OS{}, residency, 64<<20)
				opts.Dir = filepath.Join(point, residency.String())
				d := newDriver(t, opts)
				const records, size = 1200, 10 << 10
				d.fill(records, size, random)
				ok(t, d.log.Tick())
				stored := d.log.Stats().StoredBytes
				ok(t, d.log.Close(false))
				name := filepath.Join(opts.Dir, format.SegmentName(1))
				info, err := os.Stat(name)
				ok(t, err)
				if info.Size() < stored*5/4 {
					t.Fatalf("the file has %d bytes for %d stored: no room at its end, so this test tests nothing", info.Size(),
						stored)
				}
				// This read, which could also come from another program, puts the unused space into the page cache.
				_, err = os.ReadFile(name)
				ok(t, err)

				seen := watchReads(t, &d.opts)
				if report := d.load(); report.Outcome != Loaded {
					t.Errorf("report %+v", report)
				}
				defer func() { ok(t, d.log.Close(false)) }()
				if read := seen.bytes(""); read > stored*105/100 {
					t.Errorf("%d bytes were read, %d are stored", read, stored)
				}
				for _, s := range d.log.state.segments {
					if touched := grouptest.TouchedBytes(t, s.image); touched > stored+64<<10 {
						t.Errorf("%d bytes of memory were touched for an image of %d", touched, stored)
					}
				}
				ok(t, d.log.Apply(d.last(), nil))
				d.wants(records-1, grouptest.RandomBytes(records-1, size))
			})
		})
	}
}
