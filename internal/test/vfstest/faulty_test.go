package vfstest_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/bits"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func isKind(kind vfstest.OpKind) func(vfstest.Op) bool {
	return func(op vfstest.Op) bool { return op.Kind == kind }
}

// faultyFile creates a file with durable content through a Faulty.
func faultyFile(t *testing.T, content []byte) (*vfstest.Faulty, *vfstest.Mem, vfs.File) {
	t.Helper()
	m := vfstest.NewMem()
	f := vfstest.NewFaulty(m)
	file := vfstest.Write(t, f, "f", content)
	must.OK(t, file.Sync())
	must.OK(t, f.SyncDir("."))
	return f, m, file
}

func TestFaultHitsEveryKindOfOperation(t *testing.T) {
	f, _, file := faultyFile(t, fill(1, 1))
	for kind := vfstest.OpCreate; kind <= vfstest.OpSpace; kind++ {
		run := map[vfstest.OpKind]func() error{
			vfstest.OpCreate: func() error {
				return second(f.Create("new"))
			}, vfstest.OpWrite: func() error { return second(file.WriteAt([]byte("x"), 0)) },
			vfstest.OpSync: file.Sync, vfstest.OpTruncate: func() error { return file.Truncate(0) },
			vfstest.OpAllocate: func() error {
				return file.Allocate(0, 5000)
			}, vfstest.OpRemove: func() error { return f.Remove("f") },
			vfstest.OpRename: func() error {
				return f.Rename("f", "g")
			}, vfstest.OpLink: func() error { return f.Link("f", "g") },
			vfstest.OpMkdir:   func() error { return f.MkdirAll("d") },
			vfstest.OpSyncAll: func() error { return f.SyncAll(".") },
			vfstest.OpSyncDir: func() error {
				return f.SyncDir(".")
			}, vfstest.OpOpen: func() error { return second(f.Open("f")) },
			vfstest.OpRead: func() error {
				return second(file.ReadAt(make([]byte, 1), 0))
			}, vfstest.OpList: func() error { return second(f.List(".")) },
			vfstest.OpStat: func() error {
				return second(f.Stat("f"))
			}, vfstest.OpSize: func() error { return second(file.Size()) },
			vfstest.OpLock: func() error {
				return second(f.Lock("lock"))
			}, vfstest.OpSpace: func() error { return second(f.Space(".")) },
		}[kind]
		if run == nil {
			t.Fatalf("%s is not tested", kind)
		}
		before := f.Calls(kind)
		fault := f.Add(&vfstest.Fault{Match: isKind(kind)})
		err := run()
		fault.Remove()
		if !errors.Is(err, syscall.EIO) || fault.Fired() != 1 {
			t.Errorf("%s: error %v, fired %d times", kind, err, fault.Fired())
		}
		if f.Calls(kind) != before+1 {
			t.Errorf("%s: %d calls counted", kind, f.Calls(kind)-before)
		}
		var path *fs.PathError
		if !errors.As(err, &path) || path.Path == "" {
			t.Errorf("%s: the error %v does not name the file", kind, err)
		}
	}
	if names, err := f.List("."); err != nil || len(names) != 1 {
		t.Errorf("operations that failed had an effect: %q, %v", names, err)
	}
	if got := vfstest.Read(t, f, "f"); !bytes.Equal(got, fill(1, 1)) {
		t.Error("operations that failed changed the file")
	}
	if f.Fired() != int64(vfstest.OpSpace) {
		t.Errorf("%d faults counted", f.Fired())
	}
}

func TestFaultByOffsetNameSkipAndCount(t *testing.T) {
	f, _, file := faultyFile(t, fill(8, 1))
	other := vfstest.Write(t, f, "other", fill(8, 1))
	fault := f.Add(&vfstest.Fault{
		Match: func(op vfstest.Op) bool { return op.Kind == vfstest.OpWrite && op.Name == "f" && op.Offset >= 1024 },
		Skip:  1, Count: 2, Err: syscall.ENOSPC,
	})
	outcome := ""
	for _, write := range []struct {
		file   vfs.File
		offset int64
	}{{file, 0}, {file, 1024}, {other, 1024}, {file, 2048}, {file, 512}, {file, 1024}, {file, 1024}} {
		switch n, err := write.file.WriteAt([]byte("x"), write.offset); {
		case errors.Is(err, syscall.ENOSPC) && n == 0:
			outcome += "F"
		case err == nil:
			outcome += "."
		default:
			t.Fatal(n, err)
		}
	}
	if outcome != "...F.F." || fault.Fired() != 2 {
		t.Errorf("outcome %s, fired %d times", outcome, fault.Fired())
	}
	nth := f.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpSync && op.Number == f.Calls(vfstest.OpSync) && op.Number == 3
	}})
	if file.Sync() != nil || file.Sync() == nil || file.Sync() != nil || nth.Fired() != 1 {
		t.Errorf("not the third sync of all failed; fired %d times", nth.Fired())
	}
	f.Clear()
	must.OK(t, file.Sync())
}

