package group

import (
	"path"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/grouptest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestPlanLoadOfAnUnsealedSegment checks that the need of a group that was not closed is computed from the group's
// records, without the unused space at the end of the active segment.
func TestPlanLoadOfAnUnsealedSegment(t *testing.T) {
	residencies(t, func(t *testing.T, residency Residency) {
		fs := vfstest.NewMem()
		d := newDriver(t, driverOptions(fs, residency, 64<<20))
		const records, size = 3000, 300
		d.fill(records, size, random)
		ok(t, d.log.Close(false))
		stored := records * format.FrameBytes(0, size)
		info, err := fs.Stat(path.Join(d.opts.Dir, format.SegmentName(1)))
		ok(t, err)
		if info.Size() < stored*5/4 {
			t.Fatalf("the file has %d bytes for %d stored: no room at its end, so this test tests nothing", info.Size(), stored)
		}
		for _, marked := range []bool{true, false} {
			if !marked {
				ok(t, fs.Remove(path.Join(d.opts.Dir, format.MarkName)))
				ok(t, format.CreateMark(fs, d.opts.Dir))
			}
			need, err := PlanLoad(d.opts)
			ok(t, err)
			if need.Records < records*3/4 || need.Records > records*2 {
				t.Errorf("marked %v: a need of %d records is computed, there are %d", marked, need.Records, records)
			}
			if residency == Resident && (need.MemoryBytes < stored || need.MemoryBytes > stored*3/2) {
				t.Errorf("marked %v: a need of %d bytes is computed, %d are stored", marked, need.MemoryBytes, stored)
			}
		}
		d.load()
		defer func() { ok(t, d.log.Close(false)) }()
		// The log does not know that the last entry is committed, so that entry's record is not visible. The plan
		// counts the entry nevertheless.
		d.wants(records-1, nil)
	})
}

// TestPlanLoadEstimatesWhatIsAboveTheMark checks the estimated number of entries above the mark, which PlanLoad
// extrapolates from a small sample. The estimate must never be much too low, no matter how large the records are.
func TestPlanLoadEstimatesWhatIsAboveTheMark(t *testing.T) {
	for _, c := range []struct {
		what    string
		records int
		size    func(i int) int
	}{
		{"100 B", 40_000, func(int) int { return 100 }},
		{"10 KB", 1_000, func(int) int { return 10 << 10 }},
		{"200 KB, larger than a piece", 100, func(int) int { return 200 << 10 }},
		{"sizes that change from record to record", 3_000, func(i int) int { return i * 7919 % 5000 }},
		{"small ones, then large ones", 3_000, func(i int) int { return 100 + i/1500*9000 }},
	} {
		t.Run(c.what, func(t *testing.T) {
			fs := vfstest.NewMem()
			d := newDriver(t, driverOptions(fs, Index, 64<<20))
			batch := make([]format.Entry, c.records)
			for i := range batch {
				batch[i] = format.Entry{ID: int64(i), Data: grouptest.RandomBytes(uint64(i), c.size(i))}
			}
			d.put(batch...)
			ok(t, d.log.Close(false))
			ok(t, fs.Remove(path.Join(d.opts.Dir, format.MarkName)))
			ok(t, format.CreateMark(fs, d.opts.Dir))
			reads := watchReads(t, &d.opts)
			need, err := PlanLoad(d.opts)
			ok(t, err)
			if least, most := int64(c.records)*3/4, int64(c.records)*4; need.Records < least || need.Records > most {
				t.Errorf("a need of %d records is computed, there are %d", need.Records, c.records)
			}
			if bytes := reads.bytes(format.SegmentName(1)); bytes > int64(c.records*(c.size(c.records-1)+200)/countShare)+
				(countPiecesMin+1)*countPieceBytes {
				t.Errorf("%d bytes of the segment were read for it", bytes)
			}
		})
	}
}
