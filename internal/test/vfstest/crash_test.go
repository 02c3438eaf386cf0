package vfstest_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

const sector = 512

// fill returns n sectors. All bytes of sector i are first+i.
func fill(n int, first byte) []byte {
	p := make([]byte, n*sector)
	for i := range p {
		p[i] = first + byte(i/sector)
	}
	return p
}

// newSyncedFile returns a new Mem with one file, whose content and name are durable. The file is open for writing.
func newSyncedFile(t *testing.T, content []byte) (*vfstest.Mem, vfs.File) {
	t.Helper()
	m := vfstest.NewMem()
	f := vfstest.Write(t, m, "f", content)
	must.OK(t, f.Sync())
	must.OK(t, m.SyncDir("."))
	return m, f
}

func writeAt(t *testing.T, f vfs.File, p []byte, off int64) {
	t.Helper()
	_, err := f.WriteAt(p, off)
	must.OK(t, err)
}

// forEachSurvival runs f for every kind of survival with some seeds.
func forEachSurvival(t *testing.T, f func(t *testing.T, s vfstest.Survival)) {
	for _, kind := range vfstest.SurvivalKinds {
		seeds := uint64(1)
		if kind == vfstest.SurviveRandom || kind == vfstest.SurviveTorn {
			seeds = 50
		}
		for seed := range seeds {
			s := vfstest.Survival{Kind: kind, Seed: seed}
			t.Run(s.String(), func(t *testing.T) { f(t, s) })
		}
	}
}

func TestCrashKeepsWhatWasSynced(t *testing.T) {
	want := fill(20, 1)
	m, f := newSyncedFile(t, want)
	must.OK(t, f.Close())
	must.OK(t, m.MkdirAll("a/b"))
	forEachSurvival(t, func(t *testing.T, s vfstest.Survival) {
		disk := m.CrashClone(s)
		if got := vfstest.Read(t, disk, "f"); !bytes.Equal(got, want) {
			t.Error("content that was synced is not there")
		}
		if info, err := disk.Stat("a/b"); err != nil || !info.IsDir() {
			t.Errorf("folder made by MkdirAll is not there: %v", err)
		}
	})
}

func TestCrashLosesWhatWasNotSynced(t *testing.T) {
	m, f := newSyncedFile(t, fill(4, 1))
	writeAt(t, f, fill(2, 100), sector)   // overwrites sectors 1 and 2
	writeAt(t, f, fill(3, 200), 4*sector) // writes beyond the end of the file
	disk := m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
	if got := vfstest.Read(t, disk, "f"); !bytes.Equal(got, fill(4, 1)) {
		t.Errorf("%d bytes, not those that were synced", len(got))
	}
	disk = m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNames})
	if got, want := vfstest.Read(t, disk, "f"), append(fill(4, 1), make([]byte, 3*sector)...); !bytes.Equal(got, want) {
		t.Error("the file did not grow by zeros, or data survived")
	}
	disk = m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
	want := append(append(fill(1, 1), fill(2, 100)...), append(fill(1, 4), fill(3, 200)...)...)
	if got := vfstest.Read(t, disk, "f"); !bytes.Equal(got, want) {
		t.Error("not everything survived")
	}
}

func TestCrashRandomMixesSectors(t *testing.T) {
	m, f := newSyncedFile(t, fill(8, 1))
	writeAt(t, f, fill(8, 101), 0)
	seen := make(map[string]bool)
	for seed := range uint64(200) {
		got := vfstest.Read(t, m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveRandom, Seed: seed}), "f")
		again := vfstest.Read(t, m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveRandom, Seed: seed}), "f")
		if !bytes.Equal(got, again) {
			t.Fatalf("seed %d is not repeatable", seed)
		}
		var pattern strings.Builder
		for i := range 8 {
			switch s := got[i*sector : (i+1)*sector]; {
			case bytes.Equal(s, fill(1, byte(1+i))):
				pattern.WriteByte('o')
			case bytes.Equal(s, fill(1, byte(101+i))):
				pattern.WriteByte('n')
			default:
				t.Fatalf("seed %d: sector %d is neither old nor new", seed, i)
			}
		}
		seen[pattern.String()] = true
	}
	if len(seen) < 30 {
		t.Errorf("only %d different disks from 200 seeds", len(seen))
	}
}

