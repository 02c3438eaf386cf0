package volume

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

const mib = 1 << 20

// clock is a clock whose time the test sets.
type clock struct{ now atomic.Int64 }

func (c *clock) set(v *Volume)           { v.now = func() time.Time { return time.Unix(1, c.now.Load()) } }
func (c *clock) advance(d time.Duration) { c.now.Add(int64(d)) }

// smallVolume returns a volume with a reserve of 10 MiB on an in-memory disk of 100 MiB.
func smallVolume(t *testing.T) (*Volume, *vfstest.Mem, *clock) {
	t.Helper()
	m := vfstest.NewMem()
	m.SetCapacity(100 * mib)
	opts := options(m)
	opts.ReserveBytes = 10 * mib
	v := mustOpen(t, opts)
	t.Cleanup(func() { must.OK(t, v.Close()) })
	var c clock
	c.set(v)
	return v, m, &c
}

// take creates a file that occupies n bytes of the disk.
func take(t *testing.T, m vfs.FS, name string, n int64) {
	t.Helper()
	f, err := m.Create(name)
	must.OK(t, err)
	must.OK(t, f.Allocate(0, n))
	must.OK(t, f.Close())
}

func TestRule10_WritesAreRefusedBeforeTheDiskIsFull(t *testing.T) {
	v, m, clock := smallVolume(t)
	take(t, m, "/v/data", 85*mib) // 15 MiB minus the superblock are now free, 5 MiB of them above the reserve
	must.OK(t, v.Admit(4*mib, false))
	err := v.Admit(2*mib, false)
	var full *FullError
	if !errors.Is(err, ErrFull) || !errors.As(err, &full) {
		t.Fatalf("error is %v", err)
	}
	if want := (FullError{Dir: "/v", Bytes: 2 * mib, FreeBytes: 11*mib - fileBytes,
		ReserveBytes: 10 * mib}); *full != want {
		t.Errorf("error is %+v, want %+v", *full, want)
	}
	for _, word := range []string{"/v", "2097152 bytes", "11526144 bytes are free", "10485760 bytes must stay",
		"compact"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the message does not say %q: %v", word, err)
		}
	}
	// Deletes are still admitted, because half of the reserve is for them.
	must.OK(t, v.Admit(2*mib, true))
	must.OK(t, v.Admit(3*mib, true))
	if err := v.Admit(2*mib, true); !errors.As(err, &full) || full.ReserveBytes != 5*mib || !full.Delete {
		t.Errorf("a delete into the second half of the reserve: error %v", err)
	}
	// The data was never written, and other space was freed. Admit must notice both without a restart.
	must.OK(t, m.Remove("/v/data"))
	if err := v.Admit(2*mib, false); !errors.Is(err, ErrFull) {
		t.Errorf("the disk was looked at again after 0 ms: error %v", err)
	}
	clock.advance(lookInterval)
	must.OK(t, v.Admit(80*mib, false))
}

func TestRule10_AdmitLooksAtTheDiskAtMostEvery50ms(t *testing.T) {
	m := vfstest.NewMem()
	f := vfstest.NewFaulty(m)
	v := mustOpen(t, options(f))
	var c clock
	c.set(v)
	for range 1000 {
		must.OK(t, v.Admit(1000, false))
	}
	if n := f.Calls(vfstest.OpSpace); n != 1 {
		t.Errorf("looked %d times in 0 ms", n)
	}
	for range 100 {
		c.advance(lookInterval / 2)
		must.OK(t, v.Admit(1, true))
	}
	if n := f.Calls(vfstest.OpSpace); n != 51 {
		t.Errorf("looked %d times in 2.5 s", n)
	}
	fault := f.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool { return op.Kind == vfstest.OpSpace }})
	c.advance(lookInterval)
	if err := v.Admit(1, false); !errors.Is(err, syscall.EIO) || errors.Is(err, ErrFull) || fault.Fired() != 1 {
		t.Errorf("a disk that does not answer: error %v, fired %d", err, fault.Fired())
	}
	if _, _, err := v.Space(); !errors.Is(err, syscall.EIO) {
		t.Errorf("a disk that does not answer: error %v", err)
	}
	fault.Remove()
	must.OK(t, v.Admit(1, false))
}

func TestRule10_ConcurrentWritersCannotOvershoot(t *testing.T) {
	v, _, _ := smallVolume(t)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				if v.Admit(100_000, false) == nil {
					admitted.Add(100_000)
				}
			}
		})
	}
	wg.Wait()
	if got, limit := admitted.Load(), int64(90*mib-fileBytes); got > limit || got <= limit-100_000 {
		t.Errorf("%d bytes were admitted, of %d that may be", got, limit)
	}
}

func TestAdmitBadValues(t *testing.T) {
	v, _, _ := smallVolume(t)
	if err := v.Admit(-1, false); err == nil || errors.Is(err, ErrFull) {
		t.Errorf("-1 byte: error %v", err)
	}
	for _, bytes := range []int64{math.MaxInt64, math.MaxInt64 - 1, 1 << 40} {
		if err := v.Admit(bytes, false); !errors.Is(err, ErrFull) {
			t.Errorf("%d bytes: error %v", bytes, err)
		}
	}
	must.OK(t, v.Admit(0, false))
	must.OK(t, v.Close())
	if err := v.Admit(1, false); !errors.Is(err, ErrClosed) {
		t.Errorf("closed volume: error %v", err)
	}
}