// TestRule5_FailedSyncDropsData checks what happens after a failed sync: the data can still be read, and later syncs
// succeed, but a power cut loses the data. Only data that was written again after the failed sync survives.
func TestRule5_FailedSyncDropsData(t *testing.T) {
	f, m, file := faultyFile(t, fill(4, 1))
	writeAt(t, file, fill(4, 101), 0)
	writeAt(t, file, fill(2, 201), 4*sector) // writes beyond the end of the file
	fault := f.Add(&vfstest.Fault{Match: isKind(vfstest.OpSync), Count: 1, Effect: vfstest.EffectDrop})
	if err := file.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("sync: error %v", err)
	}
	written := append(fill(4, 101), fill(2, 201)...)
	if got := vfstest.Read(t, f, "f"); !bytes.Equal(got, written) {
		t.Error("it does not read back")
	}
	must.OK(t, file.Sync())
	writeAt(t, file, fill(1, 55), sector) // writes the data again
	must.OK(t, file.Sync())
	if fault.Fired() != 1 {
		t.Errorf("fired %d times", fault.Fired())
	}
	want := append(fill(4, 1), make([]byte, 2*sector)...)
	copy(want[sector:], fill(1, 55))
	direct, err := f.OpenDirect("f")
	must.OK(t, err)
	past := vfs.AlignedBytes(len(want))
	if _, err := direct.ReadAt(past, 0); err != nil || !bytes.Equal(past, want) {
		t.Errorf("what is read past the page cache is not what is on the disk: %v", err)
	}
	must.OK(t, direct.Close())
	forEachSurvival(t, func(t *testing.T, s vfstest.Survival) {
		if got := vfstest.Read(t, m.CrashClone(s), "f"); !bytes.Equal(got, want) {
			t.Error("what the failed sync dropped is on the disk, or what was written again is not")
		}
	})
}

func TestFailedSyncWithoutDropKeepsDataForTheNext(t *testing.T) {
	f, m, file := faultyFile(t, fill(1, 1))
	writeAt(t, file, fill(1, 9), 0)
	f.Add(&vfstest.Fault{Match: isKind(vfstest.OpSync), Count: 1})
	if file.Sync() == nil {
		t.Fatal("sync did not fail")
	}
	none := vfstest.Survival{Kind: vfstest.SurviveNone}
	if got := vfstest.Read(t, m.CrashClone(none), "f"); !bytes.Equal(got, fill(1, 1)) {
		t.Error("the failed sync made it durable")
	}
	must.OK(t, file.Sync())
	if got := vfstest.Read(t, m.CrashClone(none), "f"); !bytes.Equal(got, fill(1, 9)) {
		t.Error("the next sync did not make it durable")
	}
}

