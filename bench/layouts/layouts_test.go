package layouts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/test/loop"
	"sheaf.dev/sheaf/internal/test/must"
)

// The tests mount in their own mount namespace. Otherwise a process that another test starts at the same time would
// keep the mounts busy.
func TestMain(m *testing.M) {
	if err := loop.OwnMounts(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	realDropCaches, dropCaches = dropCaches, func() error { return nil }
	os.Exit(m.Run())
}

var realDropCaches func() error

var allLayouts = []layout{
	&fileLayout{title: "flat", folder: flatFolder},
	&fileLayout{title: "1 level", folder: nestedFolders(1)},
	&fileLayout{title: "3 levels", folder: nestedFolders(1, 2, 1)},
	&fileLayout{title: "made before", folder: nestedFolders(2, 2), made: true},
	&fileLayout{title: "in turn", folder: sequentialFolders(7)},
	&fileLayout{title: "striped", folder: stripedFolders(7)},
	&composite{},
	&composite{flags: flagInPlace},
	&composite{flags: flagBitmap},
	&sheafLayout{residency: group.Resident},
	&sheafLayout{residency: group.Index},
}

// Every layout returns each record's newest version exactly once, byte for byte.
func TestLayoutsReadWhatWasWritten(t *testing.T) {
	for _, l := range allLayouts {
		for _, c := range []struct{ live, total, size, readers int }{{300, 300, 1000, 1}, {300, 300, 33, 8}, {1, 1, 1, 1},
			{100, 250, 5000, 1}, {3, 40, 20, 1}} {
			_, files := l.(*fileLayout)
			if files && c.total > c.live {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d of %d", l.name(), c.live, c.total), func(t *testing.T) {
				set, dir := newSet(c.live, c.total, c.size), t.TempDir()
				if p, ok := l.(preparer); ok {
					must.OK(t, p.prepare(t.Context(), dir, set))
				}
				must.OK(t, l.fill(t.Context(), dir, set, false))
				var mu sync.Mutex
				got := map[int64][]byte{}
				n, err := l.read(t.Context(), dir, set, c.readers, func(id int64, data []byte) error {
					mu.Lock()
					defer mu.Unlock()
					got[id] = bytes.Clone(data) // a later version replaces an earlier one, as in a reader that has no flags
					return nil
				})
				must.OK(t, err)
				if n != int64(c.live) || len(got) != c.live {
					t.Fatalf("%d records were counted and %d given, %d were written", n, len(got), c.live)
				}
				for id, data := range got {
					k, ok := set.newest(id)
					if !ok || !bytes.Equal(data, set.data(k)) {
						t.Errorf("record %d differs", id)
					}
				}
				if n, err := l.read(t.Context(), dir, set, c.readers, nil); err != nil || n != int64(c.live) {
					t.Errorf("without a visitor: %d records, %v", n, err)
				}
			})
		}
	}
}

// A reader of a layout with flags skips the superseded versions.
func TestFlagsSkipSupersededVersions(t *testing.T) {
	set := newSet(50, 200, 100)
	for _, c := range []struct {
		l     layout
		given int
	}{{&composite{}, 200}, {&composite{flags: flagInPlace}, 50}, {&composite{flags: flagBitmap}, 50},
		{&sheafLayout{residency: group.Resident}, 50}} {
		dir := t.TempDir()
		must.OK(t, c.l.fill(t.Context(), dir, set, false))
		var mu sync.Mutex
		given := 0
		_, err := c.l.read(t.Context(), dir, set, 1, func(int64, []byte) error {
			mu.Lock()
			given++
			mu.Unlock()
			return nil
		})
		must.OK(t, err)
		if given != c.given {
			t.Errorf("%s gave %d versions, want %d", c.l.name(), given, c.given)
		}
	}
}

// A layout with damaged files fails, so that it is not mistaken for a fast layout.
func TestLayoutsDetectDamagedFiles(t *testing.T) {
	set := newSet(100, 100, 1000)
	for _, l := range allLayouts {
		dir := t.TempDir()
		if p, ok := l.(preparer); ok {
			must.OK(t, p.prepare(t.Context(), dir, set))
		}
		must.OK(t, l.fill(t.Context(), dir, set, false))
		largest, size := "", int64(0)
		must.OK(t, walkFiles(dir, func(path string) error {
			info, err := os.Stat(path)
			if err == nil && info.Size() > size {
				largest, size = path, info.Size()
			}
			return err
		}))
		must.OK(t, os.Truncate(largest, size/2))
		s := &site{dir: dir, cold: func(context.Context) error { return nil }}
		if _, err := readCold(t.Context(), s, l, set, 1, nil); err == nil {
			t.Errorf("%s: half of %s is gone, and nothing is said", l.name(), filepath.Base(largest))
		}
	}
}

func TestSingleRecords(t *testing.T) {
	set := newSet(200, 200, hashedBytes)
	dir := t.TempDir()
	for _, l := range []oneByOne{
		&filesOneByOne{l: &fileLayout{folder: nestedFolders(1, 1)}, dir: filepath.Join(dir, "files"), set: set},
		&oursOneByOne{dir: filepath.Join(dir, "ours"), set: set},
	} {
		must.OK(t, l.create(t.Context()))
		must.OK(t, l.start(t.Context()))
		buffer := make([]byte, hashedBytes+1<<10)
		for i := range set.live {
			must.OK(t, l.seek(i))
			must.OK(t, l.get(i, buffer))
		}
		must.OK(t, l.remove(t.Context(), []int{3, 199}))
		for _, again := range []bool{false, true} {
			if again { // a removal must survive a restart
				must.OK(t, l.stop())
				must.OK(t, l.start(t.Context()))
			}
			for i, there := range map[int]bool{2: true, 3: false, 198: true, 199: false} {
				if err := l.get(i, buffer); (err == nil) != there {
					t.Errorf("%T: record %d, removed: %v, again: %v: %v", l, i, !there, again, err)
				}
				if err := l.seek(i); (err == nil) != there {
					t.Errorf("%T: seeking record %d, removed: %v, again: %v: %v", l, i, !there, again, err)
				}
			}
		}
		must.OK(t, l.stop())
	}
}

func TestFileNamesAreTheirOwn(t *testing.T) {
	for _, id := range []int64{1, 2, 1 << 40, -1, 0} {
		if got, err := fileID(fileName(id)); err != nil || got != id {
			t.Errorf("%d became %d: %v", id, got, err)
		}
	}
	if _, err := fileID("no number"); err == nil {
		t.Error("a foreign file passes for a record")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{
		{Scale: "huge"}, {FileSystems: []string{"zfs"}}, {FileSystems: []string{"xfs", "xfs"}}, {Tables: []int{6}},
		{Tables: []int{0}}, {Tables: []int{1, 1}},
		{Rounds: -1}, {Rounds: 100}, {Resume: true}, {Destroy: true}, {Device: "/dev/x", Path: "/"},
		{Path: "/", FileSystems: []string{"xfs"}},
	} {
		if err := o.Check(); !errors.Is(err, ErrUsage) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if err := (&Options{}).Check(); err != nil {
		t.Error(err)
	}
}

// newest returns the number of a record's newest version, or false if there is no such record.
func (s *recordSet) newest(id int64) (int, bool) {
	i := int(id) - 1
	if id < 1 || i >= s.live {
		return 0, false
	}
	return i + s.live*((s.total-1-i)/s.live), true
}
