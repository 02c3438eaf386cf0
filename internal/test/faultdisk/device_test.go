package faultdisk

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"regexp"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

func write(t testing.TB, d *Device, b []byte, offset int64) {
	t.Helper()
	n, err := d.WriteAt(b, offset)
	if err != nil || n != len(b) {
		t.Fatalf("write at %d: %d of %d bytes, %v", offset, n, len(b), err)
	}
}

func content(t testing.TB, d *Device) []byte {
	t.Helper()
	b := make([]byte, d.Size())
	_, err := d.ReadAt(b, 0)
	must.OK(t, err)
	return b
}

// Reads must return what was written, whatever the offsets of the writes are. An image must not change when its disk
// does.
func TestReadsBackWhatWasWritten(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const size = 16 * PageBytes
	d, want := New(size), make([]byte, size)
	var image *Image
	var then []byte
	for step := range 500 {
		from := random.IntN(size)
		bytes := make([]byte, random.IntN(min(size-from, 3*PageBytes)+1))
		if random.IntN(4) == 0 {
			must.OK(t, d.Zero(int64(from), int64(len(bytes))))
		} else {
			for i := range bytes {
				bytes[i] = byte(random.Uint32())
			}
			write(t, d, bytes, int64(from))
		}
		copy(want[from:], bytes)
		if step == 250 {
			image, then = d.Begin(), append([]byte(nil), want...)
		}
	}
	if !bytes.Equal(content(t, d), want) {
		t.Error("it reads other bytes than were written")
	}
	if !bytes.Equal(content(t, Of(image)), then) {
		t.Error("an image changed with its disk")
	}
	all, loss := NewCutter(image, d.Record()).Cut(d.Position(), Survival{Keep: KeepAll})
	if !bytes.Equal(content(t, Of(all)), want) || loss != (Loss{Pending: d.Position()}) {
		t.Errorf("a cut that keeps all lost something: %+v", loss)
	}
}

func TestRefusesWhatIsOutside(t *testing.T) {
	d := New(PageBytes)
	for _, c := range []struct{ offset, bytes int64 }{{-1, 1}, {0, PageBytes + 1}, {PageBytes, 1}, {1 << 62, 1 << 62}} {
		if err := d.Zero(c.offset, c.bytes); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%d bytes at %d: %v", c.bytes, c.offset, err)
		}
	}
	if d.Position() != 0 {
		t.Error("what was refused is recorded")
	}
}

// sectorsOf returns the letters of a disk's sectors. Each sector must hold a single letter, or the test fails.
func sectorsOf(t *testing.T, i *Image, sector int) string {
	t.Helper()
	b := content(t, Of(i))
	out := ""
	for at := 0; at < len(b); at += sector {
		if !bytes.Equal(b[at:at+sector], bytes.Repeat(b[at:at+1], sector)) {
			t.Fatalf("the sector at %d is torn", at)
		}
		if b[at] == 0 {
			out += "."
		} else {
			out += string(b[at : at+1])
		}
	}
	return out
}

func letters(letter string, sectors, sector int) []byte {
	return bytes.Repeat([]byte(letter), sectors*sector)
}

// legal matches the sectors of a disk after a power cut between the first flush and the second one. Each sector may
// have the content that was flushed, or the content of any later write.
var legal = regexp.MustCompile(`^[.a]a[ab][abc][.c]\.\.\.$`)

