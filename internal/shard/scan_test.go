package shard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/shard/serve"
)

// scan reads at most the given number of messages, and returns the records and the last cursor. If most is 0, it reads
// all messages.
func (f *fixture) scan(in *recordv1.ScanRequest, most int) (records []*recordv1.Record, last []byte, err error) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.ctx())
	defer cancel() // makes the shard drop the unread messages of the stream
	stream, err := f.records.Scan(ctx, in)
	must(f.t, err)
	for n := 0; most == 0 || n < most; n++ {
		out, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return records, last, nil
		}
		if err != nil {
			return records, last, err
		}
		records, last = append(records, out.GetRecords()...), out.GetCursor()
	}
	return records, last, nil
}

// fill puts n records of size bytes, then deletes every tenth and rewrites every seventh, and returns the resulting
// records.
func (f *fixture) fill(n, size int) map[int64][]byte {
	f.t.Helper()
	there := map[int64][]byte{}
	for id := range int64(n) {
		there[id] = data(id, size)
		f.put(id, there[id])
	}
	for id := range int64(n) {
		switch {
		case id%10 == 0:
			f.delete(id)
			delete(there, id)
		case id%7 == 0:
			there[id] = data(id+1, size)
			f.put(id, there[id])
		}
	}
	return there
}

// same checks that the slice records contains each record of the map `there` exactly once, and no other record.
func same(t testing.TB, records []*recordv1.Record, there map[int64][]byte) {
	t.Helper()
	seen := map[int64]bool{}
	for _, r := range records {
		id := r.GetKey().GetId()
		if seen[id] {
			t.Errorf("record %d twice", id)
		}
		seen[id] = true
		if d, ok := there[id]; !ok || !bytes.Equal(r.GetData(), d) || r.DataCrc32C == nil || r.GetDeleted() {
			t.Errorf("record %d: %d bytes, there %v", id, len(r.GetData()), ok)
		}
	}
	if len(seen) != len(there) {
		t.Errorf("%d records, want %d", len(seen), len(there))
	}
}

func TestScanAllGroups(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		residencies(t, func(t *bubble, f *fixture) {
			there := f.fill(500, 20_000)
			records, last, err := f.scan(&recordv1.ScanRequest{}, 0)
			must(t, err)
			same(t, records, there)
			if records, _, err := f.scan(&recordv1.ScanRequest{Cursor: last}, 0); err != nil || len(records) > 0 {
				t.Errorf("behind the end: %d records, %v", len(records), err)
			}
		})
	})
}

func TestScanResumesBehindEveryMessage(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: one scan after another")
	}
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		there := f.fill(300, 30_000)
		var records []*recordv1.Record
		in, messages := &recordv1.ScanRequest{}, 0
		for {
			got, last, err := f.scan(in, 1)
			must(t, err)
			if len(got) == 0 {
				break
			}
			messages++
			records = append(records, got...)
			in = &recordv1.ScanRequest{Cursor: last}
			// A scan that has already reached a group reads from its snapshot of the group, so it does not return later
			// writes.
			f.put(records[0].GetKey().GetId(), []byte("later"))
		}
		same(t, records, there)
		if messages < 5 {
			t.Errorf("only %d messages: the test resumes too seldom", messages)
		}
	})
}

func TestScanSplits(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		there := f.fill(400, 30_000)
		plan, err := f.records.PlanScan(f.ctx(), &recordv1.PlanScanRequest{SplitBytes: 1 << 20})
		must(t, err)
		if len(plan.GetSplits()) < 8 {
			t.Errorf("only %d splits of 12 MB in 4 groups", len(plan.GetSplits()))
		}
		f.put(1, []byte("not in the snapshot"))
		f.delete(2)
		var records []*recordv1.Record
		for _, s := range plan.GetSplits() {
			if len(s.GetAddresses()) != 1 || s.GetAddresses()[0] != f.shard.Addr() {
				t.Errorf("split %v has addresses %v", s.GetGroup(), s.GetAddresses())
			}
			first, _, err := f.scan(&recordv1.ScanRequest{Split: s.GetSplit()}, 0)
			must(t, err)
			// A split can be read twice.
			again, _, err := f.scan(&recordv1.ScanRequest{Split: s.GetSplit(), MetadataOnly: true}, 0)
			if err != nil || len(again) != len(first) {
				t.Errorf("again: %d records, %v; first %d", len(again), err, len(first))
			}
			for _, r := range again {
				if r.Data != nil || r.DataCrc32C != nil {
					t.Errorf("metadata only gives data")
				}
			}
			records = append(records, first...)
		}
		same(t, records, there)
	})
}

func TestScanOneGroup(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		there := f.fill(100, 1000)
		for id := range there {
			if hash4.GroupOf(id) != 2 {
				delete(there, id)
			}
		}
		records, _, err := f.scan(&recordv1.ScanRequest{Group: "2"}, 0)
		must(t, err)
		same(t, records, there)
	})
}

