package group

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestRepairBringsRememberedRequestsBack checks that damage to remembered requests is repaired, whether or not the
// other member has compacted the same entries. On the other member, compaction may have replaced the damaged version
// with a remembered request.
func TestRepairBringsRememberedRequestsBack(t *testing.T) {
	for _, c := range []struct{ here, there bool }{{true, true}, {true, false}, {false, true}} {
		for _, residency := range []Residency{Index, Resident} {
			t.Run(fmt.Sprintf("compacted here %v, there %v, %v", c.here, c.there, residency), func(t *testing.T) {
				testRepairOfRequests(t, c.here, c.there, residency)
			})
		}
	}
}

func testRepairOfRequests(t *testing.T, here, there bool, residency Residency) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<10))
	for i := range 12 {
		e := format.Entry{ID: int64(i % 3), Data: payload(int64(i), 100+i), RequestID: [16]byte{1, byte(i)}}
		if i == 5 {
			e.Kind, e.Data = format.KindDelete, nil
		}
		if i == 7 {
			e.RequestID = [16]byte{}
		}
		d.put(e)
	}
	ok(t, d.log.Seal())
	d.put(format.Entry{ID: 9})
	d.log.hints.writing.Wait()
	b := &damageBed{mem: d.opts.FS.(*vfstest.Mem), opts: d.opts, names: d.names()}
	twin := b.twin(t)
	if there {
		_, err := twin.Compact(t.Context(), CompactOptions{All: true})
		ok(t, err)
	}
	if here {
		d.compact()
		d.log.hints.writing.Wait()
	}
	want, s := d.requests(), d.log.state.segments[0]
	if len(want) != 11 {
		t.Fatalf("%d requests", len(want))
	}
	var frames []segio.FrameStep
	views := d.log.reader.views(1, 12)
	ok(t, views[0].frames(format.SegmentHeaderBytes, func(step *segio.FrameStep) bool {
		frames = append(frames, *step)
		return true
	}))
	unpinAll(views)
	ok(t, d.log.Close(false))
	for i, f := range frames {
		for what, change := range map[string]func(b []byte){
			"header":      func(b []byte) { b[f.Offset+30] ^= 1 },
			"content":     func(b []byte) { b[f.Offset+f.Bytes-8] ^= 1 },
			"several":     func(b []byte) { clear(b[f.Offset : frames[min(i+3, len(frames)-1)].Offset+8]) },
			"all of them": func(b []byte) { clear(b[format.SegmentHeaderBytes:]) },
		} {
			disk := b.mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
			file := wholeFile(t, disk, s.path)
			bad := bytes.Clone(file)
			change(bad)
			w, err := disk.OpenWrite(s.path)
			ok(t, err)
			_, err = w.WriteAt(bad, 0)
			ok(t, err)
			ok(t, w.Close())
			own := *d
			own.opts.FS, own.opts.Residency = disk, residency
			own.load()
			ok(t, own.log.Apply(own.last(), nil))
			_, err = own.log.Verify(t.Context(), 0)
			ok(t, err)
			if err := repairFrom(twin, own.log); err != nil {
				t.Fatalf("%s of frame %d, a %s: %v", what, i, f.Entry.Kind, err)
			}
			if got := own.requests(); !slices.Equal(got, want) {
				t.Errorf("%s of frame %d, a %s: %d requests, want %d, the same as before", what, i, f.Entry.Kind, len(got),
					len(want))
			}
			for id := range int64(3) {
				own.wants(id, payload(9+id, 109+int(id)))
			}
			ok(t, own.log.Close(false))
		}
	}
	ok(t, twin.Close(false))
}

func wholeFile(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	ok(t, err)
	size, err := f.Size()
	ok(t, err)
	b := make([]byte, size)
	ok(t, format.ReadFull(f, b, 0))
	ok(t, f.Close())
	return b
}
