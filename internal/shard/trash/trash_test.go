package trash

import (
	"log/slog"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// filled creates a bin with the folders of two replicas from different groups. The group of the first replica is
// getting another copy, which is not complete.
func filled(t *testing.T, held *bool) (b *Bin, disk *vfstest.Mem, groups [2]uuid.UUID) {
	t.Helper()
	disk, groups = vfstest.NewMem(), [2]uuid.UUID{uuid.New(), uuid.New()}
	b = &Bin{Options: Options{
		FS: disk, Dir: func() string { return "v/trash" }, Delay: time.Hour, Held: func() bool { return *held },
		Coming: func(group uuid.UUID) bool { return group == groups[0] }, Fuller: func() {}, Freed: func() {},
		Problem: func(_ string, err error) {
			if err != nil {
				t.Error(err)
			}
		},
		Logger: slog.New(slog.DiscardHandler),
	}}
	for i, group := range groups {
		dir := path.Join("v/groups", group.String())
		must.OK(t, disk.MkdirAll(dir))
		file := format.ReplicaFile{RaftID: uint64(i + 1), Volume: uuid.New(), Store: uuid.New(), Group: group}
		must.OK(t, format.WriteReplicaFile(disk, dir, file))
		must.OK(t, b.Put(dir, group, file.RaftID))
	}
	return b, disk, groups
}

// inBin returns the groups whose folders are in a bin.
func inBin(t *testing.T, b *Bin) (groups []string) {
	t.Helper()
	names, err := b.FS.List(b.Dir())
	must.OK(t, err)
	for _, name := range names {
		groups = append(groups, name[:36])
	}
	return groups
}

// Old folders are deleted, except the folder of a group that is getting a new copy.
func TestWhatIsOldGoes(t *testing.T) {
	for _, c := range []struct {
		name string
		held bool
		age  time.Duration
		left int // number of folders
	}{
		{"young", false, 59 * time.Minute, 2},
		{"old", false, 61 * time.Minute, 1},
		{"old, while it is held", true, 61 * time.Minute, 2},
	} {
		b, _, groups := filled(t, &c.held)
		if err := b.Empty(time.Now().Add(c.age)); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if left := inBin(t, b); len(left) != c.left || !slices.Contains(left, groups[0].String()) {
			t.Errorf("%s: left are %v", c.name, left)
		}
	}
}

// If space is short, every folder may be deleted, but the folder of a group that is getting a new copy is deleted
// last. The bin reports that space was freed, so that goroutines that wait for space can continue.
func TestWhatIsMissedLeastGoesFirst(t *testing.T) {
	held, freed := false, 0
	b, _, groups := filled(t, &held)
	b.Freed = func() { freed++ }
	var order []string
	drop := func() error {
		return b.Drop(func(f *Folder) bool {
			order = append(order, f.name[:36])
			return true
		})
	}
	must.OK(t, drop())
	if want := []string{groups[1].String(), groups[0].String()}; !slices.Equal(order, want) || freed != 1 ||
		len(inBin(t, b)) > 0 {
		t.Errorf("they went in the order %v, want %v; told %d times; left are %v", order, want, freed, inBin(t, b))
	}
	if err := drop(); err != nil || freed != 1 {
		t.Errorf("a bin that is empty: %v, told %d times", err, freed)
	}
}

// watched is a file system that records which files are removed.
type watched struct {
	vfs.FS
	gone []string
}

func (w *watched) Remove(name string) error {
	w.gone = append(w.gone, path.Base(name))
	return w.FS.Remove(name)
}

// When a folder is removed, its manifest is removed first, so that after a crash the rest is not mistaken for a
// complete group. The replica file is removed last, so that the rest can still be identified.
func TestInWhichOrderFilesGo(t *testing.T) {
	held := false
	b, disk, _ := filled(t, &held)
	names, err := disk.List(b.Dir())
	must.OK(t, err)
	dir := path.Join(b.Dir(), names[0])
	for _, name := range []string{"a", format.ManifestName, "z"} {
		f, err := disk.Create(path.Join(dir, name))
		if err == nil {
			err = f.Close()
		}
		must.OK(t, err)
	}
	w := &watched{FS: disk}
	must.OK(t, RemoveAll(w, dir))
	if want := []string{format.ManifestName, "a", "z", format.ReplicaName, path.Base(dir)}; !slices.Equal(w.gone, want) {
		t.Errorf("they went in the order %v, want %v", w.gone, want)
	}
}
