package group

import (
	"maps"
	"path"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// The tests in this file cover how versions are added to a log, or removed from it, other than by writes and
// compaction (ADR 59).

// offsetOf returns the offset in segment 1 of the entry with the given index.
func offsetOf(t testing.TB, l *Log, at uint64) int64 {
	t.Helper()
	views := l.reader.views(0, everything)
	defer unpinAll(views)
	rows, err := l.reader.rowsOf(views[0])
	ok(t, err)
	for i, index := range rows.Indexes {
		if views[0].first+uint64(index) == at {
			return int64(rows.Places[i]>>16&(1<<28-1)) * 8
		}
	}
	t.Fatalf("segment 1 has no version %d", at)
	return 0
}

// heldHistory returns a log with a hold at 0. Record 1 has the versions 1 and 3, record 2 has version 2, and all of
// them are in sealed segments.
func heldHistory(t testing.TB) (*logDriver, *vfstest.Mem) {
	t.Helper()
	mem := vfstest.NewMem()
	d := newHeld(t, driverOptions(mem, Index, 64<<10), 0)
	d.put(format.Entry{ID: 1, Data: payload(1, 50)}, format.Entry{ID: 2, Data: payload(2, 50)})
	d.put(format.Entry{ID: 1, Data: payload(1, 50)})
	ok(t, d.log.Seal())
	d.put(format.Entry{ID: 3, Data: payload(3, 50)})
	d.log.hints.writing.Wait()
	return d, mem
}

// damaged closes the log, changes a byte of segment 1, loads the log again, and makes the log find the damage.
func (d *logDriver) damaged(mem *vfstest.Mem, at int64) {
	d.t.Helper()
	ok(d.t, d.log.Close(true))
	name := path.Join(d.opts.Dir, format.SegmentName(1))
	if !mem.Rot(name, at, 1, func(b []byte) { b[0] ^= 4 }) {
		d.t.Fatalf("byte %d is not on the disk", at)
	}
	d.load()
	ok(d.t, d.log.Apply(d.last(), nil))
	_, err := d.log.Verify(d.t.Context(), 0)
	ok(d.t, err)
	if !d.log.Damaged() {
		d.t.Fatal("no damage was found")
	}
}

// TestADroppedVersionStaysSupersededAfterAPowerCut drops a version that an applied entry has superseded, and cuts the
// power before the log was told that this entry is committed. The loaded log must have applied the entry again.
// Otherwise the record would be missing, and a hold that begins then would promise a state without it.
func TestADroppedVersionStaysSupersededAfterAPowerCut(t *testing.T) {
	mem := vfstest.NewMem()
	d := newDriver(t, driverOptions(mem, Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: payload(1, 50)}, format.Entry{ID: 2, Data: payload(2, 50)})
	ok(t, d.log.Seal())
	d.put(format.Entry{ID: 1, Data: payload(1, 60)})
	compactAll(t, d.log)
	wantIndexes(t, d.log, 1, 3)
	ok(t, d.log.Close(false))

	d.opts.FS = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
	d.load()
	d.log.SetHold(Hold{On: true})
	floor, err := d.log.SettleHistory()
	ok(t, err)
	scan, err := d.log.OpenScanAt(floor, time.Hour)
	ok(t, err)
	scanned, got, err := readScan(d.log, scan, 3)
	ok(t, err)
	if want := map[int64]uint64{1: 3, 2: 2}; !maps.Equal(scanned, want) || !maps.Equal(got, want) {
		t.Errorf("as of the history floor %d, a scan has %v and gets have %v, want %v", floor, scanned, got, want)
	}
	ok(t, d.log.Close(false))
}

// TestNoVersionIsDroppedBeforeAMembershipChangeIsRecorded compacts after a membership change was applied and before the
// manifest has it. A load would then apply entries only up to the change, so it might not apply the entries that
// superseded what was dropped.
func TestNoVersionIsDroppedBeforeAMembershipChangeIsRecorded(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: payload(1, 50)}, format.Entry{ID: 2, Data: payload(2, 50)})
	ok(t, d.log.Seal())
	d.put(format.Entry{Kind: format.KindConf}, format.Entry{ID: 1, Data: payload(1, 60)})
	compactAll(t, d.log)
	wantIndexes(t, d.log, 1, 1, 4)
	ok(t, d.log.SetConf(&raftpb.ConfState{Voters: []uint64{1}}, 3))
	compactAll(t, d.log)
	wantIndexes(t, d.log, 1, 4)
	ok(t, d.log.Close(false))
}

