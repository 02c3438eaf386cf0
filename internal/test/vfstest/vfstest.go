// Package vfstest has tests that every implementation of vfs.FS must pass. It also has two implementations for use in
// tests: Mem, a disk in memory that simulates power cuts, and Faulty, which makes operations of another
// implementation fail.
package vfstest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sync"
	"testing"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
)

// Run runs the contract tests for vfs.FS. Each call of open() must return a new file system, and a new, empty folder
// on it.
func Run(t *testing.T, open func(t *testing.T) (vfs.FS, string)) {
	tests := []struct {
		name string
		run  func(t *testing.T, fsys vfs.FS, dir string)
	}{
		{"CreateWriteRead", createWriteRead},
		{"CreateRefusesWhatExists", createRefusesWhatExists},
		{"OpenOfNothing", openOfNothing},
		{"OpenOfFolder", openOfFolder},
		{"ReadOnlyFileRefusesWrites", readOnlyFileRefusesWrites},
		{"ClosedFileRefusesAll", closedFileRefusesAll},
		{"ReadAtEnds", readAtEnds},
		{"HoleReadsAsZero", holeReadsAsZero},
		{"Truncate", truncate},
		{"Allocate", allocate},
		{"DataEnd", dataEnd},
		{"BadArguments", badArguments},
		{"OpenDirect", openDirect},
		{"Remove", remove},
		{"RemovedFileStaysOpen", removedFileStaysOpen},
		{"Rename", rename},
		{"Link", link},
		{"RenameFolder", renameFolder},
		{"MkdirAll", mkdirAll},
		{"ListIsSorted", listIsSorted},
		{"Stat", stat},
		{"SyncDirOfNothing", syncDirOfNothing},
		{"Lock", lock},
		{"Space", space},
		{"ConcurrentUse", concurrentUse},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fsys, dir := open(t)
			test.run(t, fsys, dir)
		})
	}
}

// Write creates or replaces a file with the given content, without a sync. It is for tests.
func Write(t testing.TB, fsys vfs.FS, name string, content []byte) vfs.File {
	t.Helper()
	f, err := fsys.Create(name)
	if errors.Is(err, fs.ErrExist) {
		if f, err = fsys.OpenWrite(name); err == nil {
			err = f.Truncate(0)
		}
	}
	if err == nil {
		_, err = f.WriteAt(content, 0)
	}
	must.OK(t, err)
	t.Cleanup(func() { _ = f.Close() }) // an error does not matter, because many tests have already closed the file
	return f
}

// Read reads a whole file. It is for tests.
func Read(t testing.TB, fsys vfs.FS, name string) []byte {
	t.Helper()
	f, err := fsys.Open(name)
	must.OK(t, err)
	defer closed(t, f.Close)
	size, err := f.Size()
	must.OK(t, err)
	content := make([]byte, size)
	if n, err := f.ReadAt(content, 0); err != nil && !errors.Is(err, io.EOF) || n != len(content) {
		t.Fatalf("read %s: %d of %d bytes: %v", name, n, size, err)
	}
	return content
}

func closed(t testing.TB, do func() error) {
	t.Helper()
	if err := do(); err != nil {
		t.Error(err)
	}
}

func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func wantSize(t testing.TB, f vfs.File, want int64) {
	t.Helper()
	size, err := f.Size()
	must.OK(t, err)
	if size != want {
		t.Errorf("size of %s is %d, want %d", f.Name(), size, want)
	}
}

func pattern(n int, seed byte) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7) + byte(i>>8) + seed
	}
	return p
}

func createWriteRead(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "f")
	want := pattern(10_000, 1)
	f := Write(t, fsys, name, want)
	if f.Name() != name {
		t.Errorf("name is %q, want %q", f.Name(), name)
	}
	if f.Direct() {
		t.Error("a file for writing says that it is direct")
	}
	wantSize(t, f, 10_000)
	copy(want[5_000:], "in the middle")
	_, err := f.WriteAt([]byte("in the middle"), 5_000)
	must.OK(t, err)
	must.OK(t, f.Sync())
	must.OK(t, fsys.SyncDir(dir))
	must.OK(t, f.Close())
	if got := Read(t, fsys, name); !bytes.Equal(got, want) {
		t.Error("content differs from what was written")
	}
}

