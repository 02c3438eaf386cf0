package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func TestMountDistinguishesFileSystems(t *testing.T) {
	for _, c := range []struct {
		fsType, driver string
		size           int64
		options        []string
		want           string
	}{
		// The kernel mounts ext2 with the ext4 driver if it has no other driver for ext2.
		{"ext2", "ext4", 16 * mib, nil, "ext2"},
		{"ext3", "ext4", 16 * mib, nil, "ext3"},
		{"ext4", "ext4", 16 * mib, nil, "ext4"},
		{"ext4", "ext4", 16 * mib, []string{"-O", "inline_data"}, "ext4"},
		{"ext4", "ext4", 16 * mib, []string{"-O", "^has_journal"}, "ext4"},
		{"ext2", "ext2", 16 * mib, nil, "ext2"},
		{"ext3", "ext3", 16 * mib, nil, "ext3"},
		{"xfs", "xfs", 320 * mib, nil, "xfs"},
		{"btrfs", "btrfs", 128 * mib, nil, "btrfs"},
	} {
		name := strings.Join(append([]string{c.fsType, "by", c.driver}, c.options...), " ")
		t.Run(name, func(t *testing.T) {
			point := vfstest.LoopMount(t, c.fsType, c.driver, c.size, c.options...)
			opts := Options{FS: vfs.OS{}, Dir: filepath.Join(point, "v"), Store: storeA, Shard: "s0", Create: true}
			v := mustOpen(t, opts)
			defer func() { must.OK(t, v.Close()) }()
			m, err := v.Mount()
			must.OK(t, err)
			if m.FileSystem != c.want {
				t.Errorf("file system is %s, want %s", m.FileSystem, c.want)
			}
			if !strings.HasPrefix(m.Source, "/dev/loop") || !slices.Contains(m.Options, "rw") {
				t.Errorf("source %s, options %q", m.Source, m.Options)
			}
			if m.Rotational == nil {
				t.Fatal("it is unknown whether the disk is rotational")
			}
			queue := "/sys/block/" + filepath.Base(m.Source) + "/queue/rotational"
			if content, err := os.ReadFile(queue); err != nil || string(content) == "1\n" != *m.Rotational {
				t.Errorf("rotational is %v, the kernel says %q, %v", *m.Rotational, content, err)
			}
			m, err = mountByPath(t, opts.Dir)
			if err != nil || m.FileSystem != c.driver || !strings.HasPrefix(m.Source, "/dev/loop") {
				t.Errorf("by path: %+v, %v", m, err)
			}
		})
	}
}

// mountByPath finds the mount of a folder by the path alone, as MountOf does on kernels older than 5.8.
func mountByPath(t *testing.T, dir string) (Mount, error) {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	must.OK(t, err)
	defer func() { must.OK(t, f.Close()) }()
	mounts, err := parseMountInfo(f)
	must.OK(t, err)
	info, err := longestMount(mounts, dir)
	return info.Mount, err
}

func TestMountOfATemporaryFileSystem(t *testing.T) {
	const shm = "/dev/shm"
	var st unix.Statfs_t
	if err := unix.Statfs(shm, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Skipf("%s is no tmpfs here", shm)
	}
	dir, err := os.MkdirTemp(shm, "sheaf-test")
	must.OK(t, err)
	defer func() { must.OK(t, os.RemoveAll(dir)) }()
	link := filepath.Join(t.TempDir(), "link")
	must.OK(t, os.Symlink(dir, link))
	v := mustOpen(t, Options{FS: vfs.OS{}, Dir: link, Store: storeA, Shard: "s0", Create: true})
	defer func() { must.OK(t, v.Close()) }()
	m, err := v.Mount()
	if err != nil || m.FileSystem != "tmpfs" || m.Rotational != nil {
		t.Errorf("mount is %+v, %v", m, err)
	}
}

// TestMountUnderAnotherMount mounts a second file system on a parent folder of a disk's mount point. The second file
// system hides the disk, so a folder at the path of the mount point belongs to the second file system.
func TestMountUnderAnotherMount(t *testing.T) {
	point := vfstest.LoopMount(t, "ext4", "", 16*mib)
	parent := filepath.Dir(point)
	must.OK(t, unix.Mount("tmpfs", parent, "tmpfs", 0, "size=1m"))
	defer func() { must.OK(t, unix.Unmount(parent, 0)) }()
	v := mustOpen(t, Options{FS: vfs.OS{}, Dir: point, Store: storeA, Shard: "s0", Create: true})
	defer func() { must.OK(t, v.Close()) }()
	if m, err := v.Mount(); err != nil || m.FileSystem != "tmpfs" {
		t.Errorf("mount is %+v, %v", m, err)
	}
}

func TestMountInMemory(t *testing.T) {
	v := mustOpen(t, options(vfstest.NewFaulty(vfstest.NewMem())))
	if m, err := v.Mount(); err != nil || m.FileSystem != "mem" {
		t.Errorf("mount is %+v, %v", m, err)
	}
}

