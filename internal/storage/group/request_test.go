package group

import (
	"bytes"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// requests returns the requests from which a request window is rebuilt. It assumes that the machine's clock agrees
// with the log's last commit time.
func (d *logDriver) requests() []format.Request {
	return slices.Collect(d.log.RecentRequests(format.DefaultRequestWindow, d.log.LastCommitTime()))
}

// requested returns the first byte of each request id.
func (d *logDriver) requested() (ids string) {
	for _, r := range d.requests() {
		ids += fmt.Sprint(r.RequestID[0])
	}
	return ids
}

// compact compacts the whole log and returns the number of dropped entries.
func (d *logDriver) compact() int64 {
	d.t.Helper()
	ok(d.t, d.log.Seal())
	report, err := d.log.Compact(d.t.Context(), CompactOptions{All: true})
	ok(d.t, err)
	return report.EntriesDropped
}

func TestRequestsAreReadBackWithWhatDistinguishesThem(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 1<<20))
	content := payload(9, 1000)
	ref, err := writeBlobOf(d.log, content)
	ok(t, err)
	d.put(format.Entry{ID: 1}, format.Entry{ID: 7, Data: content, RequestID: [16]byte{1}},
		format.Entry{Kind: format.KindDelete, ID: 8, RequestID: [16]byte{2}},
		format.Entry{ID: 9, Codec: format.CodecBlob, Data: ref.Encode(), RequestID: [16]byte{3}})
	d.put(format.Entry{ID: 1}) // this batch stores the commit index that covers the entries before it
	for range 2 {
		got, crc := d.requests(), format.Checksum(content)
		want := []format.Request{
			{RequestID: [16]byte{1}, ID: 7, CRC32C: crc}, {RequestID: [16]byte{2}, ID: 8, Delete: true},
			{RequestID: [16]byte{3}, ID: 9, CRC32C: crc},
		}
		for i := range got {
			if got[i].Index != uint64(i+2) || got[i].CommitTime == 0 {
				t.Errorf("request %d: %+v", i, got[i])
			}
			got[i].Index, got[i].CommitTime = 0, 0
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		ok(t, d.log.Close(false))
		d.load()
	}
	ok(t, d.log.Close(false))
}

// TestRequestsInASegmentThatCannotBeReadAreReported checks that the damage is recorded if a segment with requests
// cannot be read, and that the requests in other segments are read.
func TestRequestsInASegmentThatCannotBeReadAreReported(t *testing.T) {
	var said bytes.Buffer
	disk := vfstest.NewFaulty(vfstest.NewMem())
	opts := driverOptions(disk, Index, 1<<20)
	opts.Logger = slog.New(slog.NewTextHandler(&said, nil))
	d := newDriver(t, opts)
	for i := range 3 {
		d.put(format.Entry{ID: 1, Data: []byte("a"), RequestID: [16]byte{byte(i + 1)}})
		ok(t, d.log.Seal())
	}
	d.put(format.Entry{ID: 1}) // this batch stores the commit index that covers the entries before it
	ok(t, d.log.Close(false))
	d.load()
	fault := disk.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpRead && path.Base(op.Name) == format.SegmentName(2)
	}})
	if got := d.requested(); got != "13" || fault.Fired() == 0 {
		t.Errorf("%d reads failed, and requests %q were read", fault.Fired(), got)
	}
	if !strings.Contains(said.String(), format.SegmentName(2)) ||
		!strings.Contains(said.String(), "request ids could not be read") {
		t.Errorf("said: %s", said.String())
	}
	fault.Remove()
	ok(t, d.log.Close(false))
}

// TestRequestsAreReadBackAsFarAsTheyMayBeRemembered checks that the commit times in the log determine how far back
// requests are read. A jump in these times must not make a request count as old. If the times do not advance, the
// number of writes limits how far back requests are read.
func TestRequestsAreReadBackAsFarAsTheyMayBeRemembered(t *testing.T) {
	for name, c := range map[string]struct {
		step  func(i int) time.Duration // returns the time between write i-1 and write i; there are 200 writes
		first int                       // this write and all later ones must be read
		// above is the number of the last write that must not be read. Writes between above and first may or may not be
		// read, because the log is read in whole pieces.
		above int
	}{
		"a second each": {func(int) time.Duration { return time.Second }, 200 - 60, 200 - 60 - 64 - 128},
		"a jump ahead": {func(i int) time.Duration {
			return map[bool]time.Duration{true: time.Hour, false: time.Millisecond}[i == 190]
		}, 100, -1},
		"seldom":                   {func(int) time.Duration { return time.Hour }, 200 - 6, 200 - 64},
		"at once":                  {func(int) time.Duration { return 0 }, 0, -1},
		"more than are remembered": {func(i int) time.Duration { return 110 * time.Millisecond }, 200 - 100, -1},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 4<<10))
			for i := range 200 {
				d.time += int64(c.step(i))
				d.put(format.Entry{ID: int64(i), Data: payload(1, 20), RequestID: [16]byte{1}})
			}
			w := format.RequestWindow{Age: time.Minute, Writes: 100, AgeMin: 10 * time.Second, WritesMax: 1000}
			first := -1
			for r := range d.log.RecentRequests(w, d.log.LastCommitTime()) {
				if first < 0 {
					first = int(r.ID)
				}
			}
			if first < 0 || first > c.first || first <= c.above {
				t.Errorf("the first write read is %d, want at most %d and above %d", first, c.first, c.above)
			}
			ok(t, d.log.Close(false))
		})
	}
}