func TestCrashRandomChoosesSizes(t *testing.T) {
	m, f := newSyncedFile(t, fill(1, 1))
	for i := range 3 {
		writeAt(t, f, fill(1, byte(i+2)), int64(i+1)*sector)
	}
	must.OK(t, f.Truncate(2*sector))
	seen := make(map[int]bool)
	for seed := range uint64(200) {
		got := vfstest.Read(t, m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveRandom, Seed: seed}), "f")
		seen[len(got)/sector] = true
		if !bytes.Equal(got[:sector], fill(1, 1)) {
			t.Fatalf("seed %d: the sector that was synced is gone", seed)
		}
	}
	for want := 1; want <= 4; want++ {
		if !seen[want] {
			t.Errorf("no disk has the size of %d sectors", want)
		}
	}
	if len(seen) != 4 {
		t.Errorf("sizes in sectors: %v", seen)
	}
}

func TestCrashTearsTheLastWrite(t *testing.T) {
	m, f := newSyncedFile(t, fill(4, 1))
	writeAt(t, f, fill(1, 50), 0)         // this is not the last write, so it survives
	writeAt(t, f, fill(6, 100), 2*sector) // overwrites two sectors, and writes four beyond the end of the file
	lengths, sizes := make(map[int]bool), make(map[int]bool)
	for seed := range uint64(200) {
		got := vfstest.Read(t, m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveTorn, Seed: seed}), "f")
		if !bytes.Equal(got[:2*sector], append(fill(1, 50), fill(1, 2)...)) {
			t.Fatalf("seed %d: bytes before the last write changed", seed)
		}
		whole := 0
		for (2+whole+1)*sector <= len(got) && bytes.Equal(got[(2+whole)*sector:][:sector], fill(1, byte(100+whole))) {
			whole++
		}
		old := append(fill(4, 1), make([]byte, 4*sector)...)
		if rest := got[(2+whole)*sector:]; !bytes.Equal(rest, old[(2+whole)*sector:][:len(rest)]) {
			t.Fatalf("seed %d: behind %d whole sectors stands neither the old content nor zero", seed, whole)
		}
		lengths[whole] = true
		if whole < 6 {
			sizes[len(got)] = true
		}
	}
	if len(lengths) != 7 {
		t.Errorf("whole sectors: %v, want 0 to 6", lengths)
	}
	if !sizes[4*sector] || !sizes[8*sector] || len(sizes) != 5 {
		t.Errorf("sizes of torn files: %v, want the old, the new and some between", sizes)
	}
}

func TestCrashUndoesTruncate(t *testing.T) {
	m, f := newSyncedFile(t, fill(20, 1))
	must.OK(t, f.Truncate(3*sector+7))
	if got := vfstest.Read(t, m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone}), "f"); !bytes.Equal(got,
		fill(20, 1)) {
		t.Error("a truncate that was not synced is not undone")
	}
	want := fill(20, 1)[:3*sector+7]
	if got := vfstest.Read(t, m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll}), "f"); !bytes.Equal(got, want) {
		t.Error("the truncate is undone although all survives")
	}
	must.OK(t, f.Sync())
	must.OK(t, f.Truncate(20*sector))
	must.OK(t, f.Sync())
	want = append(want, make([]byte, 17*sector-7)...)
	forEachSurvival(t, func(t *testing.T, s vfstest.Survival) {
		if got := vfstest.Read(t, m.CrashClone(s), "f"); !bytes.Equal(got, want) {
			t.Error("what a synced truncate cut came back")
		}
	})
}

