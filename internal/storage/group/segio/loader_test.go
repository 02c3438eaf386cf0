package segio

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/grouptest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// loaderFile creates a file with random bytes in an in-memory file system.
func loaderFile(t *testing.T, fs vfs.FS, bytes int) []byte {
	t.Helper()
	content := make([]byte, bytes)
	rng := rand.New(rand.NewPCG(1, uint64(bytes)))
	for i := range content {
		content[i] = byte(rng.Uint32())
	}
	f, err := fs.Create("file")
	if err == nil {
		_, err = f.WriteAt(content, 0)
	}
	must.OK(t, errors.Join(err, f.Close()))
	return content
}

// TestLoaderReadsInOrder checks that bytes that await has reported as arrived can be used while the reads continue. The
// file sizes are close to the chunk size.
func TestLoaderReadsInOrder(t *testing.T) {
	for _, opts := range []LoaderOptions{{}, {Reads: 1}, {Rotational: true}} {
		for _, size := range []int{1, 4095, 4096, 4097, loadChunkBytes - 1, loadChunkBytes, loadChunkBytes + 1,
			5*loadChunkBytes + 12345} {
			fs := vfstest.NewMem()
			want := loaderFile(t, fs, size)
			l := NewLoader(opts)
			into, err := l.Allocate(int64(size), false)
			must.OK(t, err)
			f, err := fs.OpenDirect("file")
			must.OK(t, err)
			var mu sync.Mutex
			told := int64(0)
			read, err := l.Read(t.Context(), f, into, func(n int64) { mu.Lock(); told += n; mu.Unlock() })
			must.OK(t, err)
			for at := int64(0); at < int64(size); {
				have, err := read.await(at + 1)
				if err != nil || have <= at {
					t.Fatalf("size %d: await(%d) = %d, %v", size, at+1, have, err)
				}
				if !bytes.Equal(into[at:have], want[at:have]) {
					t.Fatalf("size %d: bytes %d to %d differ", size, at, have)
				}
				at = have
			}
			if err := read.Finish(); err != nil || told != int64(size) {
				t.Fatalf("size %d: finish %v, told of %d bytes", size, err, told)
			}
			l.Release(into, int64(cap(into)))
			l.Close()
		}
	}
}

// TestLoaderUnreadableBlock checks that a sector that the device cannot read does not affect adjacent sectors, and is
// never mistaken for data.
func TestLoaderUnreadableBlock(t *testing.T) {
	mem := vfstest.NewMem()
	want := loaderFile(t, mem, 2*loadChunkBytes)
	const bad = loadChunkBytes + 5*format.BlockBytes
	fault := &vfstest.Fault{
		Match: func(op vfstest.Op) bool {
			return op.Kind == vfstest.OpRead && op.Offset <= bad && bad < op.Offset+op.Length
		},
		Err: syscall.EIO,
	}
	fs := vfstest.NewFaulty(mem)
	fs.Add(fault)
	l := NewLoader(LoaderOptions{})
	defer l.Close()
	into, err := l.Allocate(int64(len(want)), false)
	must.OK(t, err)
	defer l.Release(into, int64(cap(into)))
	f, err := fs.OpenDirect("file")
	must.OK(t, err)
	read, err := l.Read(t.Context(), f, into, nil)
	if err == nil {
		err = read.Finish()
	}
	must.OK(t, err)
	if fault.Fired() < 2 {
		t.Fatalf("the fault fired %d times", fault.Fired())
	}
	if !slices.Equal(read.unreadable, []byteRange{{bad, format.BlockBytes}}) {
		t.Fatalf("unreadable: %v", read.unreadable)
	}
	copy(want[bad:bad+format.BlockBytes], bytes.Repeat([]byte{0xff}, format.BlockBytes))
	if !bytes.Equal(into, want) {
		t.Fatal("bytes beside the unreadable block differ")
	}
}

