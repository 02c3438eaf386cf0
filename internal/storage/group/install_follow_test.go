package group

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// largeExporter returns a log whose segment and blob are large enough to be checked while they arrive.
func largeExporter(t *testing.T) *logDriver {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 3*transfer.FollowBytesMin))
	d.fill(10, 350<<10, payload)
	d.putBlob(20, payload(5, transfer.FollowBytesMin*3/4+12345))
	return d
}

func TestLargeFilesAreCheckedWhileTheyCome(t *testing.T) {
	d := largeExporter(t)
	for name, fs := range map[string]vfs.FS{"in memory": vfstest.NewMem(), "on disk": vfs.OS{}} {
		t.Run(name, func(t *testing.T) {
			opts := joinerOptions(d.opts, fs)
			if name == "on disk" {
				opts.Dir = t.TempDir()
			}
			e := exported(t, d.log)
			i := begun(t, e, opts)
			kinds := map[transfer.FileKind]int{}
			for files := i.Missing(); len(files) > 0; files = i.Missing() {
				receiveBadly(t, e, i, files[0])
				kinds[files[0].Kind]++
				ok(t, sendFile(e, i, i.Missing()[0], 300_000))
			}
			if kinds[transfer.SegmentFile] != 1 || kinds[transfer.BlobFile] != 1 {
				t.Fatalf("files of these kinds were received: %v", kinds)
			}
			ok(t, i.Finish(t.Context()))
			loadedSame(t, d.log, opts)
		})
	}
}

// receiveBadly sends a file with a bad byte, which must be refused, and then a part of the correct file, which must be
// kept.
func receiveBadly(t *testing.T, e *Export, i *transfer.Install, f transfer.File) {
	t.Helper()
	r, err := e.Open(f.Name, 0)
	ok(t, err)
	good, err := io.ReadAll(r)
	ok(t, errors.Join(err, r.Close()))
	for _, at := range []int{0, len(good) / 3, len(good) - 9} {
		bad := bytes.Clone(good)
		bad[at] ^= 4
		w, err := i.File(f)
		ok(t, err)
		for piece := bad; len(piece) > 0; {
			n, err := w.Write(piece[:min(len(piece), 300_000)])
			ok(t, err)
			piece = piece[n:]
		}
		if err := w.Commit(); !errors.Is(err, format.ErrCorrupt) {
			t.Fatalf("%s with a bad byte at %d: %v", f.Name, at, err)
		}
		ok(t, w.Close())
		if again := i.Missing(); again[0] != f {
			t.Fatalf("%s with a bad byte at %d: then %+v is missing", f.Name, at, again)
		}
	}
	w, err := i.File(f)
	ok(t, err)
	_, err = w.Write(good[:len(good)/8])
	ok(t, errors.Join(err, w.Close()))
	if have := i.Missing()[0].Have; have != int64(len(good)/8) {
		t.Fatalf("%s: %d of %d bytes are there", f.Name, have, len(good)/8)
	}
}

// TestWhatCouldNotBeSyncedComesAnew checks that a file whose sync failed is sent again. After the failed sync, the file
// can still be read and a second sync succeeds, but the bytes are not on the disk.
func TestWhatCouldNotBeSyncedComesAnew(t *testing.T) {
	d := exporter(t)
	mem := vfstest.NewMem()
	faulty := vfstest.NewFaulty(mem)
	opts := joinerOptions(d.opts, faulty)
	e := exported(t, d.log)
	i := begun(t, e, opts)
	for files := i.Missing(); len(files) > 0; files = i.Missing() {
		f := files[0]
		fault := faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
			return op.Kind == vfstest.OpSync
		}, Count: 1, Effect: vfstest.EffectDrop})
		if err := sendFile(e, i, f, 5000); err == nil || errors.Is(err, format.ErrCorrupt) {
			t.Fatalf("%s was not synced: %v", f.Name, err)
		}
		fault.Remove()
		if again := i.Missing(); again[0] != f {
			t.Fatalf("%s was not synced: then %+v is missing", f.Name, again)
		}
		ok(t, sendFile(e, i, f, 5000))
	}
	ok(t, i.Finish(t.Context()))
	opts.FS = mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
	loadedSame(t, d.log, opts)
	verified(t, opts)
}
