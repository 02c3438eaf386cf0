package group

import (
	"errors"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
	"sheaf.dev/sheaf/internal/test/grouptest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// TestVerifyWritesBadSmallFilesAnew damages bytes of small files while a log is open. Verify must report the damage and
// durably rewrite the file, and no entry may count as damaged.
func TestVerifyWritesBadSmallFilesAnew(t *testing.T) {
	for _, kind := range []string{format.ManifestName, format.MarkName, format.ReplicaName, format.HintPrefix} {
		t.Run(kind, func(t *testing.T) {
			mem := vfstest.NewMem()
			w := newWorkload(t, 7, mem, mem, Index)
			for range 60 {
				must.OK(t, w.step())
			}
			must.OK(t, w.sync())
			must.OK(t, w.apply())
			must.OK(t, w.log.Tick())
			id := w.opts.Identity
			must.OK(t, format.WriteReplicaFile(mem, w.opts.Dir,
				format.ReplicaFile{RaftID: 1, Store: id.Store, Group: id.Group}))
			w.log.hints.writing.Wait()
			names, err := mem.List(w.opts.Dir)
			must.OK(t, err)
			names = slices.DeleteFunc(names, func(name string) bool {
				return !strings.HasPrefix(name, kind) || name == format.ActiveHintName
			})
			if len(names) == 0 {
				t.Fatal("there is none")
			}
			for _, name := range names {
				for third := range int64(4) {
					// A rewritten hint may be smaller, because it lacks void entries.
					info, err := mem.Stat(path.Join(w.opts.Dir, name))
					must.OK(t, err)
					rotAndRenew(t, mem, w.log, name, third*(info.Size()-1)/3)
				}
			}
		})
	}
}

func rotAndRenew(t *testing.T, mem *vfstest.Mem, l *Log, name string, at int64) {
	t.Helper()
	if !mem.Rot(path.Join(l.folder.dir, name), at, 1, func(b []byte) { b[0] ^= 4 }) {
		t.Fatalf("%s: byte %d is not on the disk", name, at)
	}
	report, err := l.Verify(t.Context(), 0)
	must.OK(t, err)
	if len(report.Damages) != 1 || report.Damages[0].File != name || report.Damages[0].Group != l.opts.Identity.Name {
		t.Fatalf("%s, byte %d: found %v", name, at, report.Damages)
	}
	if l.Damaged() {
		t.Fatalf("%s, byte %d: the log counts as damaged", name, at)
	}
	report, err = l.Verify(t.Context(), 0)
	must.OK(t, err)
	if len(report.Damages) > 0 {
		t.Fatalf("%s, byte %d: it was not written anew: %v", name, at, report.Damages)
	}
	report, err = fsck.VerifyDir(t.Context(), mem.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone}), l.folder.dir,
		nil)
	must.OK(t, err)
	if len(report.Damages) > 0 {
		t.Fatalf("%s, byte %d: behind a power cut: %v", name, at, report.Damages)
	}
}

// TestVerifyWritesTheHintOfTheActiveSegmentAnew checks that a damaged hint of the active segment is also rewritten.
// Because this hint is never synced, a power cut may remove it.
func TestVerifyWritesTheHintOfTheActiveSegmentAnew(t *testing.T) {
	d := newDriver(t, driverOptions(vfstest.NewMem(), Index, 64<<20))
	const records, size = 100, 10 << 10
	d.fill(records, size, random)
	pieces := len(readTestPieces(t, d))
	for what, change := range map[string]func(b []byte) []byte{
		"a flipped bit in the first piece": func(b []byte) []byte { b[50] ^= 1; return b },
		"a flipped bit in the last piece":  func(b []byte) []byte { b[len(b)-50] ^= 1; return b },
		"the last piece torn":              func(b []byte) []byte { return b[:len(b)-1] },
		"nothing left":                     func([]byte) []byte { return nil },
	} {
		changeFile(t, d, change)
		report, err := d.log.Verify(t.Context(), 0)
		ok(t, err)
		if len(report.Damages) != 1 || report.Damages[0].File != format.ActiveHintName || d.log.Damaged() {
			t.Fatalf("%s: found %v, damaged %v", what, report.Damages, d.log.Damaged())
		}
		if report, err = d.log.Verify(t.Context(), 0); err != nil || len(report.Damages) > 0 {
			t.Fatalf("%s: it was not written anew: %v, %v", what, report.Damages, err)
		}
		if now := readTestPieces(t, d); len(now) != 1 || pieces < 3 {
			t.Fatalf("%s: %d pieces were, %d are", what, pieces, len(now))
		}
		for id := range int64(records) { // makes the hint grow further
			d.put(format.Entry{ID: id, Data: grouptest.RandomBytes(uint64(id), size)})
		}
		if now := readTestPieces(t, d); len(now) < 3 {
			t.Fatalf("%s: then there are %d pieces", what, len(now))
		}
	}
	changePieces(t, d, func(p *format.HintPiece) { p.Table.IDs[0]++ })
	report, err := d.log.Verify(t.Context(), 0)
	ok(t, err)
	if len(report.Damages) != 1 || report.Damages[0].File != format.ActiveHintName || d.log.Damaged() {
		t.Fatalf("an id that is not there: found %v", report.Damages)
	}
	ok(t, d.log.Close(false))
	if report := d.load(); report.Outcome != Loaded || report.HintedBytes == 0 {
		t.Fatalf("report %+v", report)
	}
	for id := range int64(records) {
		d.wants(id, grouptest.RandomBytes(uint64(id), size))
	}
	ok(t, d.log.Close(false))
}

// renameFS calls the function in its field before once, immediately before it renames the file with the given name.
type renameFS struct {
	*vfstest.Mem
	name   string
	before func()
}

func (fs *renameFS) Rename(from, to string) error {
	if do := fs.before; do != nil && path.Base(to) == fs.name {
		fs.before = nil
		do()
	}
	return fs.Mem.Rename(from, to)
}

// TestCloseWhileTheMarkIsWrittenAnew calls Close while the mark is rewritten. Close must wait for the write, and the
// write must not wait for Close, so that both finish.
func TestCloseWhileTheMarkIsWrittenAnew(t *testing.T) {
	mem := vfstest.NewMem()
	fs := &renameFS{Mem: mem, name: format.MarkName}
	d := newDriver(t, driverOptions(fs, Index, 64<<20))
	d.put(format.Entry{ID: 1, Data: []byte("a")})
	ok(t, d.log.Tick())
	if !mem.Rot(path.Join(d.opts.Dir, format.MarkName), 0, 1, func(b []byte) { b[0] ^= 4 }) {
		t.Fatal("the mark is not on the disk")
	}
	var both sync.WaitGroup
	var closed, verified error
	fs.before = func() {
		both.Go(func() { closed = d.log.Close(false) })
		for d.log.w.mu.TryLock() { // waits until Close holds the lock
			d.log.w.mu.Unlock()
			runtime.Gosched()
		}
	}
	both.Go(func() { _, verified = d.log.Verify(t.Context(), 0) })
	ended := make(chan struct{})
	go func() { both.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("Verify and Close wait for each other")
	}
	ok(t, closed)
	if fs.before != nil || verified != nil && !errors.Is(verified, format.ErrClosed) {
		t.Fatalf("the mark was written anew: %t; Verify: %v", fs.before == nil, verified)
	}
	if report := d.load(); report.Outcome != Loaded || d.last() != 1 {
		t.Fatalf("report %+v, last index %d", report, d.last())
	}
}
