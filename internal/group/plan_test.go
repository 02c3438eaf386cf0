package group

import (
	"path"
	"testing"

	"sheaf.dev/sheaf/internal/vfs"
)

// The need of a group that was not closed is that of its records, not of the room at the end of its active segment.
func TestPlanLoadOfAnUnsealedSegment(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		fs := vfs.NewMem()
		d := newDriver(t, driverOptions(fs, residency, 64<<20))
		const records, size = 3000, 300
		for id := range int64(records) {
			d.put(Entry{ID: id, Data: randomBytes(uint64(id), size)})
		}
		ok(t, d.log.Close(false))
		stored := records * FrameBytes(0, size)
		info, err := fs.Stat(path.Join(d.opts.Dir, SegmentName(1)))
		ok(t, err)
		if info.Size() < stored*5/4 {
			t.Fatalf("the file has %d bytes for %d stored: no room at its end, so this test tests nothing", info.Size(), stored)
		}
		for _, marked := range []bool{true, false} {
			if !marked {
				ok(t, fs.Remove(path.Join(d.opts.Dir, MarkName)))
				ok(t, CreateMark(fs, d.opts.Dir))
			}
			need, err := PlanLoad(d.opts)
			ok(t, err)
			if need.Records < records || need.Records > records*11/10 {
				t.Errorf("marked %v: a need of %d records is computed, there are %d", marked, need.Records, records)
			}
			if residency == Resident && (need.MemoryBytes < stored || need.MemoryBytes > stored*3/2) {
				t.Errorf("marked %v: a need of %d bytes is computed, %d are stored", marked, need.MemoryBytes, stored)
			}
		}
		d.load()
		defer func() { ok(t, d.log.Close(false)) }()
		d.wants(records-1, nil) // its commit was not told to the log: the plan counts it all the same
	})
}