// TestRequestsOfLongAgoAreNotRead checks how old a request may be, according to the machine's clock. RecentRequests
// must not read a request that is older than the window by more than clockErrorMax, and must read all other requests.
func TestRequestsOfLongAgoAreNotRead(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 1<<20))
	d.put(format.Entry{ID: 1, RequestID: [16]byte{1}})
	early := d.log.LastCommitTime()
	ok(t, d.log.Seal())
	d.log.hints.writing.Wait()
	d.time += int64(time.Second)
	d.put(format.Entry{ID: 2, RequestID: [16]byte{2}})
	late := d.log.LastCommitTime()
	if from := d.log.reader.firstSince(1, d.last(), early+1); from <= 1 {
		t.Errorf("reads from index %d, although the first segment is older", from)
	}
	const kept = int64(10*time.Minute + clockErrorMax)
	for now, want := range map[int64]string{0: "12", late: "12", early + kept: "12", early + kept + 1: "2",
		late + kept: "2", late + kept + 1: ""} {
		got := ""
		for e := range d.log.RecentRequests(format.DefaultRequestWindow, now) {
			got += fmt.Sprint(e.RequestID[0])
		}
		if got != want {
			t.Errorf("now %d: requests %q, want %q", now, got, want)
		}
	}
	ok(t, d.log.Close(false))
}

// TestRequestsBeforeAnEmptySegment checks that the search for requests, which goes back through the segments, does
// not stop at a segment that compaction has emptied. The age of such a segment is not known, so requests in earlier
// segments may still be needed.
func TestRequestsBeforeAnEmptySegment(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 1<<20))
	d.put(format.Entry{ID: 1, RequestID: [16]byte{1}})
	ok(t, d.log.Seal())
	d.put(format.Entry{ID: 9}, format.Entry{ID: 9})
	ok(t, d.log.Seal())
	d.put(format.Entry{ID: 9})
	if dropped := d.compact(); dropped < 2 {
		t.Fatalf("%d dropped", dropped)
	}
	d.log.hints.writing.Wait()
	if got := d.requested(); got != "1" {
		t.Errorf("requests %q, want the first", got)
	}
	ok(t, d.log.Close(false))
}

// TestCompactKeepsRequestsThatMayBeAskedAgain checks that compaction keeps the request of a superseded version for as
// long as a write may be repeated with the same request id, no matter what the machine's clock shows.
func TestCompactKeepsRequestsThatMayBeAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := driverOptions(vfstest.NewMem(), Index, 64<<10)
		clock := time.Duration(0)
		opts.Now = func() time.Time { return time.Now().Add(clock) }
		d := newDriver(t, opts)
		for i := range byte(5) {
			d.put(format.Entry{ID: 1, Data: []byte("x"), RequestID: [16]byte{i + 1}})
		}
		d.put(format.Entry{ID: 2})
		for range 3 {
			clock += time.Hour
			d.compact()
		}
		time.Sleep(format.DefaultRequestWindow.Age - time.Second)
		if d.compact(); d.requested() != "12345" {
			t.Fatalf("requests %s", d.requested())
		}
		ok(t, d.log.Close(false))
		d.load() // a log that was just loaded does not know how old the requests are
		d.put(format.Entry{ID: 3})
		time.Sleep(format.DefaultRequestWindow.Age - time.Second)
		if d.compact(); d.requested() != "12345" {
			t.Fatalf("requests %s, too soon after the start", d.requested())
		}
		time.Sleep(2 * time.Second)
		if d.compact(); d.requested() != "5" {
			t.Fatalf("requests %s, want that of the version that is the newest", d.requested())
		}
		ok(t, d.log.Close(false))
	})
}

// TestCompactKeepsTombstonesThatMayBeAskedAgain checks that compaction keeps a delete with a request id for as long
// as the delete may be repeated. If the delete were forgotten, the repeated delete would remove a record that was put
// again after the first one.
func TestCompactKeepsTombstonesThatMayBeAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
		d.put(format.Entry{ID: 5, Data: []byte("x")})
		d.put(format.Entry{Kind: format.KindDelete, ID: 5, RequestID: [16]byte{1}})
		for range 3 {
			d.compact()
			d.put(format.Entry{ID: 6})
		}
		ok(t, d.log.Close(false))
		d.load()
		if got := d.requested(); got != "1" {
			t.Fatalf("requests %q behind compactions and a start, want the delete", got)
		}
		time.Sleep(format.DefaultRequestWindow.Age)
		d.compact()
		if got := d.requested(); got != "" {
			t.Errorf("requests %q are kept for longer than they may be asked for", got)
		}
		ok(t, d.log.Close(false))
	})
}

// TestForgottenBoundsTheNumberOfRequests checks that requests are forgotten if many writes follow, but not before the
// minimum time.
func TestForgottenBoundsTheNumberOfRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
		w := format.RequestWindow{Age: 10 * time.Minute, Writes: 10, AgeMin: 2 * time.Minute, WritesMax: 100}
		for range 50 {
			d.put(format.Entry{ID: 1})
			time.Sleep(time.Second)
		}
		last := d.last()
		for _, c := range []struct {
			after     time.Duration
			forgotten uint64
		}{
			{0, 0}, {2*time.Minute - 60*time.Second, 0}, {45 * time.Second, last - 15}, {40 * time.Second, last - 10},
			{8 * time.Minute, last},
		} {
			time.Sleep(c.after)
			// The log records the ages of entries only in steps of 5 s, so the result may be up to 6 entries too low.
			if got := d.log.state.forgotten(w); got > c.forgotten || got+6 < c.forgotten {
				t.Errorf("%v later: forgotten up to %d of %d, want %d", c.after, got, last, c.forgotten)
			}
		}
		for range 200 {
			d.put(format.Entry{ID: 1})
		}
		if got, want := d.log.state.forgotten(w), d.last()-100; got != want {
			t.Errorf("forgotten up to %d, want %d", got, want)
		}
		ok(t, d.log.Close(false))
	})
}
