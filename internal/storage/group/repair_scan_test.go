package group

import (
	"errors"
	"maps"
	"path"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestASnapshotStaysExactOverARepair opens snapshots, and then repairs a segment with a version that they see and that
// was superseded since. If the peer still has the version, the snapshots go on to see it at its new place. If the peer
// has compacted it away, the snapshots end: a record that is silently missing would be a wrong answer.
func TestASnapshotStaysExactOverARepair(t *testing.T) {
	for _, hit := range []int64{format.AtEntryCRC, format.FrameHeaderBytes} { // the header, and the content
		for _, compacted := range []bool{false, true} {
			mem := vfstest.NewMem()
			d := newHeld(t, driverOptions(mem, Index, 64<<10), 0)
			d.put(format.Entry{ID: 1, Data: payload(1, 50)}, format.Entry{ID: 2, Data: payload(2, 50)})
			ok(t, d.log.Seal())
			newest, err := d.log.OpenScan(time.Hour)
			ok(t, err)
			d.put(format.Entry{ID: 1, Data: payload(1, 60)})
			d.log.hints.writing.Wait()
			past, err := d.log.OpenScanAt(2, time.Hour)
			ok(t, err)

			opts := d.opts
			opts.FS = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
			peer, _, err := Load(t.Context(), opts, nil)
			ok(t, err)
			ok(t, peer.Apply(3, nil))
			if compacted {
				peer.SetHold(Hold{})
				compactAll(t, peer)
			}
			name := path.Join(d.opts.Dir, format.SegmentName(1))
			if !mem.Rot(name, offsetOf(t, d.log, 1)+hit, 1, func(b []byte) { b[0] ^= 4 }) {
				t.Fatal("the version is not on the disk")
			}
			_, err = d.log.Verify(t.Context(), 0)
			ok(t, err)
			ok(t, repairFrom(peer, d.log))
			for what, scan := range map[string]ScanID{"newest": newest, "past": past} {
				scanned, got, err := readScan(d.log, scan, 3)
				want := map[int64]uint64{1: 1, 2: 2}
				switch {
				case compacted && !errors.Is(err, ErrCursorExpired):
					t.Errorf("byte %d, %s snapshot: the peer has lost what it sees: %v, %v, %v", hit, what, scanned, got, err)
				case !compacted && (err != nil || !maps.Equal(scanned, want) || !maps.Equal(got, want)):
					t.Errorf("byte %d, %s snapshot: a scan has %v and gets have %v (%v), want %v", hit, what, scanned, got, err, want)
				}
			}
			ok(t, d.log.Close(false))
			ok(t, peer.Close(false))
		}
	}
}