func createRefusesWhatExists(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "f")
	Write(t, fsys, name, []byte("old"))
	_, err := fsys.Create(name)
	wantError(t, "create of a file that exists", err, fs.ErrExist)
	_, err = fsys.Create(dir)
	wantError(t, "create of a folder that exists", err, fs.ErrExist)
	if got := Read(t, fsys, name); string(got) != "old" {
		t.Errorf("content is now %q", got)
	}
}

func openOfNothing(t *testing.T, fsys vfs.FS, dir string) {
	for _, name := range []string{"f", "no/f"} {
		for what, open := range map[string]func(string) (vfs.File, error){
			"open": fsys.Open, "open for writing": fsys.OpenWrite, "open direct": fsys.OpenDirect,
		} {
			f, err := open(path.Join(dir, name))
			wantError(t, what, err, fs.ErrNotExist)
			if f != nil {
				t.Errorf("%s returned a file with its error", what)
			}
		}
	}
	_, err := fsys.Create(path.Join(dir, "no/f"))
	wantError(t, "create in no folder", err, fs.ErrNotExist)
}

func openOfFolder(t *testing.T, fsys vfs.FS, dir string) {
	for what, open := range map[string]func(string) (vfs.File, error){
		"open": fsys.Open, "open for writing": fsys.OpenWrite, "open direct": fsys.OpenDirect,
	} {
		if f, err := open(dir); err == nil {
			t.Errorf("%s of a folder did not fail", what)
			must.OK(t, f.Close())
		}
	}
}

func readOnlyFileRefusesWrites(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "f")
	Write(t, fsys, name, []byte("old"))
	f, err := fsys.Open(name)
	must.OK(t, err)
	defer closed(t, f.Close)
	if n, err := f.WriteAt([]byte("new"), 0); err == nil || n != 0 {
		t.Errorf("write: %d bytes, error %v", n, err)
	}
	if err := f.Truncate(0); err == nil {
		t.Error("truncate did not fail")
	}
	if err := f.Allocate(0, 10); err == nil {
		t.Error("allocate did not fail")
	}
	if got := Read(t, fsys, name); string(got) != "old" {
		t.Errorf("content is now %q", got)
	}
}

func closedFileRefusesAll(t *testing.T, fsys vfs.FS, dir string) {
	f := Write(t, fsys, path.Join(dir, "f"), []byte("data"))
	must.OK(t, f.Close())
	_, err := f.ReadAt(make([]byte, 1), 0)
	wantError(t, "read", err, fs.ErrClosed)
	_, err = f.WriteAt([]byte("x"), 0)
	wantError(t, "write", err, fs.ErrClosed)
	_, err = f.Size()
	wantError(t, "size", err, fs.ErrClosed)
	wantError(t, "sync", f.Sync(), fs.ErrClosed)
	wantError(t, "truncate", f.Truncate(0), fs.ErrClosed)
	wantError(t, "allocate", f.Allocate(0, 1), fs.ErrClosed)
	wantError(t, "close", f.Close(), fs.ErrClosed)
}

func readAtEnds(t *testing.T, fsys vfs.FS, dir string) {
	f := Write(t, fsys, path.Join(dir, "f"), []byte("0123456789"))
	for _, c := range []struct {
		offset int64
		length int
		want   string
		eof    bool
	}{
		{0, 10, "0123456789", false}, {0, 11, "0123456789", true}, {8, 2, "89", false}, {8, 3, "89", true},
		{10, 1, "", true}, {10_000_000, 1, "", true}, {3, 0, "", false},
	} {
		buf := make([]byte, c.length)
		n, err := f.ReadAt(buf, c.offset)
		if string(buf[:n]) != c.want || c.eof != errors.Is(err, io.EOF) || !c.eof && err != nil {
			t.Errorf("read of %d at %d: %q, error %v; want %q, end %v", c.length, c.offset, buf[:n], err, c.want, c.eof)
		}
	}
	if n, err := f.WriteAt(nil, 5); n != 0 || err != nil {
		t.Errorf("write of nothing: %d, %v", n, err)
	}
	wantSize(t, f, 10)
}

func holeReadsAsZero(t *testing.T, fsys vfs.FS, dir string) {
	f := Write(t, fsys, path.Join(dir, "f"), []byte("begin"))
	_, err := f.WriteAt([]byte("end"), 100_000)
	must.OK(t, err)
	want := make([]byte, 100_003)
	copy(want, "begin")
	copy(want[100_000:], "end")
	got := bytes.Repeat([]byte{0xff}, len(want))
	_, err = f.ReadAt(got, 0)
	must.OK(t, err)
	if !bytes.Equal(got, want) {
		t.Error("the hole does not read as zero")
	}
}

