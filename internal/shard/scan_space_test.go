package shard

import (
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/storage/group"
)

// A scan whose caller has disconnected or hangs keeps the data that is overwritten after the beginning of the scan.
// The shard gives up this data only if it would otherwise have to refuse a write for lack of space.
func TestScansDoNotFillAVolume(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) { scansDoNotFillAVolume(t) })
}

func scansDoNotFillAVolume(t testing.TB) {
	f := start(t, newRegistry(hash4, "s1"), func(c *Config) {
		smallDisk(t, c, 96)
		c.Compaction = Compaction{Interval: time.Hour, RateBytesPerSecond: -1}
		c.sendTimeout = time.Hour // on a busy machine, the scan that hangs must not be aborted as a slow reader
	}).ready()
	ids := idsOf(hash4, 0, 100)
	f.overwrite(ids, 1, 200_000)
	hangs, err := f.records.Scan(f.ctx(), &recordv1.ScanRequest{Group: "0"})
	must(t, err)
	f.eventually("a scan is open", func() bool { return f.served(0).Log().Stats().ScansRead == 1 })
	var there map[int64][]byte
	var cursors [][]byte
	for range 6 { // each scan keeps 20 MB of superseded data of its own
		// The scans begin at different times, so that their order is clear when the oldest ones are closed first.
		time.Sleep(time.Second)
		_, cut, err := f.scan(&recordv1.ScanRequest{Group: "0"}, 1) // the caller disconnects after the first message
		must(t, err)
		cursors = append(cursors, cut)
		there = f.overwrite(ids, 1, 200_000)
	}
	_, _, err = f.scan(&recordv1.ScanRequest{Cursor: cursors[0]}, 1)
	want(t, err, codes.OutOfRange, reason.CursorExpired)
	// The scan that hangs is closed after all others. If closing the others frees enough space, which depends on when
	// free space is checked, the hanging scan remains open and returns all its records.
	told := 0
	for err = nil; err == nil; {
		var message *recordv1.ScanResponse
		message, err = hangs.Recv()
		told += len(message.GetRecords())
	}
	if !errors.Is(err, io.EOF) || told != len(ids) {
		want(t, err, codes.OutOfRange, reason.CursorExpired)
	}
	records, _, err := f.scan(&recordv1.ScanRequest{Group: "0"}, 0)
	if err != nil || len(records) != len(ids) {
		t.Errorf("a scan that begins again: %d records, %v", len(records), err)
	}
	f.holdsAll(there)
}

// The data that unread scans keep is limited even if there is free space. A scan that is being read continues.
func TestScansThatAreInterruptedKeepAPartOfTheVolume(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) { scansThatAreInterruptedKeepAPartOfTheVolume(t) })
}

func scansThatAreInterruptedKeepAPartOfTheVolume(t testing.TB) {
	f := start(t, newRegistry(hash4, "s1"), func(c *Config) {
		smallDisk(t, c, 256)
		c.SegmentBytes = 1 << 20
		c.Compaction = Compaction{Interval: 10 * time.Millisecond, RateBytesPerSecond: -1}
	}).ready()
	ids := idsOf(hash4, 0, 100)
	f.overwrite(ids, 1, 200_000)
	log := f.served(0).Log()
	open := func() group.ScanID {
		t.Helper()
		id, err := log.OpenScan(time.Hour)
		must(t, err)
		return id
	}
	interrupted, read := open(), open()
	must(t, log.EnterScan(read))
	f.overwrite(ids, 2, 200_000) // the scans keep 20 MB; the limit is a sixteenth of 256 MiB
	f.eventually("the scan that nobody reads is given up", func() bool {
		return !slices.ContainsFunc(log.Scans(), func(s group.OpenScan) bool { return s.ID == interrupted })
	})
	if !slices.ContainsFunc(log.Scans(), func(s group.OpenScan) bool { return s.ID == read }) {
		t.Error("the scan that is read was given up, too")
	}
	log.LeaveScan(read)
}
