package layouts

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/internal/test/loop"
	"sheaf.dev/sheaf/internal/test/must"
)

// needLoop skips the test if this machine cannot mount file systems or lacks one of the tools. With
// SHEAF_LOOP=required, it fails the test instead.
func needLoop(t *testing.T, tools ...string) {
	t.Helper()
	why := ""
	if os.Geteuid() != 0 {
		why = "mounting needs root"
	} else if _, err := os.Stat("/dev/loop-control"); err != nil {
		why = err.Error()
	} else if !loop.HasOwnMounts() {
		why = "no mount namespace of its own"
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("NOT TESTED on a real file system: %v", err)
		}
	}
	if why != "" && os.Getenv("SHEAF_LOOP") == "required" {
		t.Fatal(why)
	}
	if why != "" {
		t.Skip("NOT TESTED on a real file system: " + why)
	}
}

// checkNothingLeft fails the test if a run has left files or mounts behind.
func checkNothingLeft(t *testing.T, dir string) {
	t.Helper()
	names, err := os.ReadDir(dir)
	must.OK(t, err)
	for _, n := range names {
		t.Errorf("left behind: %s", n.Name())
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must.OK(t, err)
	if strings.Contains(string(mounts), dir+"/") {
		t.Errorf("still mounted below %s: %s", dir, mounts)
	}
}

// Every file system that this machine supports can be created, mounted with cold caches, checked and released.
func TestFileSystems(t *testing.T) {
	needLoop(t)
	dir := t.TempDir()
	p, err := newLoopPlace(t.Context(), dir, 640<<20, 0)
	must.OK(t, err)
	must.OK(t, realDropCaches())
	tried := 0
	for i := range fileSystems {
		fs := &fileSystems[i]
		if why, _ := fs.missing(t.Context()); why != "" {
			t.Logf("NOT TESTED: %s", why)
			continue
		}
		tried++
		s, err := p.begin(t.Context(), fs, 100)
		must.OK(t, err)
		l, set := &fileLayout{folder: nestedFolders(1)}, newSet(40, 40, 5000)
		must.OK(t, l.fill(t.Context(), s.dir, set, false))
		if _, err := readCold(t.Context(), s, l, set, 1, nil); err != nil {
			t.Errorf("%s: %v", fs.name, err)
		}
		if took, err := s.check(t.Context()); err != nil || took <= 0 {
			t.Errorf("%s: check took %v s: %v", fs.name, took, err)
		}
		if n, err := l.read(t.Context(), s.dir, set, 1, nil); err != nil || n != 40 {
			t.Errorf("%s: after the check: %d records, %v", fs.name, n, err)
		}
		must.OK(t, p.end(s))
	}
	must.OK(t, p.close())
	checkNothingLeft(t, dir)
	if tried == 0 {
		t.Skip("no file system can be made here")
	}
}

// tinyOptions returns options for a very short run.
func tinyOptions(t *testing.T, tables ...int) Options {
	return Options{Dir: t.TempDir(), FileSystems: []string{"ext4", "reiserfs"}, Tables: tables, Scale: "tiny", Say: t.Logf}
}

func TestRunOnLoopDevices(t *testing.T) {
	needLoop(t, "mke2fs")
	o := tinyOptions(t, 1, 2, 3)
	report, err := Run(t.Context(), o)
	must.OK(t, err)
	must.OK(t, report.Check())
	checkNothingLeft(t, o.Dir)
	for _, id := range []string{"ratios", "t1-sizes", "t1-sync", "t1-superseded", "t2", "t3"} {
		table := report.Table(id)
		if table == nil || len(table.Rows) < 2 {
			t.Fatalf("table %s: %+v", id, table)
		}
		missing := 0
		for _, row := range table.Rows {
			if row.Missing != "" {
				missing++
			}
		}
		if want := map[string]int{"ratios": 0}; id != "ratios" && missing != 1 || id == "ratios" && missing != want[id] {
			t.Errorf("table %s: %d rows say why there is no figure", id, missing)
		}
	}
	if !strings.Contains(strings.Join(report.Notes, " "), "reiserfs") {
		t.Errorf("the notes do not say why reiserfs is not there: %q", report.Notes)
	}
	checkRow := false
	for _, row := range report.Table("t3").Rows {
		checkRow = checkRow || row.Cells["check"].Median > 0 && row.Cells["mkfs"].Median > 0
	}
	if !checkRow {
		t.Error("no row tells how long mkfs and the check took")
	}
}

// A flat folder reaches a limit, which a group on the same file system does not have.
func TestFlatFolderLimit(t *testing.T) {
	needLoop(t, "mke2fs")
	dir := t.TempDir()
	p, err := newLoopPlace(t.Context(), dir, 256<<20, 0)
	must.OK(t, err)
	for _, c := range limitCells() {
		s, err := p.begin(t.Context(), c.fs, c.needs.files)
		must.OK(t, err)
		s.Figures = rounds.NewFigures()
		must.OK(t, c.run(t.Context(), s))
		must.OK(t, p.end(s))
		full := strings.HasPrefix(s.Text[resultText], "full")
		if c.layout == oursTitle && (full || s.Values["names"] != limitRecords) || c.layout == flatTitle &&
			(!full || s.Values["names"] < 1000) {
			t.Errorf("%s: %v, %q", c.layout, s.Values, s.Text)
		}
	}
	must.OK(t, p.close())
	checkNothingLeft(t, dir)
}

// An interrupted run leaves only its results. The next run continues from them.
func TestInterruptAndResume(t *testing.T) {
	needLoop(t, "mke2fs")
	o := tinyOptions(t, 4)
	o.Rounds, o.State = 2, filepath.Join(t.TempDir(), "state.json")
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := map[string]int{}
	o.Progress = func(p rounds.Progress) {
		if p.Ended && p.Figures != "" {
			ended[p.Key]++
		}
		if p.Done == 3 && !p.Ended {
			cancel(stop)
		}
	}
	report, err := Run(ctx, o)
	if !errors.Is(err, stop) || report == nil {
		t.Fatalf("report %v, error %v", report, err)
	}
	checkNothingLeft(t, o.Dir)
	o.Resume = true
	other := o
	other.Scale = "quick"
	if _, err := Run(t.Context(), other); err == nil || !strings.Contains(err.Error(), "other settings") {
		t.Errorf("figures of another scale are taken: %v", err)
	}
	report, err = Run(t.Context(), o)
	must.OK(t, err)
	for now, n := range ended {
		if n != 2 {
			t.Errorf("%s was measured %d times", now, n)
		}
	}
	if len(ended) != 4 || len(report.Table("t4").Plots) != 2 {
		t.Errorf("%d measurements, %d plots", len(ended), len(report.Table("t4").Plots))
	}
}

// A device that contains data is refused unless destroy is set. A blank device is blank again after its use.
func TestDeviceWithData(t *testing.T) {
	needLoop(t, "mke2fs")
	dir := t.TempDir()
	image, err := newImage(t.Context(), dir, 256<<20, 0)
	must.OK(t, err)
	device, err := loop.Attach(image, 0)
	must.OK(t, err)
	defer device.File.Close()
	blank := func() error {
		f, _, err := openDevice(device.Name, false)
		if err == nil {
			err = f.Close()
		}
		return err
	}
	must.OK(t, blank())
	must.OK(t, command(t.Context(), nil, findFileSystem("ext4").mkfsCommand(device.Name, 100)...))
	if err := blank(); !errors.Is(err, ErrHasData) || !strings.Contains(err.Error(), "ext4") {
		t.Errorf("a device with ext4: %v", err)
	}
	point := filepath.Join(dir, "point")
	must.OK(t, os.Mkdir(point, 0o700))
	must.OK(t, unix.Mount(device.Name, point, "ext4", 0, ""))
	if _, _, err := openDevice(device.Name, true); !errors.Is(err, ErrHasData) {
		t.Errorf("a device that is mounted, with --destroy: %v", err)
	}
	must.OK(t, unix.Unmount(point, 0))
	must.OK(t, os.Remove(point))
	p, err := newDevicePlace(device.Name, dir, true)
	must.OK(t, err)
	must.OK(t, p.close())
	must.OK(t, blank())
	zero := make([]byte, 1)
	_, err = device.File.WriteAt([]byte{1}, 256<<20-1)
	must.OK(t, err)
	if err := blank(); !errors.Is(err, ErrHasData) {
		t.Errorf("a device with one byte at its end: %v", err)
	}
	_, err = device.File.WriteAt(zero, 256<<20-1)
	must.OK(t, err)
	if _, _, err := openDevice("/dev/null", true); err == nil {
		t.Error("a character device passes for a block device")
	}
}

// Without root, only the existing file system is measured, and the report names the measurements that were omitted.
func TestRunOnAPath(t *testing.T) {
	dir := t.TempDir()
	// If the test has its own mount namespace, it uses a tmpfs, so that a sync does not wait for other processes' writes.
	if loop.HasOwnMounts() {
		must.OK(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
		defer func() { must.OK(t, unix.Unmount(dir, 0)) }()
	}
	report, err := Run(t.Context(), Options{Path: dir, Scale: "tiny", Tables: []int{1, 5}, Say: t.Logf})
	must.OK(t, err)
	must.OK(t, report.Check())
	checkNothingLeft(t, dir)
	if table := report.Table("t1-sizes"); table == nil || len(table.Rows) != 8 {
		t.Fatalf("%+v", table)
	}
	var met int
	for _, row := range report.Table("ratios").Rows {
		if row.Cells["verdict"].Text == result.Met || row.Cells["verdict"].Text == result.Missed {
			met++
		}
	}
	if met < 4 {
		t.Errorf("%d ratios have a verdict", met)
	}
	var s unix.Statfs_t
	must.OK(t, unix.Statfs(dir, &s))
	r := &run{opts: Options{Path: dir, Dir: dir, Say: t.Logf, Rounds: 1, Tables: []int{1}, Scale: "full"},
		scale: scales["full"], set: rounds.New()}
	r.cells = []cell{{fs: &fileSystem{}, needs: need{disk: int64(s.Blocks) * s.Bsize}}}
	if err := r.estimate(); err == nil || !strings.Contains(err.Error(), "are free") {
		t.Errorf("a run that the disk has no room for: %v", err)
	}
	r.cells = []cell{{fs: &fileSystem{}, needs: need{memory: 1 << 60}}}
	if err := r.estimate(); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("a run that the memory is too small for: %v", err)
	}
	if _, err := Run(t.Context(), Options{Path: filepath.Join(dir, "gone"), Scale: "tiny", Say: t.Logf}); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}
