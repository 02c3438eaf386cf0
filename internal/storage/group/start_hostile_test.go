package group

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// hostileDisk returns the disk of a group with 120 acknowledged records after a power cut. The last 100 records are
// above the synced mark, in one batch.
func hostileDisk(t *testing.T, residency Residency, voters ...uint64) (opts Options, disk *vfstest.Mem, batch int64) {
	t.Helper()
	mem := vfstest.NewMem()
	opts = driverOptions(mem, residency, 0)
	must.OK(t, Create(opts, &raftpb.ConfState{Voters: voters}))
	d := &logDriver{t: t, opts: opts, term: 1}
	d.load()
	d.fill(20, 500, payload)
	must.OK(t, d.log.Tick())
	batch = d.log.state.syncedEnd
	var entries []format.Entry
	for i := int64(20); i < 120; i++ {
		entries = append(entries, format.Entry{ID: i, Data: payload(i, 500)})
	}
	d.put(entries...)
	disk = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
	must.OK(t, d.log.Close(false))
	opts.FS = disk
	return opts, disk, batch
}

// cannotRead returns a fault that makes reads of one block in a file fail.
func cannotRead(name string, offset, times int64) *vfstest.Fault {
	return &vfstest.Fault{Count: times, Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpRead && op.Name == name && op.Offset < offset+format.BlockBytes &&
			offset < op.Offset+op.Length
	}}
}

// TestAStartDoesNotTruncateWhatItCannotRead checks that a block that cannot be read is not mistaken for a torn write
// and therefore for the end of the log. A torn write can always be read.
func TestAStartDoesNotTruncateWhatItCannotRead(t *testing.T) {
	for _, residency := range []Residency{Index, Resident} {
		for name, c := range map[string]struct {
			times  int64 // how many reads of the block fail
			atEnd  bool  // whether the block is the last one in the log
			voters []uint64
		}{
			"once":                  {times: 1, voters: []uint64{1}},
			"twice":                 {times: 2, voters: []uint64{1}},
			"always":                {voters: []uint64{1}},
			"always, three voters":  {voters: []uint64{1, 2, 3}},
			"always, at the end":    {atEnd: true, voters: []uint64{1}},
			"at the end, of three":  {atEnd: true, voters: []uint64{1, 2, 3}},
			"once, of three voters": {times: 1, voters: []uint64{1, 2, 3}},
		} {
			t.Run(fmt.Sprintf("%v %s", residency, name), func(t *testing.T) {
				opts, disk, batch := hostileDisk(t, residency, c.voters...)
				segment := "/v/7/" + format.SegmentName(1)
				at := (batch + 20*format.BlockBytes) &^ (format.BlockBytes - 1)
				if c.atEnd {
					f, err := disk.Open(segment)
					must.OK(t, err)
					size, err := f.Size()
					must.OK(t, err)
					end, err := f.DataEnd(0)
					must.OK(t, err)
					must.OK(t, f.Close())
					at = (min(size, end) - 1) &^ (format.BlockBytes - 1)
				}
				faulty := vfstest.NewFaulty(disk)
				fault := faulty.Add(cannotRead(segment, at, c.times))
				opts.FS = faulty
				checked, err := fsck.VerifyDir(context.Background(), disk, opts.Dir, nil)
				if err != nil || len(checked.Damages) > 0 {
					t.Fatalf("verify of the whole disk: %+v, %v", checked, err)
				}
				if c.times == 0 {
					checked, err = fsck.VerifyDir(context.Background(), faulty, opts.Dir, nil)
					if err != nil || len(checked.Damages) == 0 || checked.TornBytes > 0 {
						t.Errorf("verify: %+v, %v", checked, err)
					}
				}
				log, report, err := Load(context.Background(), opts, nil)
				if fault.Fired() == 0 {
					t.Fatal("the fault did not fire")
				}
				if len(c.voters) > 1 && c.times == 0 {
					if !errors.Is(err, ErrTailDamaged) {
						t.Fatalf("three voters: %v, report %+v", err, report)
					}
					return
				}
				must.OK(t, err)
				defer func() { _ = log.Close(false) }()
				last, err := log.LastIndex()
				must.OK(t, err)
				if c.times > 0 {
					if last != 120 || report.Outcome == Damaged {
						t.Fatalf("last index %d, report %+v", last, report)
					}
					return
				}
				if last < 120 || report.Outcome != Damaged || report.TornTailBytes > 0 {
					t.Fatalf("last index %d, report %+v", last, report)
				}
				refused := 0
				for id := range int64(120) {
					switch r, err := log.Get(id, GetOptions{}); {
					case err == nil && string(r.Data) == string(payload(id, 500)):
					case errors.As(err, new(*format.DamageError)):
						refused++
					default:
						t.Errorf("record %d: %v", id, err)
					}
				}
				if refused == 0 {
					t.Error("nothing is refused")
				}
				// Later writes must get new indexes. They must still exist after the next start, when the device can read
				// everything again.
				d := &logDriver{t: t, opts: opts, log: log, term: 1, time: 1000}
				d.put(format.Entry{ID: 1000, Data: payload(1000, 500)})
				d.put(format.Entry{ID: -1}) // this batch stores the commit index that covers the entry before it
				must.OK(t, log.Close(false))
				fault.Remove()
				report = d.load()
				d.wants(1000, payload(1000, 500))
				for id := int64(0); id < 120 && !c.atEnd; id++ {
					d.wants(id, payload(id, 500))
				}
				// If the unreadable block was at the end of the log, the first start could not count its entries, and skipped the
				// indexes that they may have had. At the next start, these missing indexes count as damage.
				if c.atEnd != (report.Outcome == Damaged) {
					t.Errorf("at the next start: %+v", report)
				}
			})
		}
	}
}

// TestACommitAboveTheLastEntryIsALoss checks that a commit index above the last entry is treated as proof that entries
// are missing.
func TestACommitAboveTheLastEntryIsALoss(t *testing.T) {
	for _, voters := range [][]uint64{{1}, {1, 2, 3}} {
		opts, disk, batch := hostileDisk(t, Index, voters...)
		m, err := format.ReadManifest(disk, opts.Dir)
		must.OK(t, err)
		m.HardState.Term, m.HardState.Commit, m.Sequence = 1, 120, m.Sequence+1
		must.OK(t, format.WriteManifest(disk, opts.Dir, m))
		f, err := disk.OpenWrite("/v/7/" + format.SegmentName(1))
		must.OK(t, err)
		must.OK(t, f.Truncate(batch))
		must.OK(t, f.Sync())
		must.OK(t, f.Close())
		checked, err := fsck.VerifyDir(context.Background(), disk, opts.Dir, nil)
		if err != nil || len(checked.Damages) != 1 || checked.Damages[0].IndexFirst != 21 ||
			checked.Damages[0].IndexLast != 120 {
			t.Errorf("verify: %+v, %v", checked, err)
		}
		log, report, err := Load(context.Background(), opts, nil)
		if len(voters) > 1 {
			if !errors.Is(err, ErrTailDamaged) {
				t.Errorf("three voters: %v, report %+v", err, report)
			}
			continue
		}
		must.OK(t, err)
		defer func() { _ = log.Close(false) }()
		if last, err := log.LastIndex(); err != nil || last != 120 || report.Outcome != Damaged {
			t.Errorf("last index %d, %v, report %+v", last, err, report)
		}
		if _, err := log.Get(100, GetOptions{}); !errors.As(err, new(*format.DamageError)) {
			t.Errorf("a record that is gone: %v", err)
		}
	}
}