func TestParseMountInfo(t *testing.T) {
	const text = `22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw,errors=remount-ro
30 22 0:25 / /mnt/with\040space\134 rw,nosuid shared:2 master:3 propagate_from:4 - xfs /dev/disk\040one rw,nosuid,attr2
31 22 0:26 /sub /mnt/b ro - overlay overlay rw,lowerdir=/a\054b:/c
32 22 8:3 / /mnt/b rw - btrfs /dev/sdb rw,compress=zstd:3
`
	mounts, err := parseMountInfo(strings.NewReader(text))
	must.OK(t, err)
	want := []mountInfo{
		{22, "8:2", "/", Mount{"ext4", []string{"rw", "relatime", "errors=remount-ro"}, "/dev/sda2", nil}},
		{30, "0:25", `/mnt/with space\`, Mount{"xfs", []string{"rw", "nosuid", "attr2"}, "/dev/disk one", nil}},
		{31, "0:26", "/mnt/b", Mount{"overlay", []string{"ro", "rw", "lowerdir=/a,b:/c"}, "overlay", nil}},
		{32, "8:3", "/mnt/b", Mount{"btrfs", []string{"rw", "compress=zstd:3"}, "/dev/sdb", nil}},
	}
	if !reflect.DeepEqual(mounts, want) {
		t.Errorf("parsed\n%+v, want\n%+v", mounts, want)
	}
	for dir, id := range map[string]int{
		"/": 22, "/mnt": 22, `/mnt/with space\/v`: 30, "/mnt/b": 32, "/mnt/b/c": 32, "/mnt/bc": 22,
	} {
		if m, err := longestMount(mounts, dir); err != nil || m.id != id {
			t.Errorf("mount of %s is %d, want %d; %v", dir, m.id, id, err)
		}
	}
	if _, err := longestMount(mounts[1:], "/elsewhere"); err == nil {
		t.Error("no mount holds the folder, and one was found")
	}
	for _, bad := range []string{"x", "", "22 1 8:2 / / rw - ext4 /dev/sda2", "a 1 8:2 / / rw - ext4 /dev/sda2 rw",
		"22 1 8:2 / - ext4 /dev/sda2 rw"} {
		if mounts, err := parseMountInfo(strings.NewReader(bad + "\n")); err == nil {
			t.Errorf("line %q was understood: %+v", bad, mounts)
		}
	}
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{
		`a\040b`: "a b", `\011\012\134\043`: "\t\n\\#", `\`: `\`, `\04`: `\04`, `\999`: `\999`, `\777`: `\777`, "": "",
	} {
		if got := unescape(in); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

func TestMeasureReadRate(t *testing.T) {
	v := mustOpen(t, Options{FS: vfs.OS{}, Dir: t.TempDir(), Store: storeA, Shard: "s0", Create: true})
	defer func() { must.OK(t, v.Close()) }()
	rate := func(limit int64) float64 {
		t.Helper()
		r, err := v.MeasureReadRate(limit)
		must.OK(t, err)
		return r
	}
	if r := rate(1 << 30); r != 0 {
		t.Errorf("an empty volume is read at %g B/s", r)
	}
	must.OK(t, vfs.OS{}.MkdirAll(v.GroupDir(storeA)))
	// This file must not be measured. It was never written, so reads of it would not reach the disk and would be as fast
	// as memory.
	take(t, vfs.OS{}, filepath.Join(v.GroupDir(storeA), "reserved"), 64*mib)
	if r := rate(1 << 30); r != 0 {
		t.Errorf("room that was not written is read at %g B/s", r)
	}
	for i := range 3 {
		name := filepath.Join(v.GroupDir(storeA), fmt.Sprint("data", i))
		must.OK(t, vfstest.Write(t, vfs.OS{}, name, make([]byte, 5*mib+i)).Sync())
	}
	if f, err := (vfs.OS{}).OpenDirect(filepath.Join(v.GroupDir(storeA), "data0")); err != nil || !f.Direct() {
		t.Skipf("the folder of the tests cannot be read past the page cache: %v", err)
	} else {
		must.OK(t, f.Close())
	}
	if r := rate(1 << 30); r <= 0 {
		t.Errorf("15 MiB are read at %g B/s", r)
	}
	if r := rate(7 * mib); r != 0 {
		t.Errorf("a limit of 7 MiB, and still %g B/s", r)
	}
	if r := rate(-1); r != 0 {
		t.Errorf("a limit of -1, and still %g B/s", r)
	}
}

func TestMeasureReadRateKeepsToItsLimitAndReportsErrors(t *testing.T) {
	f := vfstest.NewFaulty(vfstest.NewMem())
	v := mustOpen(t, options(f))
	must.OK(t, f.MkdirAll(v.GroupDir(storeA)))
	for i := range 4 {
		must.OK(t, vfstest.Write(t, f, v.GroupDir(storeA)+fmt.Sprint("/data", i), make([]byte, 6*mib)).Sync())
	}
	before := f.Calls(vfstest.OpRead)
	if r, err := v.MeasureReadRate(10*mib + 1); err != nil || r <= 0 {
		t.Errorf("rate %g, error %v", r, err)
	}
	if n := f.Calls(vfstest.OpRead) - before; n != 10 {
		t.Errorf("%d reads of 1 MiB at a limit of 10 MiB", n)
	}
	fault := f.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
		return op.Kind == vfstest.OpRead && op.Name == v.GroupDir(storeA)+"/data1"
	}, Count: 1})
	if r, err := v.MeasureReadRate(10 * mib); err == nil || r != 0 || fault.Fired() != 1 ||
		!strings.Contains(err.Error(), "data1") {
		t.Errorf("rate %g, error %v, fired %d", r, err, fault.Fired())
	}
}