func truncate(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "f")
	f := Write(t, fsys, name, pattern(9_000, 1))
	want := make([]byte, 12_000)
	copy(want, pattern(9_000, 1)[:5_001])
	must.OK(t, f.Truncate(5_001))
	wantSize(t, f, 5_001)
	must.OK(t, f.Truncate(12_000))
	wantSize(t, f, 12_000)
	if got := Read(t, fsys, name); !bytes.Equal(got, want) {
		t.Error("what was cut off came back, or more was cut")
	}
	must.OK(t, f.Truncate(0))
	if got := Read(t, fsys, name); len(got) != 0 {
		t.Errorf("%d bytes left", len(got))
	}
}

func allocate(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "f")
	f := Write(t, fsys, name, []byte("begin"))
	must.OK(t, f.Allocate(0, 3))
	wantSize(t, f, 5)
	must.OK(t, f.Allocate(3, 20_000))
	wantSize(t, f, 20_003)
	want := append([]byte("begin"), make([]byte, 19_998)...)
	if got := Read(t, fsys, name); !bytes.Equal(got, want) {
		t.Error("content changed, or the new space does not read as zero")
	}
}

// dataEnd checks that the offset that DataEnd returns is never before the end of the data, even if more space was
// allocated. The offset may be larger.
func dataEnd(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "f")
	f := Write(t, fsys, name, []byte("begin"))
	must.OK(t, f.Allocate(0, 1<<20))
	content := make([]byte, 1<<20)
	copy(content, "begin")
	look := func(from, data int64) {
		t.Helper()
		end, err := f.DataEnd(from)
		must.OK(t, err)
		// Read reads through the page cache. Such a read must not change the result of DataEnd.
		if got := Read(t, fsys, name); !bytes.Equal(got, content) {
			t.Fatal("content changed")
		}
		again, err := f.DataEnd(from)
		must.OK(t, err)
		if again != end {
			t.Errorf("from %d: the data ends at %d, and after a read through the page cache at %d", from, end, again)
		}
		if end < data || end < from || end > int64(len(content)) {
			t.Errorf("from %d: the data ends at %d; there is some up to %d, and the file ends at %d", from, end, data,
				len(content))
		}
	}
	look(0, 5)
	look(5, 5)
	for _, at := range []int64{700_000, 300_000, 1<<20 - 1} {
		content[at] = 1
		_, err := f.WriteAt([]byte{1}, at)
		must.OK(t, err)
		look(0, 700_001)
		look(at+1, at+1)
	}
	look(0, 1<<20)
	if end, err := f.DataEnd(2 << 20); err != nil || end != 1<<20 {
		t.Errorf("from behind the end: %d, %v", end, err)
	}
	if _, err := f.DataEnd(-1); err == nil {
		t.Error("from -1: no error")
	}
	must.OK(t, f.Truncate(100))
	content = content[:100]
	look(0, 5)
}

func badArguments(t *testing.T, fsys vfs.FS, dir string) {
	f := Write(t, fsys, path.Join(dir, "f"), []byte("data"))
	const maxInt64 = 1<<63 - 1
	if _, err := f.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("read at -1 did not fail")
	}
	if _, err := f.WriteAt([]byte("x"), -1); err == nil {
		t.Error("write at -1 did not fail")
	}
	if _, err := f.WriteAt([]byte("x"), maxInt64); err == nil {
		t.Error("write at the end of int64 did not fail")
	}
	for what, err := range map[string]error{
		"truncate to -1": f.Truncate(-1), "allocate at -1": f.Allocate(-1, 1), "allocate nothing": f.Allocate(0, 0),
		"allocate -1": f.Allocate(0, -1), "allocate beyond int64": f.Allocate(maxInt64, maxInt64),
	} {
		if err == nil {
			t.Errorf("%s did not fail", what)
		}
	}
	wantSize(t, f, 4)
}

