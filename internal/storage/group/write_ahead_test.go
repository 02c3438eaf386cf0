package group

import (
	"bytes"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/grouptest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// aheadFS counts the writes that write zeros to segments, and the writes of data that fall entirely on such zeros.
type aheadFS struct {
	*vfstest.Mem
	fail bool // whether writes of zeros fail

	mu            sync.Mutex
	end           int64 // offset at which the zeros end
	zeros, onZero int
	data          int
}

func (a *aheadFS) Create(name string) (vfs.File, error) { return a.watch(a.Mem.Create(name)) }

func (a *aheadFS) OpenWrite(name string) (vfs.File, error) { return a.watch(a.Mem.OpenWrite(name)) }

func (a *aheadFS) watch(f vfs.File, err error) (vfs.File, error) {
	if err == nil && strings.Contains(f.Name(), "segment-") {
		f = &aheadFile{File: f, fs: a}
	}
	return f, err
}

func (a *aheadFS) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end, a.data, a.zeros, a.onZero = 0, 0, 0, 0
}

type aheadFile struct {
	vfs.File
	fs *aheadFS
}

func (f *aheadFile) WriteAt(p []byte, offset int64) (int, error) {
	a := f.fs
	a.mu.Lock()
	defer a.mu.Unlock()
	switch end := offset + int64(len(p)); {
	case offset == 0:
		a.end = 0 // a write at offset 0 begins a new segment
	case len(bytes.Trim(p, "\x00")) == 0:
		a.zeros++
		if a.fail {
			return 0, syscall.EIO
		}
		a.end = end
	default:
		a.data++
		if end <= a.end {
			a.onZero++
		}
	}
	return f.File.WriteAt(p, offset)
}

func TestSmallWritesFallOnZeros(t *testing.T) {
	for name, test := range map[string]struct {
		cheap, fail bool
		size, puts  int
		// before is the number of MiB written before the test. The log writes zeros ahead only in proportion to the
		// segment's size.
		before             int
		zerosMin, zerosMax int
	}{
		"small":                    {cheap: true, size: 1000, puts: 64, zerosMin: 3, zerosMax: 64 / (aheadFactor / 2)},
		"great":                    {cheap: true, size: 2 * aheadWriteMax, puts: 5},
		"no gain":                  {size: 1000, puts: 64},
		"zeros cannot be written":  {cheap: true, fail: true, size: 1000, puts: 64, zerosMin: 64, zerosMax: 64},
		"more than the zeros hold": {cheap: true, size: aheadWriteMax - 1000, puts: 20, before: 5, zerosMin: 2, zerosMax: 10},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfstest.NewMem()
			mem.SetCheapOverwrite(test.cheap)
			fs := &aheadFS{Mem: mem, fail: test.fail}
			d := newDriver(t, driverOptions(fs, Index, 8<<20))
			for i := range test.before {
				d.put(format.Entry{ID: int64(-2 - i), Data: grouptest.RandomBytes(uint64(i), 1<<20)})
			}
			fs.reset()
			for i := range test.puts {
				d.put(format.Entry{ID: int64(i), Data: grouptest.RandomBytes(uint64(i), test.size)})
			}
			if fs.data < test.puts || fs.zeros < test.zerosMin || fs.zeros > test.zerosMax {
				t.Errorf("%d writes of data, %d of zeros; want %d to %d", fs.data, fs.zeros, test.zerosMin, test.zerosMax)
			}
			d.put(format.Entry{ID: -1}) // this batch stores the commit index that covers the entries before it
			if want := fs.data - fs.zeros - 1; !test.fail && test.zerosMin > 0 && fs.onZero < want {
				t.Errorf("%d of %d writes fell on zeros, want %d", fs.onZero, fs.data, want)
			}
			ok(t, sealAndClose(d.log))
			d.load()
			defer func() { ok(t, d.log.Close(false)) }()
			for i := range test.puts {
				r, err := d.log.Get(int64(i), GetOptions{})
				if err != nil || !bytes.Equal(r.Data, grouptest.RandomBytes(uint64(i), test.size)) {
					t.Fatalf("record %d: %d bytes, %v", i, len(r.Data), err)
				}
			}
		})
	}
}
