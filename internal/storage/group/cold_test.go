package group

import (
	"bytes"
	"errors"
	"math"
	"path"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/grouptest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// coldFS counts the reads that bypass the page cache, and the reads through it. It can refuse reads that bypass the
// page cache or make them fail.
type coldFS struct {
	vfs.FS
	direct, cached atomic.Int64
	noDirect       bool
	openErr        error
	readErr        error
}

func (c *coldFS) Open(name string) (vfs.File, error) {
	f, err := c.FS.Open(name)
	return &coldTestFile{File: f, reads: &c.cached}, err
}

func (c *coldFS) OpenDirect(name string) (vfs.File, error) {
	if c.openErr != nil {
		return nil, c.openErr
	}
	if c.noDirect {
		return c.Open(name)
	}
	f, err := c.FS.OpenDirect(name)
	return &coldTestFile{File: f, reads: &c.direct, err: c.readErr}, err
}

type coldTestFile struct {
	vfs.File
	reads *atomic.Int64
	err   error
}

func (f *coldTestFile) ReadAt(p []byte, offset int64) (int, error) {
	f.reads.Add(1)
	if f.err != nil {
		return 0, f.err
	}
	return f.File.ReadAt(p, offset)
}

// coldLog loads a group in Index residency with records of the given sizes, whose ids begin at 0. All records were
// written before this load.
func coldLog(t *testing.T, cacheBytes int64, sizes ...int) (*logDriver, *coldFS) {
	t.Helper()
	fs := &coldFS{FS: vfstest.NewMem()}
	d := newDriver(t, driverOptions(fs, Index, 8<<20))
	for i, size := range sizes {
		d.put(format.Entry{ID: int64(i), Data: coldData(int64(i), size), Attributes: coldAttributes})
	}
	d.put(format.Entry{ID: math.MaxInt64}) // the batch of this entry records that the earlier entries are committed
	ok(t, sealAndClose(d.log))
	d.opts.Loader = segio.NewLoader(segio.LoaderOptions{CacheBytes: cacheBytes})
	d.load()
	t.Cleanup(func() { ok(t, d.log.Close(false)) })
	return d, fs
}

func coldData(id int64, size int) []byte { return grouptest.RandomBytes(uint64(id), size) }

var coldAttributes = func() []byte {
	b, err := format.EncodeAttributes(map[string][]byte{"a": []byte("b")})
	if err != nil {
		panic(err)
	}
	return b
}()

// reads returns how many reads of a Get bypassed the page cache, and how many went through it.
func (c *coldFS) reads(t *testing.T, d *logDriver, id int64, size int) (direct, cached int64) {
	t.Helper()
	direct, cached = c.direct.Load(), c.cached.Load()
	r, err := d.log.Get(id, GetOptions{})
	if err != nil || !bytes.Equal(r.Data, coldData(id, size)) || !bytes.Equal(r.Attributes, coldAttributes) ||
		r.Size != int64(size) {
		t.Fatalf("record %d: %d bytes of data, size %d, %v", id, len(r.Data), r.Size, err)
	}
	return c.direct.Load() - direct, c.cached.Load() - cached
}

// TestColdReadPassesByThePageCacheOnce checks that the first read of a record bypasses the page cache, and that later
// reads use the page cache until a new round begins.
func TestColdReadPassesByThePageCacheOnce(t *testing.T) {
	sizes := []int{5000, 0, 1, 10 << 10, 200 << 10, 4096, format.DataBytesMax}
	d, fs := coldLog(t, math.MaxInt64, sizes...)
	for _, id := range []int64{0, 3, 4, 6} { // each of these records begins in a different block
		for i, want := range []int64{1, 0, 0} {
			if direct, cached := fs.reads(t, d, id, sizes[id]); direct != want || cached != 1-want {
				t.Errorf("record %d, read %d: %d past the page cache, %d through it", id, i+1, direct, cached)
			}
		}
	}
	for id, size := range sizes {
		fs.reads(t, d, int64(id), size)
	}
	d.opts.Loader.ForgetCache()
	if direct, cached := fs.reads(t, d, 0, sizes[0]); direct != 1 || cached != 0 {
		t.Errorf("in a new round: %d past the page cache, %d through it", direct, cached)
	}
	if r, err := d.log.Get(3, GetOptions{MetadataOnly: true}); err != nil || r.Data != nil || r.Size != 10<<10 ||
		!bytes.Equal(r.Attributes, coldAttributes) {
		t.Errorf("metadata only: %d bytes of data, size %d, %v", len(r.Data), r.Size, err)
	}
	d.opts.Loader.ForgetCache()
	buffer := make([]byte, 0, 16<<10)
	if r, err := d.log.Get(0, GetOptions{Buffer: buffer}); err != nil || &r.Attributes[0] != &buffer[:1][0] {
		t.Errorf("the buffer was not used: %v", err)
	}
}

// TestColdRoundEndsWhenThePageCacheIsFull checks that data counts as cold again when the page cache can no longer hold
// it.
func TestColdRoundEndsWhenThePageCacheIsFull(t *testing.T) {
	d, fs := coldLog(t, 25<<10, 10<<10, 10<<10, 10<<10, 10<<10)
	for id := range int64(3) {
		fs.reads(t, d, id, 10<<10)
		fs.reads(t, d, id, 10<<10)
	}
	if round := d.opts.Loader.CacheRound(); round != 1 {
		t.Fatalf("round %d", round)
	}
	if direct, _ := fs.reads(t, d, 0, 10<<10); direct != 1 {
		t.Error("a record is not cold again")
	}
}

// TestColdReadRefused checks that records are read through the page cache if the file system refuses reads that
// bypass the cache, either always or temporarily. An error of the device itself must be returned.
func TestColdReadRefused(t *testing.T) {
	d, fs := coldLog(t, math.MaxInt64, 5000, 5000, 5000)
	fs.openErr = syscall.EMFILE
	if direct, cached := fs.reads(t, d, 0, 5000); direct != 0 || cached != 1 {
		t.Errorf("too many files: %d past the page cache, %d through it", direct, cached)
	}
	fs.openErr, fs.noDirect = nil, true
	if direct, cached := fs.reads(t, d, 1, 5000); direct != 0 || cached != 1 {
		t.Errorf("no O_DIRECT: %d past the page cache, %d through it", direct, cached)
	}
	fs.noDirect = false
	if direct, cached := fs.reads(t, d, 2, 5000); direct != 0 || cached != 1 {
		t.Errorf("it was asked again: %d past the page cache, %d through it", direct, cached)
	}

	d, fs = coldLog(t, math.MaxInt64, 5000)
	fs.readErr = syscall.EIO
	var damage *format.DamageError
	if _, err := d.get(0); !errors.As(err, &damage) || damage.ID != 0 {
		t.Errorf("the device refuses: %v", err)
	}
	d, fs = coldLog(t, math.MaxInt64, 5000)
	fs.readErr = syscall.ENOMEM
	if _, err := d.get(0); !errors.Is(err, syscall.ENOMEM) || errors.As(err, &damage) {
		t.Errorf("no memory: %v", err)
	}
}

// TestColdReadChecks checks that a frame is verified if its read bypassed the page cache.
func TestColdReadChecks(t *testing.T) {
	d, fs := coldLog(t, math.MaxInt64, 5000, 5000)
	f, err := fs.OpenWrite(path.Join(d.opts.Dir, format.SegmentName(1)))
	ok(t, err)
	_, err = f.WriteAt([]byte{0xaa}, format.SegmentHeaderBytes+format.FrameHeaderBytes+1000)
	ok(t, errors.Join(err, f.Close()))
	var damage *format.DamageError
	if _, err := d.get(0); !errors.As(err, &damage) {
		t.Errorf("a changed byte: %v", err)
	}
	if direct := fs.direct.Load(); direct == 0 {
		t.Error("it was not read past the page cache")
	}
	if direct, _ := fs.reads(t, d, 1, 5000); direct != 1 {
		t.Error("the record beside it is not read")
	}
}

// TestColdReadsBesideEachOther lets many goroutines read the same blocks while rounds change. Every result must be
// right.
func TestColdReadsBesideEachOther(t *testing.T) {
	const records = 40
	sizes := make([]int, records)
	for i := range sizes {
		sizes[i] = 100 + 700*i
	}
	d, _ := coldLog(t, 20<<10, sizes...)
	var wait sync.WaitGroup
	for w := range 8 {
		wait.Go(func() {
			for i := range 400 {
				id := int64((i*7 + w*3) % records)
				r, err := d.log.Get(id, GetOptions{})
				if err != nil || !bytes.Equal(r.Data, coldData(id, sizes[id])) {
					t.Errorf("record %d: %d bytes, %v", id, len(r.Data), err)
					return
				}
			}
		})
	}
	wait.Wait()
	if d.opts.Loader.CacheRound() == 0 {
		t.Error("no round ended")
	}
}