func TestFaultEffects(t *testing.T) {
	f, m, file := faultyFile(t, fill(8, 1))
	with := func(kind vfstest.OpKind, effect vfstest.Effect, run func() error) error {
		t.Helper()
		fault := f.Add(&vfstest.Fault{Match: isKind(kind), Effect: effect})
		err := run()
		if fault.Fired() != 1 {
			t.Errorf("effect %d on %s fired %d times", effect, kind, fault.Fired())
		}
		fault.Remove()
		return err
	}
	buf, n := make([]byte, 8*sector), 0
	read := func() (err error) { n, err = file.ReadAt(buf, 0); return err }

	if err := with(vfstest.OpRead, vfstest.EffectPart, read); !errors.Is(err, syscall.EIO) || n != 4*sector ||
		!bytes.Equal(buf[:n], fill(4, 1)) {
		t.Errorf("half a read: %d bytes, %v", n, err)
	}
	if err := with(vfstest.OpRead, vfstest.EffectDone, read); !errors.Is(err, syscall.EIO) || errors.Is(err, io.EOF) ||
		n != 8*sector {
		t.Errorf("a read with an error: %d bytes, %v", n, err)
	}
	if err := with(vfstest.OpRead, vfstest.EffectFlip, read); err != nil || bitsDiffering(buf, fill(8, 1)) != 1 {
		t.Errorf("a flipped bit: error %v, %d bits differ", err, bitsDiffering(buf, fill(8, 1)))
	}
	write := func() (err error) { n, err = file.WriteAt(fill(4, 101), 0); return err }
	if err := with(vfstest.OpWrite, vfstest.EffectPart, write); !errors.Is(err, syscall.EIO) || n != 2*sector {
		t.Errorf("half a write: %d bytes, %v", n, err)
	}
	if got := vfstest.Read(t, f, "f"); !bytes.Equal(got[:4*sector], append(fill(2, 101), fill(2, 3)...)) {
		t.Error("half a write did not write the first half")
	}
	if err := with(vfstest.OpSync, vfstest.EffectDone, file.Sync); !errors.Is(err, syscall.EIO) {
		t.Errorf("sync that is done: error %v", err)
	}
	if got := vfstest.Read(t, m.CrashClone(vfstest.Survival{}), "f"); !bytes.Equal(got[:2*sector], fill(2, 101)) {
		t.Error("the sync was not done")
	}
	if err := with(vfstest.OpCreate, vfstest.EffectDone, func() error {
		return second(f.Create("new"))
	}); !errors.Is(err, syscall.EIO) {
		t.Errorf("create that is done: error %v", err)
	}
	if _, err := f.Stat("new"); err != nil {
		t.Errorf("the create was not done: %v", err)
	}
	if err := with(vfstest.OpLock, vfstest.EffectDone, func() error {
		return second(f.Lock("lock"))
	}); !errors.Is(err, syscall.EIO) {
		t.Errorf("lock that is done: error %v", err)
	}
	lock, err := f.Lock("lock") // succeeds, because the failed call has released the lock
	must.OK(t, err)
	must.OK(t, lock.Close())
}

func bitsDiffering(a, b []byte) int {
	n := 0
	for i := range a {
		n += bits.OnesCount8(a[i] ^ b[i])
	}
	return n
}

func TestFaultBeforeHoldsTheOperation(t *testing.T) {
	f, _, file := faultyFile(t, fill(1, 1))
	reached, release := make(chan vfstest.Op), make(chan struct{})
	f.Add(&vfstest.Fault{Match: isKind(vfstest.OpSync), Effect: vfstest.EffectPass, Before: func(op vfstest.Op) {
		reached <- op
		<-release
	}})
	done := make(chan error, 1)
	go func() { done <- file.Sync() }()
	if op := <-reached; op.Name != "f" || op.Number != 2 {
		t.Errorf("the operation is %v number %d", op, op.Number)
	}
	if got := vfstest.Read(t, f, "f"); len(got) != sector { // other files are not affected
		t.Errorf("read %d bytes", len(got))
	}
	select {
	case err := <-done:
		t.Fatalf("sync came back while it was held: %v", err)
	default:
	}
	close(release)
	must.OK(t, <-done)
}

func TestFaultCountIsExactUnderConcurrency(t *testing.T) {
	f, _, file := faultyFile(t, fill(1, 1))
	fault := f.Add(&vfstest.Fault{Match: isKind(vfstest.OpRead), Skip: 10, Count: 50})
	var wg sync.WaitGroup
	failed := make([]int, 8)
	for i := range failed {
		wg.Go(func() {
			for range 20 {
				if _, err := file.ReadAt(make([]byte, 1), 0); err != nil {
					failed[i]++
				}
			}
		})
	}
	wg.Wait()
	sum := 0
	for _, n := range failed {
		sum += n
	}
	if sum != 50 || fault.Fired() != 50 || f.Fired() != 50 {
		t.Errorf("%d reads failed, fired %d and %d, want 50", sum, fault.Fired(), f.Fired())
	}
}

func TestFaultyHidesTheDescriptor(t *testing.T) {
	f := vfstest.NewFaulty(vfs.OS{})
	file := vfstest.Write(t, f, t.TempDir()+"/f", nil)
	if _, has := file.Fd(); has {
		t.Error("reads could pass the faults by")
	}
	if _, ok := f.Unwrap().(vfs.OS); !ok {
		t.Error("Unwrap is not the file system inside")
	}
}

func TestOpNamesItself(t *testing.T) {
	for kind := vfstest.OpCreate; kind <= vfstest.OpSpace; kind++ {
		if s := kind.String(); strings.Contains(s, "op(") || s == "" {
			t.Errorf("kind %d has no name", kind)
		}
	}
	if s := vfstest.OpKind(99).String(); s != "op(99)" {
		t.Errorf("unknown kind: %q", s)
	}
}