func TestScanGivesLargeRecordsWithoutData(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		d := data(1, 2<<20)
		if _, err := f.upload(&recordv1.UploadHeader{Key: key(1)}, cut(d, 1<<20)...); err != nil {
			t.Fatal(err)
		}
		f.put(2, nil)
		records, _, err := f.scan(&recordv1.ScanRequest{}, 0)
		if err != nil || len(records) != 2 {
			t.Fatalf("%d records, %v", len(records), err)
		}
		for _, r := range records {
			if r.GetKey().GetId() != 1 {
				continue
			}
			if r.Data != nil || r.DataCrc32C != nil || r.GetSizeBytes() != 2<<20 {
				t.Errorf("large record: %v", r)
			}
			if _, got, err := f.download(&recordv1.DownloadRequest{Key: r.GetKey(), Version: r.GetVersion()}); err != nil ||
				!bytes.Equal(got, d) {
				t.Errorf("download of it: %d bytes, %v", len(got), err)
			}
		}
	})
}

func TestScanCursorExpires(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		f.fill(200, 30_000)
		_, last, err := f.scan(&recordv1.ScanRequest{Group: "0"}, 1)
		must(t, err)
		plan, err := f.records.PlanScan(f.ctx(), &recordv1.PlanScanRequest{Groups: []string{"1"}})
		must(t, err)
		f.shard.Kill()
		f.again(nil)
		_, _, err = f.scan(&recordv1.ScanRequest{Cursor: last}, 0)
		want(t, err, codes.OutOfRange, reason.CursorExpired)
		_, _, err = f.scan(&recordv1.ScanRequest{Split: plan.GetSplits()[0].GetSplit()}, 0)
		want(t, err, codes.OutOfRange, reason.CursorExpired)
	})
}

func TestScanClosesItsOwnSnapshot(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		f.fill(300, 30_000)
		_, last, err := f.scan(&recordv1.ScanRequest{Group: "0"}, 1)
		must(t, err)
		// The shard may have sent all messages before the caller disconnected. The caller can then still continue
		// within the grace period.
		f.shard.calls.ExpireScans(serve.ScanGrace)
		if _, _, err := f.scan(&recordv1.ScanRequest{Cursor: last}, 0); err != nil {
			t.Errorf("a scan that was not read to the end: %v", err)
		}
		f.shard.calls.ExpireScans(0)
		_, _, err = f.scan(&recordv1.ScanRequest{Cursor: last}, 0)
		want(t, err, codes.OutOfRange, reason.CursorExpired)
	})
}

func TestScanBadInput(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		split := (&cursor.Cursor{Kind: cursor.Split, Group: "0", Scan: [16]byte{1}, Through: 9}).Encode()
		resume := (&cursor.Cursor{Kind: cursor.Resume, Group: "0", Scan: [16]byte{1}, Through: 9}).Encode()
		flipped := bytes.Clone(resume)
		flipped[5] ^= 1
		for name, in := range map[string]*recordv1.ScanRequest{
			"group is no number":      {Group: "x"},
			"group beyond the last":   {Group: "4"},
			"group is negative":       {Group: "-1"},
			"group and split":         {Group: "0", Split: split},
			"split and cursor":        {Split: split, Cursor: resume},
			"cursor is garbage":       {Cursor: []byte("garbage")},
			"cursor with flipped bit": {Cursor: flipped},
			"cursor is a split":       {Cursor: split},
			"split is a cursor":       {Split: resume},
			"cursor of another store": {Cursor: (&cursor.Cursor{Kind: cursor.Resume, Group: "quotes", Through: 9}).Encode()},
			"huge cursor":             {Cursor: make([]byte, 1<<20)},
		} {
			_, _, err := f.scan(in, 0)
			if err == nil {
				t.Errorf("%s: accepted", name)
			}
			want(t, err, codes.InvalidArgument, "")
		}
		_, _, err := f.scan(&recordv1.ScanRequest{Cursor: resume}, 0)
		want(t, err, codes.OutOfRange, reason.CursorExpired)
		for _, in := range []*recordv1.PlanScanRequest{
			{SplitBytes: -1}, {SplitBytes: 1<<20 - 1}, {SplitBytes: 1<<40 + 1}, {SplitBytes: math.MinInt64},
			{Groups: []string{"x"}}, {Groups: []string{"1", "1"}}, {Groups: []string{""}},
		} {
			_, err := f.records.PlanScan(f.ctx(), in)
			want(t, err, codes.InvalidArgument, "")
		}
	})
}

func TestScanOfNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		if records, _, err := f.scan(&recordv1.ScanRequest{}, 0); err != nil || len(records) > 0 {
			t.Errorf("%d records, %v", len(records), err)
		}
		for n := range 4 {
			plan, err := f.records.PlanScan(f.ctx(), &recordv1.PlanScanRequest{Groups: []string{fmt.Sprint(n)}})
			must(t, err)
			for _, s := range plan.GetSplits() {
				if records, _, err := f.scan(&recordv1.ScanRequest{Split: s.GetSplit()}, 0); err != nil || len(records) > 0 {
					t.Errorf("%d records, %v", len(records), err)
				}
			}
		}
	})
}