// Everything that was flushed before a cut still exists after it. Of the other writes, any subset of the sectors
// survives, in any order. Nothing else changes.
func TestCutsLeaveExactlyTheLegalStates(t *testing.T) {
	const sector = 512
	for keep := range keeps {
		d := New(PageBytes) // a disk of 8 sectors
		before := d.Begin()
		write(t, d, letters("a", 4, sector), 0)
		must.OK(t, d.Flush())
		write(t, d, letters("b", 2, sector), 2*sector)
		write(t, d, letters("c", 2, sector), 3*sector)
		must.OK(t, d.Zero(0, sector))
		must.OK(t, d.Flush())
		write(t, d, letters("d", 8, sector), 0)
		seen, sum := map[string]bool{}, Loss{}
		for seed := range uint64(3000) {
			c := NewCutter(before, d.Record())
			if i, _ := c.Cut(2, Survival{Keep: keep, SectorBytes: sector, Seed: seed}); sectorsOf(t, i, sector) != "aaaa...." {
				t.Fatalf("%v: what was flushed is lost: %s", keep, sectorsOf(t, i, sector))
			}
			i, loss := c.Cut(5, Survival{Keep: keep, SectorBytes: sector, Seed: seed})
			seen[sectorsOf(t, i, sector)] = true
			sum.Add(loss)
			if i, _ := c.Cut(6, Survival{Keep: keep, SectorBytes: sector, Seed: seed}); sectorsOf(t, i, sector) != ".abcc..." {
				t.Fatalf("%v: what was flushed is lost: %s", keep, sectorsOf(t, i, sector))
			}
		}
		// The possible contents of the sectors are a or zero in sector 0, a in sector 1, a or b in sector 2, a, b or c in
		// sector 3, and zero or c in sector 4.
		want := map[Keep]int{KeepNone: 1, KeepAll: 1, KeepSome: 10, KeepSectors: 2 * 2 * 3 * 2}[keep]
		if len(seen) != want {
			t.Errorf("%v: %d states were seen, want %d: %v", keep, len(seen), want, seen)
		}
		for state := range seen {
			if !legal.MatchString(state) {
				t.Errorf("%v: %s cannot be", keep, state)
			}
		}
		lost, torn := sum.Dropped > 0, sum.Torn > 0
		if lost == (keep == KeepAll) || torn != (keep == KeepSectors) || sum.Pending != 3*3000 ||
			(sum.Reordered > 0) != (keep == KeepSome || keep == KeepSectors) {
			t.Errorf("%v: %+v", keep, sum)
		}
	}
}

func TestFaultsAnswerForAWhile(t *testing.T) {
	d := New(4 * PageBytes)
	write(t, d, letters("a", 1, PageBytes), PageBytes)
	b := make([]byte, PageBytes)
	read := func(offset int64) error {
		_, err := d.ReadAt(b, offset)
		return err
	}
	once := &Fault{Calls: Reads, Offset: PageBytes, Bytes: 1, Err: syscall.EIO, Times: 1}
	d.Add(once)
	must.OK(t, read(0))
	if err := read(PageBytes); !errors.Is(err, syscall.EIO) || once.Fired() != 1 {
		t.Errorf("a read: %v, fired %d times", err, once.Fired())
	}
	must.OK(t, read(PageBytes))
	full := &Fault{Calls: Writes | Flushes, Err: syscall.ENOSPC}
	d.Add(full)
	for range 2 {
		if _, err := d.WriteAt(b, 0); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("a write: %v", err)
		}
		if err := d.Flush(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("a flush: %v", err)
		}
	}
	must.OK(t, read(0))
	full.Remove()
	full.Remove()
	must.OK(t, d.Flush())
	if full.Fired() != 4 || d.Position() != 2 {
		t.Errorf("fired %d times, %d operations are recorded", full.Fired(), d.Position())
	}
}

func TestAStalledDiskGoesOn(t *testing.T) {
	d := New(PageBytes)
	stall := &Fault{Calls: Writes}
	d.Add(stall)
	done := make(chan error)
	go func() {
		_, err := d.WriteAt([]byte{1}, 0)
		done <- err
	}()
	for stall.Fired() == 0 {
		select {
		case err := <-done:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
	}
	if d.Position() != 0 {
		t.Error("it is recorded before it was done")
	}
	stall.Remove()
	must.OK(t, <-done)
	if d.Position() != 1 {
		t.Error("it is not recorded")
	}
}

func TestRotIsNotRecorded(t *testing.T) {
	d := New(PageBytes)
	before := d.Begin()
	write(t, d, []byte{7}, 5)
	must.OK(t, d.Rot(5, 0x81))
	if got := content(t, d)[5]; got != 7^0x81 {
		t.Errorf("it reads %x", got)
	}
	i, _ := NewCutter(before, d.Record()).Cut(1, Survival{Keep: KeepAll})
	if got := content(t, Of(i))[5]; got != 7 {
		t.Errorf("after a power cut it reads %x", got)
	}
}