func TestCrashNamesNeedSyncDir(t *testing.T) {
	m := vfstest.NewMem()
	must.OK(t, m.MkdirAll("d"))
	f := vfstest.Write(t, m, "d/f", fill(1, 1))
	must.OK(t, f.Sync())
	list := func(s vfstest.Survival) string {
		names, err := m.CrashClone(s).List("d")
		must.OK(t, err)
		return strings.Join(names, " ")
	}
	none, all := vfstest.Survival{Kind: vfstest.SurviveNone}, vfstest.Survival{Kind: vfstest.SurviveAll}
	if list(none) != "" || list(all) != "f" {
		t.Errorf("after create: %q and %q", list(none), list(all))
	}
	must.OK(t, m.SyncDir("d"))
	if list(none) != "f" {
		t.Errorf("after create and sync: %q", list(none))
	}
	must.OK(t, m.Rename("d/f", "d/g"))
	if list(none) != "f" || list(all) != "g" {
		t.Errorf("after rename: %q and %q", list(none), list(all))
	}
	must.OK(t, m.SyncDir("d"))
	must.OK(t, m.Remove("d/g"))
	if list(none) != "g" || list(all) != "" {
		t.Errorf("after remove: %q and %q", list(none), list(all))
	}
	if got := vfstest.Read(t, m.CrashClone(none), "d/g"); !bytes.Equal(got, fill(1, 1)) {
		t.Error("a removed file came back without what was synced")
	}
	must.OK(t, m.SyncDir("d"))
	if list(none) != "" {
		t.Errorf("after remove and sync: %q", list(none))
	}
}

func TestCrashAfterSyncAllKeepsContentAndNames(t *testing.T) {
	m := vfstest.NewMem()
	must.OK(t, m.MkdirAll("d"))
	f := vfstest.Write(t, m, "d/f", fill(1, 1))
	must.OK(t, m.Rename("d/f", "d/g"))
	none := vfstest.Survival{Kind: vfstest.SurviveNone}
	if names, err := m.CrashClone(none).List("d"); err != nil || len(names) != 0 {
		t.Fatalf("before it: %q, %v", names, err)
	}
	must.OK(t, m.SyncAll("."))
	if got := vfstest.Read(t, m.CrashClone(none), "d/g"); !bytes.Equal(got, fill(1, 1)) {
		t.Error("what SyncAll made durable is gone")
	}
	must.OK(t, second(f.WriteAt(fill(1, 2), 0)))
	if got := vfstest.Read(t, m.CrashClone(none), "d/g"); !bytes.Equal(got, fill(1, 1)) {
		t.Error("what was written after SyncAll counts as durable")
	}
}

func TestCrashRenameIsAtomic(t *testing.T) {
	m, _ := newSyncedFile(t, []byte("old"))
	tmp := vfstest.Write(t, m, "tmp", []byte("new"))
	must.OK(t, tmp.Sync())
	must.OK(t, m.Rename("tmp", "f"))
	seen := make(map[string]bool)
	forEachSurvival(t, func(t *testing.T, s vfstest.Survival) {
		disk := m.CrashClone(s)
		content := string(vfstest.Read(t, disk, "f"))
		names, err := disk.List(".")
		must.OK(t, err)
		seen[content+" "+strings.Join(names, " ")] = true
	})
	for state := range seen {
		if !slices.Contains([]string{"old f", "old f tmp", "new f"}, state) {
			t.Errorf("a disk has %q", state)
		}
	}
	if len(seen) != 3 {
		t.Errorf("disks: %v, want 3", seen)
	}
}

func TestCrashRenameBetweenFoldersNeedsBothSyncs(t *testing.T) {
	m := vfstest.NewMem()
	must.OK(t, m.MkdirAll("a"))
	must.OK(t, m.MkdirAll("b"))
	must.OK(t, vfstest.Write(t, m, "a/f", []byte("data")).Sync())
	must.OK(t, m.SyncDir("a"))
	must.OK(t, m.Rename("a/f", "b/f"))
	must.OK(t, m.SyncDir("b"))
	disk := m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
	for _, name := range []string{"a/f", "b/f"} {
		if got := vfstest.Read(t, disk, name); string(got) != "data" {
			t.Errorf("%s holds %q", name, got)
		}
	}
	must.OK(t, m.SyncDir("a"))
	disk = m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveNone})
	if _, err := disk.Stat("a/f"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old name is still there: %v", err)
	}
}