// TestARepairThatLeavesOutVersionsRaisesTheHistoryFloor checks the floor after a repair that leaves out versions which
// the peer has compacted away. The repair does not know up to which index the peer's history is complete, so the floor
// becomes the applied index.
func TestARepairThatLeavesOutVersionsRaisesTheHistoryFloor(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		d, mem := heldHistory(t)
		opts := d.opts
		opts.FS = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
		peer, _, err := Load(t.Context(), opts, nil)
		ok(t, err)
		ok(t, peer.Apply(4, nil))
		want := uint64(0)
		if compacted {
			want = 4
			peer.SetHold(Hold{})
			compactAll(t, peer)
		}
		d.damaged(mem, offsetOf(t, d.log, 1)+format.FrameHeaderBytes)
		ok(t, repairFrom(peer, d.log))
		wantFloor(t, d.log, want, true)
		if n := len(indexesOf(t, d.log, 1)); compacted && n != 1 || !compacted && n != 2 {
			t.Errorf("record 1 has %d versions", n)
		}
		ok(t, d.log.Close(false))
		d.load()
		wantFloor(t, d.log, want, true)
		ok(t, d.log.Close(false))
		ok(t, peer.Close(false))
	}
}

// TestAnAcceptedLossRaisesTheHistoryFloor checks that the floor jumps ahead together with the indexes, because lost
// entries may be versions of any record. A reader of the log therefore cannot mistake the remaining entries for a
// complete continuation of what it has read so far.
func TestAnAcceptedLossRaisesTheHistoryFloor(t *testing.T) {
	d, mem := heldHistory(t)
	d.damaged(mem, offsetOf(t, d.log, 3)+format.FrameHeaderBytes)
	l, lost, err := d.log.AcceptLoss(t.Context())
	ok(t, err)
	if len(lost) != 1 {
		t.Errorf("lost %v", lost)
	}
	wantFloor(t, l, 4+format.LossJump, true)
	if at := l.AppliedIndex(); at != 4+format.LossJump {
		t.Errorf("applied index %d", at)
	}
	// An archiver may have read more of the lost entries than this copy ever had, such as one with index 9.
	if floor := l.DeletesFloor(); floor != 4+format.LossJump {
		t.Errorf("deletes up to index %d may be lost, and their floor is %d", 4+format.LossJump, floor)
	}
	ok(t, l.Close(false))
}

// TestAnAcceptedLossWithoutAHoldMakesNoHistoryFloor checks that a log that never had a hold has no history floor after
// an accepted loss.
func TestAnAcceptedLossWithoutAHoldMakesNoHistoryFloor(t *testing.T) {
	mem := vfstest.NewMem()
	d := newDriver(t, driverOptions(mem, Index, 64<<10))
	d.put(format.Entry{ID: 1, Data: payload(1, 50)})
	ok(t, d.log.Seal())
	d.log.hints.writing.Wait()
	d.damaged(mem, offsetOf(t, d.log, 1)+format.FrameHeaderBytes)
	l, _, err := d.log.AcceptLoss(t.Context())
	ok(t, err)
	wantFloor(t, l, 0, false)
	ok(t, l.Close(false))
}

// TestRepairsThatLoseNothingKeepTheHistoryFloor checks that the floor stays the same when a damaged small file is
// rewritten, or when a repair restores all entries.
func TestRepairsThatLoseNothingKeepTheHistoryFloor(t *testing.T) {
	d, mem := heldHistory(t)
	d.log.SetHold(Hold{Index: 3, On: true})
	compactAll(t, d.log)
	wantFloor(t, d.log, 3, true)
	if !mem.Rot(path.Join(d.opts.Dir, format.ManifestName), 40, 1, func(b []byte) { b[0] ^= 4 }) {
		t.Fatal("the manifest is not on the disk")
	}
	report, err := d.log.Verify(t.Context(), 0)
	if err != nil || len(report.Damages) != 1 {
		t.Errorf("%+v, %v", report.Damages, err)
	}
	number := d.log.folder.manifest.Segments[0].Number
	ok(t, d.log.Close(true))
	if !mem.Rot(path.Join(d.opts.Dir, format.SegmentName(number)), 70, 1, func(b []byte) { b[0] ^= 4 }) {
		t.Fatal("the segment is not on the disk")
	}
	repaired, err := fsck.RepairDir(t.Context(), mem, d.opts.Dir, nil)
	if err != nil || repaired.NextIndex != 0 || len(repaired.Rewritten) != 1 {
		t.Errorf("%+v, %v", repaired, err)
	}
	d.load()
	wantFloor(t, d.log, 3, true)
	ok(t, d.log.Close(false))
}

// TestAnInstallTakesTheHistoryFloorOfTheFiles checks that after an install a log has the floor of the installed files,
// even if that floor is lower or unknown.
func TestAnInstallTakesTheHistoryFloorOfTheFiles(t *testing.T) {
	for _, held := range []bool{false, true} {
		from := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
		from.put(format.Entry{ID: 1})
		if held {
			from.log.SetHold(Hold{Index: 1, On: true})
			ok(t, from.log.BeginHistory())
		}
		from.put(format.Entry{ID: 1}, format.Entry{ID: 1})
		to := from.opts
		to.FS = vfstest.NewMem()
		ok(t, to.FS.MkdirAll(to.Dir))
		ok(t, install(from.log, to))
		l, _, err := Load(t.Context(), to, nil)
		ok(t, err)
		wantFloor(t, l, map[bool]uint64{true: 1}[held], held)
		ok(t, l.Close(false))
		ok(t, from.log.Close(false))
	}
}
