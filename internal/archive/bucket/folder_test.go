package bucket_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/buckettest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func open(t *testing.T, fsys vfs.FS, root string) *bucket.Folder {
	t.Helper()
	b, err := bucket.OpenFolder(fsys, root)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFolderInMemory(t *testing.T) {
	buckettest.Run(t, func(t *testing.T) bucket.Bucket { return open(t, vfstest.NewMem(), "/archive") })
}

func TestFolderOfTheSystem(t *testing.T) {
	buckettest.Run(t, func(t *testing.T) bucket.Bucket { return open(t, vfs.OS{}, path.Join(t.TempDir(), "archive")) })
}

// A folder may be given by a path that is not clean. Even so, Create must stop at that folder when it syncs the
// folders above an object.
func TestFolderPathNeedNotBeClean(t *testing.T) {
	for _, root := range []string{"/archive/", "/./archive", "/a/../archive//"} {
		b := open(t, vfstest.NewMem(), root)
		if err := b.Create(t.Context(), name, 1, bytes.NewReader([]byte("x"))); err != nil ||
			!objectExists(t, b, []byte("x")) {
			t.Errorf("%s: %v", root, err)
		}
	}
}

func TestFolderWithoutParentIsRefused(t *testing.T) {
	if _, err := bucket.OpenFolder(vfstest.NewMem(), "/mnt/archive"); !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), "mount") {
		t.Fatalf("error %v", err)
	}
}

const name = "g/some/deep/object"

// objectExists reports whether the object exists, and fails the test if the object's content is incomplete.
func objectExists(t *testing.T, b *bucket.Folder, content []byte) bool {
	t.Helper()
	r, err := b.Open(t.Context(), name, 0, -1)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, content) {
		t.Fatalf("the object has %d bytes, error %v", len(got), err)
	}
	return true
}

// A power cut during a Create leaves either the whole object or nothing. An object that Create has reported remains.
// This is also true if another process had begun to create the object, because the second Create reports fs.ErrExist
// only when the object is durable.
func TestPowerCutsLeaveWholeObjects(t *testing.T) {
	content := buckettest.Content(3000, 1)
	create := func(b *bucket.Folder) error {
		return b.Create(t.Context(), name, int64(len(content)), bytes.NewReader(content))
	}
	cuts := 0
	for n := int64(1); ; n++ {
		first := vfstest.NewMem()
		b := open(t, first, "/archive")
		if err := first.SyncAll("/"); err != nil {
			t.Fatal(err)
		}
		first.CrashAfter(first.OpCount() + n)
		err := create(b)
		reported := err == nil
		if !reported && !errors.Is(err, vfs.ErrCrashed) {
			t.Fatal(err)
		}
		for _, kind := range vfstest.SurvivalKinds {
			for seed := range uint64(4) {
				cuts++
				survival := vfstest.Survival{Kind: kind, Seed: seed}
				disk := first.CrashClone(survival)
				again := open(t, disk, "/archive")
				if is := objectExists(t, again, content); reported && !is {
					t.Fatalf("cut %d, %s: the object is lost", n, survival)
				}
				if err := create(again); err != nil && !errors.Is(err, fs.ErrExist) {
					t.Fatalf("cut %d, %s: create again: %v", n, survival, err)
				}
				for _, later := range vfstest.SurvivalKinds {
					if !objectExists(t, open(t, disk.CrashClone(vfstest.Survival{Kind: later}), "/archive"), content) {
						t.Fatalf("cut %d, %s, then %s: the object is lost, which the second Create found or made", n, survival, later)
					}
				}
			}
		}
		if reported {
			break
		}
	}
	if cuts < 100 {
		t.Fatalf("only %d power cuts", cuts)
	}
}

// If another process has created an object but not yet made its name durable, Create makes the name durable before it
// returns fs.ErrExist.
func TestAnObjectThatExistsIsDurable(t *testing.T) {
	content := buckettest.Content(10, 1)
	disk := vfstest.NewMem()
	b := open(t, disk, "/archive")
	if err := disk.SyncAll("/"); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"g", "g/some", "g/some/deep"} { // created by a process that died before syncing them
		if err := disk.Rename("/archive/.pending", "/archive/"+dir); err != nil {
			t.Fatal(err)
		}
		if err := disk.MkdirAll("/archive/.pending"); err != nil {
			t.Fatal(err)
		}
	}
	file := vfstest.Write(t, disk, "/archive/"+name, content)
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := b.Create(t.Context(), name, 10, bytes.NewReader(content)); !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	if !objectExists(t, open(t, disk.CrashClone(vfstest.Survival{}), "/archive"), content) {
		t.Fatal("the object that exists was not durable")
	}
}

// If the disk returns an error in any operation, a repeated Create still results in the whole object.
func TestDiskErrorsLeaveNoPartialObject(t *testing.T) {
	content := buckettest.Content(3000, 1)
	fired := map[vfstest.OpKind]int64{}
	for kind := vfstest.OpCreate; kind <= vfstest.OpSpace; kind++ {
		for call := int64(1); ; call++ {
			disk := vfstest.NewFaulty(vfstest.NewMem())
			b := open(t, disk, "/archive")
			before := disk.Calls(kind)
			fault := disk.Add(&vfstest.Fault{
				Match: func(op vfstest.Op) bool { return op.Kind == kind && op.Number == before+call }, Err: syscall.EIO,
			})
			err := b.Create(t.Context(), name, int64(len(content)), bytes.NewReader(content))
			fault.Remove()
			if fault.Fired() == 0 {
				break
			}
			fired[kind]++
			if is := objectExists(t, b, content); err == nil && !is {
				t.Fatalf("%s %d: no error, no object", kind, call)
			}
			if err := b.Create(t.Context(), name, int64(len(content)), bytes.NewReader(content)); err != nil &&
				!errors.Is(err, fs.ErrExist) {
				t.Fatalf("%s %d: create again: %v", kind, call, err)
			}
			if !objectExists(t, b, content) {
				t.Fatalf("%s %d: no object after the second Create", kind, call)
			}
		}
	}
	for _, kind := range []vfstest.OpKind{vfstest.OpCreate, vfstest.OpWrite, vfstest.OpSync, vfstest.OpLink,
		vfstest.OpMkdir, vfstest.OpSyncDir, vfstest.OpRemove, vfstest.OpStat} {
		if fired[kind] == 0 {
			t.Errorf("no %s failed", kind)
		}
	}
}

func TestPendingObjectsAreNotListed(t *testing.T) {
	disk := vfstest.NewMem()
	b := open(t, disk, "/archive")
	if err := vfstest.Write(t, disk, "/archive/.pending/left-behind", []byte("x")).Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := b.Create(t.Context(), fmt.Sprint("x", i), 1, bytes.NewReader([]byte("x"))); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for info, err := range b.List(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, info.Name)
	}
	if !slices.Equal(names, []string{"x0", "x1", "x2"}) {
		t.Fatalf("listed: %q", names)
	}
	left, err := disk.List("/archive/.pending")
	if err != nil || len(left) != 1 {
		t.Fatalf("left aside: %q, %v", left, err)
	}
}