func TestReserveBySizeOfTheDisk(t *testing.T) {
	for _, c := range []struct{ capacity, given, want int64 }{
		{100 * mib, 0, 16 * mib}, {320 * mib, 0, 16 * mib}, {1000 * mib, 0, 50 * mib}, {20 << 30, 0, 1 << 30},
		{4 << 40, 0, 1 << 30},
		{100 * mib, 5, 5},
	} {
		m := vfstest.NewMem()
		m.SetCapacity(c.capacity)
		opts := options(m)
		opts.ReserveBytes = c.given
		v := mustOpen(t, opts)
		space, reserve, err := v.Space()
		must.OK(t, err)
		if diff := reserve - c.want; diff < -100 || diff > 100 || space.TotalBytes != c.capacity ||
			space.FreeBytes != c.capacity-fileBytes {
			t.Errorf("disk of %d bytes, %d given: reserve %d, want %d; space %+v", c.capacity, c.given, reserve, c.want, space)
		}
		m.SetCapacity(2 * c.capacity) // makes the disk larger
		if _, reserve, err = v.Space(); err != nil || c.given == 0 && reserve < min(2*c.want, 1<<30)-16*mib {
			t.Errorf("disk grew to %d bytes: reserve %d, %v", 2*c.capacity, reserve, err)
		}
	}
}

// TestRule10_FullDiskOnRealFileSystems fills a real disk. Writes must be refused in time, the volume must open even
// after other programs have filled the disk to the last byte, and freed space must be noticed.
func TestRule10_FullDiskOnRealFileSystems(t *testing.T) {
	for fsType, size := range map[string]int64{"ext4": 64 * mib, "xfs": 320 * mib} {
		t.Run(fsType, func(t *testing.T) {
			point := vfstest.LoopMount(t, fsType, "", size)
			opts := Options{FS: vfs.OS{}, Dir: filepath.Join(point, "v"), Store: storeA, Shard: "s0", Create: true,
				ReserveBytes: 8 * mib}
			v := mustOpen(t, opts)
			defer func() { must.OK(t, v.Close()) }()
			var c clock
			c.set(v)
			written := fillUntilRefused(t, v, &c)
			space, _, err := v.Space()
			must.OK(t, err)
			if space.FreeBytes < 8*mib-mib {
				t.Errorf("only %d bytes are left of a reserve of 8 MiB", space.FreeBytes)
			}
			must.OK(t, v.Admit(mib, true))

			filler := filepath.Join(point, "other program")
			eatAll(t, filler)
			c.advance(lookInterval)
			if err := v.Admit(1, true); !errors.Is(err, ErrFull) {
				t.Errorf("a delete on a disk without any room: error %v", err)
			}
			must.OK(t, v.Close())
			sb := openOnce(t, opts)
			if sb.Generation != 2 {
				t.Errorf("on a full disk the generation is %d", sb.Generation)
			}
			if now, damages, err := VerifySuperblock(vfs.OS{}, opts.Dir); err != nil || now != sb || len(damages) != 0 {
				t.Errorf("superblock is %+v, damages %v, error %v", now, damages, err)
			}
			v = mustOpen(t, opts)
			c.set(v)
			if err := v.Admit(1, false); !errors.Is(err, ErrFull) {
				t.Errorf("a write on a full disk: error %v", err)
			}
			must.OK(t, os.Remove(filler))
			must.OK(t, os.Remove(written))
			deadline := time.Now().Add(2 * time.Minute) // xfs frees space in the background, so wait for it
			for err = ErrFull; err != nil && time.Now().Before(deadline); c.advance(lookInterval) {
				err = v.Admit(mib, false)
			}
			must.OK(t, err)
		})
	}
}

// fillUntilRefused writes to a file until Admit refuses a write, and returns the name of the file.
func fillUntilRefused(t *testing.T, v *Volume, c *clock) string {
	t.Helper()
	name := filepath.Join(v.Dir(), "data")
	f, err := vfs.OS{}.Create(name)
	must.OK(t, err)
	defer func() { must.OK(t, f.Close()) }()
	for offset := int64(0); ; offset += mib {
		if err := v.Admit(mib, false); err != nil {
			if !errors.Is(err, ErrFull) || offset < 16*mib {
				t.Fatalf("after %d bytes: %v", offset, err)
			}
			return name
		}
		if _, err := f.WriteAt(make([]byte, mib), offset); err != nil {
			t.Fatalf("the disk was full before Admit refused: %v", err)
		}
		must.OK(t, f.Sync())
		c.advance(lookInterval)
	}
}

// eatAll fills the disk to the last byte.
func eatAll(t *testing.T, name string) {
	t.Helper()
	f, err := vfs.OS{}.Create(name)
	must.OK(t, err)
	defer func() { must.OK(t, f.Close()) }()
	offset := int64(0)
	for size := mib; size >= 512; {
		n, err := f.WriteAt(make([]byte, size), offset)
		offset += int64(n)
		if errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else {
			must.OK(t, err)
		}
	}
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}