// TestLoaderErrors checks what happens if a file cannot be read or has become shorter. Loading must fail with an
// error, and must leave no goroutine behind.
func TestLoaderErrors(t *testing.T) {
	mem := vfstest.NewMem()
	loaderFile(t, mem, 3*loadChunkBytes)
	fault := &vfstest.Fault{Match: func(op vfstest.Op) bool { return op.Kind == vfstest.OpRead }, Err: syscall.EIO}
	faulty := vfstest.NewFaulty(mem)
	faulty.Add(fault)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		fs   vfs.FS
		ctx  context.Context
		size int64
		want error
	}{
		"nothing can be read": {faulty, t.Context(), 3 * loadChunkBytes, syscall.EIO},
		"too short":           {mem, t.Context(), 4 * loadChunkBytes, nil},
		"cancelled":           {mem, cancelled, 3 * loadChunkBytes, context.Canceled},
	} {
		l := NewLoader(LoaderOptions{Reads: 2})
		into, err := l.Allocate(c.size, false)
		must.OK(t, err)
		f, err := c.fs.OpenDirect("file")
		must.OK(t, err)
		read, err := l.Read(c.ctx, f, into, nil)
		if err == nil {
			_, err = read.await(c.size)
			if finish := read.Finish(); !errors.Is(finish, err) {
				t.Errorf("%s: await %v, finish %v", name, err, finish)
			}
		}
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		l.Release(into, int64(cap(into)))
		l.Close()
	}
	if fault.Fired() == 0 {
		t.Error("the fault did not fire")
	}
}

// TestLoaderKeepsMemory checks that the loader reuses freed memory, that it does not return such memory to a caller
// that requests fresh memory, and that it keeps no more than KeepBytes.
func TestLoaderKeepsMemory(t *testing.T) {
	l := NewLoader(LoaderOptions{KeepBytes: 5 << 20})
	first, err := l.Allocate(4<<20, false)
	must.OK(t, err)
	second, err := l.Allocate(4<<20, false)
	must.OK(t, err)
	first[0], first[4<<20-1] = 1, 2
	at := &first[0]
	l.Release(first, int64(cap(first)))
	l.Release(second, int64(cap(second)))
	if l.keptBytes != 4<<20 {
		t.Fatalf("%d bytes are kept", l.keptBytes)
	}
	fresh, err := l.Allocate(4<<20-100, true)
	must.OK(t, err)
	if &fresh[0] == at || !bytes.Equal(fresh, make([]byte, len(fresh))) {
		t.Error("room to grow into is not fresh")
	}
	again, err := l.Allocate(4<<20-100, false)
	must.OK(t, err)
	if &again[0] != at {
		t.Error("kept memory was not used")
	}
	l.Release(fresh, 1<<20)
	if l.keptBytes != 0 {
		t.Error("room is kept that was hardly touched")
	}
	l.Release(again, int64(cap(again)))
	if large, err := l.Allocate(16<<20, false); err != nil {
		t.Fatal(err)
	} else {
		l.Release(large, int64(cap(large)))
	}
	l.Close()
	if len(l.kept) != 0 {
		t.Error("memory is kept after Close")
	}
}

// TestImagesTakeWhatIsWritten checks that memory that is mostly unwritten takes little physical memory, because the
// memory budget counts bytes and not huge pages.
func TestImagesTakeWhatIsWritten(t *testing.T) {
	for _, c := range []struct {
		what    string
		bytes   int64
		grows   bool
		written int64
	}{
		{"a new segment's first frame", 256 << 20, true, 100},
		{"a small segment read whole", 5 << 10, false, 5 << 10},
		{"a segment read whole that ends just behind a huge page", 4<<20 + 1, false, 4<<20 + 1},
	} {
		buffer, err := NewLoader(LoaderOptions{}).Allocate(c.bytes, c.grows)
		must.OK(t, err)
		for at := int64(0); at < c.written; at += 4096 {
			buffer[at] = 1
		}
		if taken := grouptest.TouchedBytes(t, buffer); taken < c.written || taken > c.written+4096 {
			t.Errorf("%s: %d bytes were written to, %d of memory are taken", c.what, c.written, taken)
		}
	}
}