func TestCrashCloneIsADiskOfItsOwn(t *testing.T) {
	m, f := newSyncedFile(t, fill(20, 1))
	if _, err := m.Lock("lock"); err != nil {
		t.Fatal(err)
	}
	disk := m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
	if disk.OpCount() != 0 || disk.Crashed() {
		t.Errorf("%d operations, crashed %v", disk.OpCount(), disk.Crashed())
	}
	lock, err := disk.Lock("lock")
	must.OK(t, err)
	must.OK(t, lock.Close())
	g, err := disk.OpenWrite("f")
	must.OK(t, err)
	writeAt(t, g, fill(2, 100), 0)
	writeAt(t, f, fill(2, 200), 2*sector)
	if got := vfstest.Read(t, m, "f"); !bytes.Equal(got[:4*sector], append(fill(2, 1), fill(2, 200)...)) {
		t.Error("a write to the clone shows in the original")
	}
	if got := vfstest.Read(t, disk, "f"); !bytes.Equal(got[:4*sector], append(fill(2, 100), fill(2, 3)...)) {
		t.Error("a write to the original shows in the clone")
	}
	must.OK(t, vfstest.Write(t, disk, "new", nil).Close())
	if _, err := m.Stat("new"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a name made on the clone shows in the original")
	}
}

// workload uses every operation that changes the disk. It stops at the first error.
func workload(m *vfstest.Mem) error {
	if err := m.MkdirAll("d/e"); err != nil {
		return err
	}
	f, err := m.Create("d/tmp")
	if err != nil {
		return err
	}
	steps := []func() error{
		func() error { return f.Allocate(0, 4096) },
		func() error { _, err := f.WriteAt(fill(3, 1), 0); return err },
		f.Sync,
		func() error { return f.Truncate(3 * sector) },
		f.Close,
		func() error { return m.Rename("d/tmp", "d/f") },
		func() error { return m.SyncDir("d") },
		func() error { return m.Remove("d/e") },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

const workloadTranscript = `1 mkdir d
2 syncdir .
3 mkdir d/e
4 syncdir d
5 create d/tmp
6 allocate d/tmp offset 0 length 4096
7 write d/tmp offset 0 length 1536
8 sync d/tmp
9 truncate d/tmp to 1536
10 rename d/tmp to d/f
11 syncdir d
12 remove d/e
`

func TestAfterOpSeesEveryOperation(t *testing.T) {
	m := vfstest.NewMem()
	var got strings.Builder
	m.AfterOp(func(op vfstest.Op) {
		fmt.Fprintf(&got, "%d %s\n", op.Number, op)
		if m.CrashClone(vfstest.Survival{}).OpCount() != 0 { // a function that AfterOp has set may call CrashClone
			t.Error("the clone counts operations")
		}
		if !op.Kind.Mutates() {
			t.Errorf("%s is not said to change the disk", op.Kind)
		}
	})
	must.OK(t, workload(m))
	if got.String() != workloadTranscript {
		t.Errorf("transcript:\n%swant:\n%s", got.String(), workloadTranscript)
	}
	if m.OpCount() != 12 {
		t.Errorf("%d operations, want 12", m.OpCount())
	}
	if _, err := m.Create("d/f"); err == nil || m.OpCount() != 12 {
		t.Errorf("an operation that had no effect was counted (%d) or did not fail (%v)", m.OpCount(), err)
	}
}

func TestCrashAfterStopsAtEveryOperation(t *testing.T) {
	for n := range int64(12) {
		m := vfstest.NewMem()
		m.CrashAfter(n)
		if err := workload(m); !errors.Is(err, vfs.ErrCrashed) {
			t.Fatalf("stop after %d: error %v", n, err)
		}
		if !m.Crashed() || m.OpCount() != n {
			t.Errorf("stop after %d: crashed %v after %d operations", n, m.Crashed(), m.OpCount())
		}
		for what, err := range map[string]error{
			"mkdir": m.MkdirAll("x"), "syncdir": m.SyncDir("."), "syncall": m.SyncAll("."), "remove": m.Remove("d"),
			"rename": m.Rename("d", "x"),
			"create": second(m.Create("x")), "open": second(m.Open("d/f")), "stat": second(m.Stat(".")),
			"list": second(m.List(".")), "lock": second(m.Lock("x")), "space": second(m.Space(".")),
		} {
			if !errors.Is(err, vfs.ErrCrashed) {
				t.Errorf("stop after %d: %s: error %v", n, what, err)
			}
		}
		disk := m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll})
		if _, err := disk.List("."); err != nil {
			t.Errorf("stop after %d: the disk does not start: %v", n, err)
		}
		_, err := disk.Stat("d/f")
		if exists := err == nil; exists != (n >= 10) {
			t.Errorf("stop after %d: file d/f exists: %v", n, exists)
		}
	}
	m := vfstest.NewMem()
	m.CrashAfter(12)
	must.OK(t, workload(m))
	if m.Crashed() {
		t.Error("crashed although no operation was tried beyond the last one")
	}
}

