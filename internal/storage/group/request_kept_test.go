package group

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// overwrite puts a record the given number of times, each time with a new request id.
func (d *logDriver) overwrite(times, dataBytes int) {
	d.t.Helper()
	for i := range times {
		d.put(format.Entry{ID: 1, Data: payload(int64(i), dataBytes), RequestID: [16]byte{1, byte(i), byte(i >> 8)}})
	}
}

// onDisk returns the total size of all files of the group.
func (d *logDriver) onDisk() (bytes int64) {
	d.t.Helper()
	for _, name := range d.names() {
		size, err := sizeOf(d.opts, name)
		ok(d.t, err)
		bytes += size
	}
	return bytes
}

// TestWhatARepeatedWriteNeedsIsKeptWithoutItsData checks that compaction drops the data of a superseded version, but
// keeps the fields that are needed to answer a repeated write. A start must read these fields back, with hints,
// without hints, and from an image.
func TestWhatARepeatedWriteNeedsIsKeptWithoutItsData(t *testing.T) {
	for _, residency := range []Residency{Index, Resident} {
		t.Run(residency.String(), func(t *testing.T) {
			d := newDriver(t, driverOptions(vfstest.NewMem(), residency, 256<<10))
			d.overwrite(100, 10_000)
			d.put(format.Entry{Kind: format.KindDelete, ID: 2, RequestID: [16]byte{2}},
				format.Entry{ID: 2, Data: []byte("x"), RequestID: [16]byte{3}}, format.Entry{ID: 3})
			content := payload(9, 100_000)
			ref, err := writeBlobOf(d.log, content)
			ok(t, err)
			d.put(format.Entry{ID: 4, Codec: format.CodecBlob, Data: ref.Encode(), RequestID: [16]byte{4}},
				format.Entry{ID: 4, RequestID: [16]byte{5}}, format.Entry{ID: 5})
			want := d.requests()
			if len(want) != 104 {
				t.Fatalf("%d requests before", len(want))
			}
			d.compact()
			d.log.hints.writing.Wait()
			if got, most := d.onDisk(), int64(10_000+104*format.RequestFrameBytes+12*format.BlockBytes); got > most {
				t.Errorf("%d bytes on disk, want at most %d", got, most)
			}
			for _, how := range []string{"after the compaction", "after a start", "after a start without hints"} {
				if got := d.requests(); !slices.Equal(got, want) {
					t.Errorf("%s: %d requests, want %d, the same as before\n%+v\n%+v", how, len(got), len(want), got, want)
				}
				d.wants(1, payload(99, 10_000))
				ok(t, d.log.Close(true))
				if how == "after a start" {
					for _, s := range d.log.folder.manifest.Segments {
						_ = d.opts.FS.Remove(d.opts.Dir + "/" + format.HintName(s.Number))
					}
				}
				report, err := fsck.VerifyDir(t.Context(), d.opts.FS, d.opts.Dir, nil)
				if err != nil || len(report.Damages) > 0 {
					t.Errorf("%s: %v, %+v", how, err, report.Damages)
				}
				if report := d.load(); report.Outcome != Loaded {
					t.Errorf("%s: %+v", how, report)
				}
			}
			d.compact() // the compaction merges the segments, but must drop none of these entries
			if got := d.requests(); !slices.Equal(got, want) {
				t.Errorf("after another compaction: %d requests, want %d", len(got), len(want))
			}
			if records, err := d.log.Versions(1, 0, 10); err != nil || len(records) != 1 {
				t.Errorf("%d versions of record 1, %v", len(records), err)
			}
			ok(t, d.log.Close(false))
		})
	}
}

// TestRememberedRequestsGoWithTheirTime checks that remembered requests are dropped once they are too old to be
// needed, and that segments left without any other content are dropped with them.
func TestRememberedRequestsGoWithTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
		d.overwrite(200, 2000)
		d.put(format.Entry{ID: 1})
		d.compact()
		if n := len(d.requests()); n != 200 {
			t.Fatalf("%d requests", n)
		}
		time.Sleep(format.DefaultRequestWindow.Age + ageStep)
		d.log.hints.writing.Wait()
		d.compact()
		if n := len(d.requests()); n != 0 {
			t.Errorf("%d requests are kept for longer than they may be asked for", n)
		}
		d.log.hints.writing.Wait()
		if got := d.log.Stats().StoredBytes; got > 2000 {
			t.Errorf("%d bytes stay", got)
		}
		ok(t, d.log.Close(false))
	})
}

func TestTheEntryOfARequestIsCheckedAsOthersAre(t *testing.T) {
	put := format.Entry{Kind: format.KindPut, ID: 7, Index: 3, Term: 2, CommitTime: 9, Timestamp: 5,
		RequestID: [16]byte{1}, Data: []byte("data"), Attributes: []byte("\x01\x00\x00\x00\x00\x00k")}
	e := format.RequestEntry(&put)
	if format.RequestOf(&e) != format.RequestOf(&put) {
		t.Errorf("%+v of %+v", format.RequestOf(&e), format.RequestOf(&put))
	}
	ok(t, e.Check())
	for what, change := range map[string]func(*format.Entry){
		"without a request id": func(e *format.Entry) { e.RequestID = [16]byte{} },
		"with a timestamp":     func(e *format.Entry) { e.Timestamp = 1 },
		"with attributes":      func(e *format.Entry) { e.Attributes = []byte{0} },
		"with less data":       func(e *format.Entry) { e.Data = e.Data[:7] },
		"of a blob":            func(e *format.Entry) { e.Codec = format.CodecBlob },
		"without an index":     func(e *format.Entry) { e.Index = 0 },
	} {
		bad := e
		change(&bad)
		if err := bad.Check(); err == nil {
			t.Errorf("%s: it passes", what)
		}
	}
	for what, data := range map[string][]byte{
		"of no kind": {0, 0, 0, 0, 1, 2, 3, 4}, "of an empty entry": {3, 0, 0, 0, 0, 0, 0, 0},
		"with more":             {1, 1, 0, 0, 0, 0, 0, 0},
		"of a delete with data": {2, 0, 0, 0, 1, 0, 0, 0},
	} {
		bad := e
		bad.Data = data
		frame := format.AppendFrame(nil, format.SegmentID{1}, 128, &bad)
		if _, _, err := format.DecodeFrame(frame, format.SegmentID{1}, 128); err == nil {
			t.Errorf("%s: the frame passes", what)
		}
		if _, err := format.DecodePayload(format.RaftEntry(&bad)); err == nil {
			t.Errorf("%s: the payload passes", what)
		}
	}
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 1<<20))
	d.put(format.Entry{ID: 1})
	e.Index, e.Term = d.last()+1, d.term
	if err := d.log.Append(nil, []*raftpb.Entry{format.RaftEntry(&e)}); err == nil {
		t.Error("a leader can append it")
	}
	ok(t, d.log.Close(false))
	if !bytes.Equal(e.Data[:4], []byte{1, 0, 0, 0}) {
		t.Errorf("data %x", e.Data)
	}
}