func openDirect(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "f")
	want := pattern(3*vfs.DirectAlign+1_000, 3)
	must.OK(t, Write(t, fsys, name, want).Sync())
	f, err := fsys.OpenDirect(name)
	must.OK(t, err)
	defer closed(t, f.Close)
	t.Logf("direct: %v", f.Direct())
	buf := vfs.AlignedBytes(8 * vfs.DirectAlign)
	if !Aligned(buf) || len(buf) != 8*vfs.DirectAlign {
		t.Fatalf("AlignedBytes: %d bytes, aligned %v", len(buf), Aligned(buf))
	}
	n, err := f.ReadAt(buf, 0)
	if n != len(want) || !errors.Is(err, io.EOF) || !bytes.Equal(buf[:n], want) {
		t.Errorf("read beyond the end: %d of %d bytes, error %v", n, len(want), err)
	}
	n, err = f.ReadAt(buf[:2*vfs.DirectAlign], vfs.DirectAlign)
	must.OK(t, err)
	if !bytes.Equal(buf[:n], want[vfs.DirectAlign:3*vfs.DirectAlign]) {
		t.Error("read in the middle differs")
	}
	align := f.ReadAlign()
	if align <= 0 || vfs.DirectAlign%align != 0 {
		t.Fatalf("alignment of reads: %d", align)
	}
	n, err = f.ReadAt(buf[:3*align], vfs.DirectAlign-align)
	must.OK(t, err)
	if !bytes.Equal(buf[:n], want[vfs.DirectAlign-align:][:3*align]) {
		t.Error("read aligned no better than needed differs")
	}
	if n, err := f.ReadAt(buf, 4*vfs.DirectAlign); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read behind the end: %d bytes, error %v", n, err)
	}
	if _, err := f.WriteAt(buf[:vfs.DirectAlign], 0); err == nil {
		t.Error("write did not fail")
	}
}

func lock(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "lock")
	first, err := fsys.Lock(name)
	must.OK(t, err)
	_, err = fsys.Lock(name)
	wantError(t, "second lock", err, vfs.ErrLocked)
	other, err := fsys.Lock(path.Join(dir, "other"))
	must.OK(t, err)
	defer closed(t, other.Close)
	must.OK(t, first.Close())
	again, err := fsys.Lock(name)
	must.OK(t, err)
	must.OK(t, again.Close())
	_, err = fsys.Lock(path.Join(dir, "no/lock"))
	wantError(t, "lock in no folder", err, fs.ErrNotExist)
}

func space(t *testing.T, fsys vfs.FS, dir string) {
	s, err := fsys.Space(dir)
	must.OK(t, err)
	if s.TotalBytes <= 0 || s.FreeBytes < 0 || s.FreeBytes > s.TotalBytes {
		t.Errorf("space is %+v", s)
	}
	_, err = fsys.Space(path.Join(dir, "no"))
	wantError(t, "space of nothing", err, fs.ErrNotExist)
}

// concurrentUse runs several goroutines at once: writers of one file, each at its own offsets; readers of that file;
// and goroutines that create other files.
func concurrentUse(t *testing.T, fsys vfs.FS, dir string) {
	const workers, rounds, part = 8, 20, 3_000
	name := path.Join(dir, "shared")
	f := Write(t, fsys, name, make([]byte, workers*part))
	errs := make(chan error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { errs <- worker(fsys, f, dir, w, rounds, part) })
	}
	wg.Wait()
	for range workers {
		must.OK(t, <-errs)
	}
	got := Read(t, fsys, name)
	for w := range workers {
		if !bytes.Equal(got[w*part:(w+1)*part], pattern(part, byte(w*rounds+rounds-1))) {
			t.Errorf("part of worker %d is not what it wrote last", w)
		}
	}
	names, err := fsys.List(dir)
	must.OK(t, err)
	if len(names) != 1+workers {
		t.Errorf("names are %q", names)
	}
}

func worker(fsys vfs.FS, shared vfs.File, dir string, w, rounds, part int) error {
	own, tmp := path.Join(dir, fmt.Sprint("own", w)), path.Join(dir, fmt.Sprint("tmp", w))
	buf := make([]byte, part)
	for round := range rounds {
		want := pattern(part, byte(w*rounds+round))
		if _, err := shared.WriteAt(want, int64(w*part)); err != nil {
			return err
		}
		if _, err := shared.ReadAt(buf, int64(w*part)); err != nil {
			return err
		}
		if !bytes.Equal(buf, want) {
			return fmt.Errorf("worker %d round %d reads what it did not write", w, round)
		}
		f, err := fsys.Create(tmp)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(want, 0)
		if err = errors.Join(err, f.Sync(), f.Close(), fsys.Rename(tmp, own), fsys.SyncDir(dir)); err != nil {
			return err
		}
	}
	return nil
}