func second[T any](_ T, err error) error { return err }

func TestCrashedFilesFail(t *testing.T) {
	m, f := newSyncedFile(t, fill(1, 1))
	m.CrashAfter(m.OpCount())
	for what, err := range map[string]error{"write": second(f.WriteAt([]byte("x"), 0)), "sync": f.Sync(),
		"truncate": f.Truncate(0),
		"allocate": f.Allocate(0, 1000)} {
		if !errors.Is(err, vfs.ErrCrashed) {
			t.Errorf("%s: error %v", what, err)
		}
	}
	if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, vfs.ErrCrashed) {
		t.Errorf("read: error %v", err)
	}
	must.OK(t, f.Close())
	if got := vfstest.Read(t, m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll}), "f"); !bytes.Equal(got,
		fill(1, 1)) {
		t.Error("an operation after the crash changed the disk")
	}
}

func TestMemCapacity(t *testing.T) {
	m := vfstest.NewMem()
	m.SetCapacity(8 * 4096)
	free := func() int64 {
		s, err := m.Space(".")
		must.OK(t, err)
		if s.TotalBytes != 8*4096 {
			t.Errorf("total is %d", s.TotalBytes)
		}
		return s.FreeBytes / 4096
	}
	f := vfstest.Write(t, m, "f", make([]byte, 4096+1))
	if free() != 6 {
		t.Errorf("%d pages free, want 6", free())
	}
	if err := f.Allocate(8192, 7*4096); !errors.Is(err, syscall.ENOSPC) || free() != 6 {
		t.Errorf("allocate of 7 pages: error %v, %d free", err, free())
	}
	must.OK(t, f.Truncate(1<<40)) // a hole occupies no space
	n, err := f.WriteAt(make([]byte, 10*4096), 4*4096)
	if n != 6*4096 || !errors.Is(err, syscall.ENOSPC) || free() != 0 {
		t.Errorf("write of 10 pages: %d bytes written, error %v, %d free", n, err, free())
	}
	if _, err := f.WriteAt([]byte("old page"), 0); err != nil {
		t.Errorf("write to a page that has room: %v", err)
	}
	must.OK(t, f.Truncate(4096))
	if free() != 7 {
		t.Errorf("after truncate: %d pages free, want 7", free())
	}
	if s, err := m.CrashClone(vfstest.Survival{Kind: vfstest.SurviveAll}).Space("."); err != nil || s.FreeBytes != 7*4096 {
		t.Errorf("room of the clone: %+v, %v", s, err)
	}
	must.OK(t, m.Remove("f"))
	if free() != 7 {
		t.Errorf("removed but open: %d pages free, want 7", free())
	}
	must.OK(t, f.Close())
	if free() != 8 {
		t.Errorf("removed and closed: %d pages free, want 8", free())
	}
	g := vfstest.Write(t, m, "g", make([]byte, 4096))
	must.OK(t, g.Close())
	must.OK(t, vfstest.Write(t, m, "h", make([]byte, 4096)).Close())
	must.OK(t, m.Rename("g", "h"))
	if free() != 7 {
		t.Errorf("replaced by rename: %d pages free, want 7", free())
	}
}

func TestMemRefusesEnormousFiles(t *testing.T) {
	_, f := newSyncedFile(t, fill(1, 1))
	for _, offset := range []int64{1 << 36, 1 << 50, 1<<63 - 1} {
		if _, err := f.WriteAt([]byte("x"), offset); !errors.Is(err, syscall.EFBIG) {
			t.Errorf("write at %d: error %v", offset, err)
		}
		if err := f.Allocate(offset, 1); !errors.Is(err, syscall.EFBIG) {
			t.Errorf("allocate at %d: error %v", offset, err)
		}
		if err := f.Allocate(1, offset); !errors.Is(err, syscall.EFBIG) {
			t.Errorf("allocate %d: error %v", offset, err)
		}
	}
	if size, err := f.Size(); err != nil || size != sector {
		t.Errorf("size is %d, %v", size, err)
	}
}
