package faultdisk

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/test/loop"
	"sheaf.dev/sheaf/internal/test/must"
)

// The mounts of the tests are in their own mount namespace, so that other processes do not see the mounts, and the
// mounts disappear when the process exits.
func TestMain(m *testing.M) {
	if err := loop.OwnMounts(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// attach attaches the disk as a block device of this machine. It skips the test if that is not possible, or fails it
// if SHEAF_LOOP=required.
func attach(t *testing.T, d *Device, sectorBytes int) *Drive {
	t.Helper()
	why := ""
	if !loop.HasOwnMounts() {
		why = "no root, or no mount namespace of its own"
	}
	for _, name := range []string{"/dev/fuse", "/dev/loop-control"} {
		if _, err := os.Stat(name); err != nil {
			why = err.Error()
		}
	}
	if why != "" && os.Getenv("SHEAF_LOOP") == "required" {
		t.Fatal(why)
	}
	if why != "" {
		t.Skip("NOT TESTED as a block device: " + why)
	}
	drive, err := Attach(d, t.TempDir(), sectorBytes)
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, drive.Detach()) })
	return drive
}

// The disk must record the writes and syncs on the block device in order, and its faults must reach programs that
// read from the block device.
func TestABlockDevice(t *testing.T) {
	for _, sectorBytes := range []int{512, 4096} {
		d := New(1 << 20)
		drive := attach(t, d, sectorBytes)
		f, err := os.OpenFile(drive.Path(), os.O_RDWR, 0)
		must.OK(t, err)
		defer f.Close()
		if got, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET); err != nil || got != sectorBytes {
			t.Errorf("sectors of %d bytes, %v, want %d", got, err, sectorBytes)
		}
		d.Begin()
		want := bytes.Repeat([]byte("sheaf!.."), PageBytes/8)
		for _, offset := range []int64{PageBytes, 0} {
			_, err = f.WriteAt(want, offset)
			must.OK(t, err)
			must.OK(t, f.Sync())
		}
		same := func(a, b Op) bool { return a.Kind == b.Kind && a.Offset == b.Offset }
		if got := d.Record(); !slices.EqualFunc(got, []Op{{Kind: Write, Offset: PageBytes}, {Kind: Flush}, {Kind: Write},
			{Kind: Flush}}, same) {
			t.Errorf("the record is %+v", got)
		}
		if !bytes.Equal(content(t, d)[:2*PageBytes], append(bytes.Clone(want), want...)) {
			t.Error("the disk has other bytes")
		}
		bad := &Fault{Calls: Reads, Offset: 512 << 10, Bytes: PageBytes, Err: syscall.EIO}
		d.Add(bad)
		b := make([]byte, PageBytes)
		if _, err := f.ReadAt(b, 512<<10); !errors.Is(err, syscall.EIO) || bad.Fired() == 0 {
			t.Errorf("a bad block reads with %v, fired %d times", err, bad.Fired())
		}
		bad.Remove()
		_, err = f.ReadAt(b, 512<<10)
		must.OK(t, err)
	}
}
