package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/test/clitest"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// strangeTree creates a tree with every kind of file, name and mode that an import has to handle.
func strangeTree(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	file := func(name string, data []byte, mode os.FileMode, mtime time.Time) {
		full := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(full), 0o755))
		must(t, os.WriteFile(full, data, 0o600))
		must(t, os.Chmod(full, mode))
		must(t, os.Chtimes(full, mtime, mtime))
	}
	at := time.Date(2001, 2, 3, 4, 5, 6, 123456789, time.UTC)
	file("plain", []byte("plain"), 0o644, at)
	file("empty", nil, 0o600, at.Add(time.Hour))
	file("executable", []byte("#!/bin/sh\n"), 0o755, at)
	file("read-only", []byte("ro"), 0o444, at)
	file("setuid", []byte("s"), 0o755|os.ModeSetuid, at)
	file("no permissions", []byte("x"), 0o000, at)
	file("old", []byte("before 1970"), 0o644, time.Unix(-86400*365*20, 5))
	file("far future", []byte("beyond Unix nanoseconds"), 0o644, time.Unix(1<<34+1, 0))
	file("a b/c d/e", []byte("blanks"), 0o644, at)
	file("new\nline/tab\tname", []byte("control characters"), 0o644, at)
	file("ünïcödé/日本語", []byte("unicode"), 0o644, at)
	file("latin-\xe9\xff", []byte("no UTF-8"), 0o644, at)
	file("-dash", []byte("dash"), 0o644, at)
	file(".hidden/.x", []byte("hidden"), 0o644, at)
	file("_records/looks/like", []byte("ours"), 0o644, at)
	file(strings.Repeat("n", 255), []byte("long name"), 0o644, at)
	file(strings.Repeat("deep/", 50)+"leaf", []byte("deep"), 0o644, at)
	for i, size := range []int{1, 4096, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3<<20 + 7} {
		file(fmt.Sprintf("sizes/%d", size), pattern(uint64(i), size), 0o644, at.Add(time.Duration(i)*time.Second))
	}
	for i := range 700 {
		file(fmt.Sprintf("many/%d/%d", i%7, i), pattern(uint64(i), i*13), 0o644, at.Add(time.Duration(i)))
	}
	must(t, os.Symlink("plain", filepath.Join(root, "link")))
	must(t, os.Symlink("/nowhere/at/all", filepath.Join(root, "dangling")))
	must(t, os.Symlink("..", filepath.Join(root, "a b/up")))
	return root
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// describeTree returns one line for each file and link, with name, mode, time and content.
func describeTree(t testing.TB, root string) map[string]string {
	t.Helper()
	lines := map[string]string{}
	err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%v %d.%09d ", info.Mode(), info.ModTime().Unix(), info.ModTime().Nanosecond())
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += fmt.Sprintf("%d %x", len(data), sha256.Sum256(data))
		case info.Mode().Type() == fs.ModeSymlink:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			line += "-> " + target
		}
		lines[rel] = line
		return nil
	})
	must(t, err)
	return lines
}

// checkExport checks that an export equals the tree below root.
func (p *process) checkExport(t *testing.T, root string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	p.do(t, "", "export", out).Want(t, 0)
	compareTrees(t, describeTree(t, out), describeTree(t, root))
}

func compareTrees(t testing.TB, got, want map[string]string) {
	t.Helper()
	for name, line := range want {
		if got[name] != line {
			t.Errorf("%q: %s, want %s", name, got[name], line)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%q is new", name)
		}
	}
}

// importReport is the output of import -o json.
type importReport struct {
	Stored       int64            `json:"stored"`
	StoredBytes  int64            `json:"storedBytes"`
	AlreadyThere int64            `json:"alreadyThere"`
	Updated      int64            `json:"updated"`
	Deleted      int64            `json:"deleted"`
	Empty        int64            `json:"empty"`
	Symlinks     int64            `json:"symlinks"`
	Large        int64            `json:"large"`
	Skipped      int64            `json:"skipped"`
	NotKept      map[string]int64 `json:"notKept"`
	Failed       map[string]int64 `json:"failed"`
}

func (p *process) importTree(t testing.TB, code int, args ...string) (importReport, outcome) {
	t.Helper()
	o := p.do(t, "", append([]string{"import", "-o", "json"}, args...)...).Want(t, code)
	var r importReport
	o.JSON(t, &r)
	return r, o
}

func TestUnusualTreeIsRestoredUnchanged(t *testing.T) {
	root := strangeTree(t)
	want := describeTree(t, root)
	must(t, unix.Mkfifo(filepath.Join(root, "pipe"), 0o600))
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	defer unix.Close(socket)
	// The name is short and relative because the path of a socket is limited in length.
	t.Chdir(root)
	must(t, unix.Bind(socket, &unix.SockaddrUnix{Name: "socket"}))

	for _, mode := range []struct {
		name  string
		dev   []string
		flags []string
	}{
		{"hash", nil, []string{"--id", "hash"}},
		{"sequence, resident", []string{"--residency", "resident"}, []string{"--id", "sequence"}},
		{"named by folder", []string{"--routing", "named"}, []string{"--id", "hash", "--group", "dir"}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			p := startDev(t, t.TempDir(), mode.dev...)
			r, _ := p.importTree(t, 0, append([]string{root}, mode.flags...)...)
			if r.Stored != int64(len(want)) || r.Skipped != 2 || r.Symlinks != 3 || r.Empty != 2 || r.Large != 2 {
				t.Errorf("import: %+v, the tree has %d files", r, len(want))
			}
			out := filepath.Join(t.TempDir(), "out")
			p.do(t, "", "export", out, "--keep-setuid").Want(t, 0)
			compareTrees(t, describeTree(t, out), want)
			if mode.dev == nil {
				compareTrees(t, untar(t, p.do(t, "", "scan", "--tar", "--tar-names", "path",
					"--keep-setuid").Want(t, 0).Stdout), want)
			}
		})
	}
}

func TestExportWritesNothingOutsideAndReplacesNothing(t *testing.T) {
	p := startDev(t, t.TempDir())
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	must(t, os.Mkdir(outside, 0o755))
	for i, path := range []string{"../outside/a", "/etc/sheaf-evil", "x/../../outside/b", "..", "."} {
		p.do(t, "evil", "put", fmt.Sprint(100+i), "--attr", "path="+path).Want(t, 0)
	}
	// The store has a symbolic link that points out of the folder, and a file whose path leads through that link.
	p.do(t, outside, "put", "200", "--attr", "path=way", "--attr", "type=symlink").Want(t, 0)
	p.do(t, "evil", "put", "201", "--attr", "path=way/c").Want(t, 0)
	p.do(t, "good", "put", "300", "--attr", "path=good").Want(t, 0)
	p.do(t, "no path", "put", "301").Want(t, 0)

	// No matter whether the export writes the link or the file first, it must not write outside the folder. It runs
	// twice because the order is not fixed.
	out := filepath.Join(base, "out")
	for range 2 {
		p.do(t, "", "export", out, "--force").Want(t, 1)
	}
	if names, err := os.ReadDir(outside); err != nil || len(names) != 0 {
		t.Errorf("outside: %v %v", names, err)
	}
	if _, err := os.Lstat("/etc/sheaf-evil"); err == nil {
		t.Error("an absolute path was written")
	}
	if data, err := os.ReadFile(filepath.Join(out, "good")); err != nil || string(data) != "good" {
		t.Errorf("good: %q %v", data, err)
	}
	if found, err := filepath.Glob(filepath.Join(out, "_records", "*", "301")); err != nil || len(found) != 1 {
		t.Errorf("a record without a path: %v %v", found, err)
	}

	must(t, os.WriteFile(filepath.Join(out, "good"), []byte("mine"), 0o644))
	p.do(t, "", "export", out).Want(t, 1).Has(t, "left as it is")
	if data, err := os.ReadFile(filepath.Join(out, "good")); err != nil || string(data) != "mine" {
		t.Errorf("a file was replaced without --force: %q %v", data, err)
	}
	p.do(t, "", "export", out, "--force").Want(t, 1)
	if data, err := os.ReadFile(filepath.Join(out, "good")); err != nil || string(data) != "good" {
		t.Errorf("--force did not replace: %q %v", data, err)
	}
}

func TestImportIDs(t *testing.T) {
	p := startDev(t, t.TempDir())
	root := t.TempDir()
	for name, data := range map[string]string{"7.json": "seven", "0x10.tar.gz": "sixteen", "-3.x": "minus three",
		"sub/8": "eight"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(root, name), []byte(data), 0o644))
	}
	r, _ := p.importTree(t, 0, root, "--id", "name")
	if r.Stored != 4 {
		t.Errorf("import: %+v", r)
	}
	for id, want := range map[string]string{"7": "seven", "16": "sixteen", "-3": "minus three", "8": "eight"} {
		if o := p.do(t, "", "get", id).Want(t, 0); o.Stdout != want {
			t.Errorf("get %s: %q", id, o.Stdout)
		}
	}

	// Files without an id, and two files with one id, are listed and counted. All other files are stored.
	must(t, os.WriteFile(filepath.Join(root, "readme"), []byte("no id"), 0o644))
	must(t, os.WriteFile(filepath.Join(root, "9.a"), []byte("nine a"), 0o644))
	must(t, os.WriteFile(filepath.Join(root, "9.b"), []byte("nine b"), 0o644))
	failures := filepath.Join(t.TempDir(), "failures")
	r, o := p.importTree(t, 1, root, "--id", "name", "--resume", "--failures", failures)
	if r.Stored != 1 || r.AlreadyThere != 4 || r.Failed["no id"] != 1 || r.Failed["collision"] != 1 {
		t.Errorf("import: %+v", r)
	}
	o.Has(t, "readme").Has(t, "collision: 9.")
	lines, err := os.ReadFile(failures)
	must(t, err)
	if n := bytes.Count(lines, []byte("\n")); n != 2 || !json.Valid(lines[:bytes.IndexByte(lines, '\n')]) {
		t.Errorf("--failures: %s", lines)
	}

	mapping := filepath.Join(t.TempDir(), "map")
	must(t, os.WriteFile(mapping, []byte("# a comment\n\n1000\t7.json\n0x3e9 sub/8\n"), 0o644))
	r, _ = p.importTree(t, 1, root, "--id", "map:"+mapping)
	if r.Stored != 2 || r.Failed["no id"] != 5 {
		t.Errorf("import by map: %+v", r)
	}
	if o := p.do(t, "", "get", "1001").Want(t, 0); o.Stdout != "eight" {
		t.Errorf("get 1001: %q", o.Stdout)
	}
	for _, bad := range []string{"1000", "x 7.json", "1 a\n2 a\n"} {
		must(t, os.WriteFile(mapping, []byte(bad), 0o644))
		p.do(t, "", "import", root, "--id", "map:"+mapping).Want(t, 2)
	}
	p.do(t, "", "import", root, "--id", "map:/no/such/file").Want(t, 2)
	p.do(t, "", "import", root, "--id", "nonsense").Want(t, 2)
	p.do(t, "", "import", root, "--group", "g").Want(t, 2)
	p.do(t, "", "import", root, "--prefix", "../x").Want(t, 2)
	p.do(t, "", "import", filepath.Join(root, "no-such")).Want(t, 1)
}

func TestImportDryRunStoresNothingAndFindsCollisions(t *testing.T) {
	p := startDev(t, t.TempDir())
	root := t.TempDir()
	for _, name := range []string{"1.a", "1.b", "2"} {
		must(t, os.WriteFile(filepath.Join(root, name), []byte(name), 0o644))
	}
	r, _ := p.importTree(t, 1, root, "--id", "name", "--dry-run")
	if r.Stored != 2 || r.Failed["collision"] != 1 {
		t.Errorf("dry run: %+v", r)
	}
	if o := p.do(t, "", "scan").Want(t, 0); o.Stdout != "" {
		t.Errorf("a dry run stored: %s", o.Stdout)
	}
}

func TestImportUnreadableFilesAreListed(t *testing.T) {
	root := t.TempDir()
	must(t, os.WriteFile(filepath.Join(root, "good"), []byte("good"), 0o644))
	must(t, os.WriteFile(filepath.Join(root, "bad"), []byte("bad"), 0o000))
	must(t, os.Mkdir(filepath.Join(root, "closed"), 0o000))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(root, "closed"), 0o700) })
	p := startDev(t, t.TempDir())
	args := []string{sheafBinary, "import", root, "-o", "json", "--server", p.server}
	o := runUnprivileged(t, root, args...)
	o.Want(t, 1).Has(t, "unreadable: bad").Has(t, "unreadable: closed")
	var r importReport
	o.JSON(t, &r)
	if r.Stored != 1 || r.Failed["unreadable"] != 2 {
		t.Errorf("import: %+v", r)
	}
}

func TestImportResumeAndUpdate(t *testing.T) {
	for _, scheme := range []string{"hash", "sequence"} {
		t.Run(scheme, func(t *testing.T) {
			p := startDev(t, t.TempDir())
			root := t.TempDir()
			write := func(name, data string) {
				must(t, os.WriteFile(filepath.Join(root, name), []byte(data), 0o644))
			}
			write("b", "b")
			write("c", "c")
			r, _ := p.importTree(t, 0, root, "--id", scheme)
			if r.Stored != 2 {
				t.Fatalf("import: %+v", r)
			}
			r, o := p.importTree(t, 1, root, "--id", scheme)
			if r.Failed["exists already"] != 2 {
				t.Errorf("a second import: %+v", r)
			}
			o.Has(t, "--resume")
			write("a", "a") // a new path that sorts first; the ids of the other files must not change
			r, _ = p.importTree(t, 0, root, "--id", scheme, "--resume")
			if r.Stored != 1 || r.AlreadyThere != 2 {
				t.Errorf("--resume: %+v", r)
			}
			write("b", "b has changed")
			r, _ = p.importTree(t, 1, root, "--id", scheme, "--resume")
			if r.Failed["changed since it was imported"] != 1 || r.AlreadyThere != 2 {
				t.Errorf("--resume over a change: %+v", r)
			}
			r, _ = p.importTree(t, 0, root, "--id", scheme, "--update")
			if r.Updated != 1 || r.AlreadyThere != 2 {
				t.Errorf("--update: %+v", r)
			}
			p.checkExport(t, root)
		})
	}
}

// If a file was deleted from the store since an earlier import, a new import stores it again, although its request id
// may be remembered.
func TestImportAfterADeleteStoresAgain(t *testing.T) {
	p := startDev(t, t.TempDir())
	root := t.TempDir()
	must(t, os.WriteFile(filepath.Join(root, "5"), []byte("five"), 0o644))
	for range 3 {
		p.importTree(t, 0, root, "--id", "name")
		p.do(t, "", "rm", "5").Want(t, 0)
	}
}

// runUnprivileged runs a command. If the test runs as root, the command runs as a user who may not read everything.
func runUnprivileged(t testing.TB, readable string, args ...string) outcome {
	t.Helper()
	if os.Geteuid() != 0 {
		return sheaf(t, nil, args[1:]...)
	}
	// The user needs access to the tree and to the binary.
	for dir := readable; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755))
	}
	must(t, os.Chmod(filepath.Dir(sheafBinary), 0o755))
	return clitest.Run(t, nil, &syscall.Credential{Uid: 65534, Gid: 65534}, args...)
}

// A large file in the tree must not be held in memory.
func TestImportMemoryIsBoundedWithALargeFile(t *testing.T) {
	soaktest.Only(t, "proc", "it reads gigabytes")
	size, most := int64(5<<30), int64(256<<20)
	root := t.TempDir()
	f, err := os.Create(filepath.Join(root, "large"))
	must(t, err)
	must(t, f.Truncate(size)) // the file is sparse, so almost nothing is written to the disk
	_, err = f.WriteAt([]byte("the end"), size-7)
	must(t, errors.Join(err, f.Close()))
	for i := range 200 {
		must(t, os.WriteFile(filepath.Join(root, fmt.Sprint(i)), pattern(uint64(i), 300_000), 0o644))
	}
	p := startDev(t, t.TempDir())
	cmd := exec.Command(sheafBinary, "import", root, "--id", "hash", "--server", p.server, "--quiet")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("import: %v: %s", err, out)
	}
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		t.Skip("the system does not say how much memory a process took")
	}
	if peak := usage.Maxrss << 10; peak > most {
		t.Errorf("importing a file of %d MiB took %d MiB of memory, at most %d are meant", size>>20, peak>>20, most>>20)
	} else {
		t.Logf("importing a file of %d MiB took %d MiB of memory", size>>20, peak>>20)
	}
	id := fmt.Sprint(hashID("large"))
	if o := p.do(t, "", "get", id, "--offset", fmt.Sprint(size-7)).Want(t, 0); o.Stdout != "the end" {
		t.Errorf("the end of the large record: %q", o.Stdout)
	}
}

// hashID returns the id that the docs define for --id hash.
func hashID(path string) int64 {
	sum := sha256.Sum256([]byte(path))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

func TestImportIntoFullStoreContinuesLater(t *testing.T) {
	dir, root := t.TempDir(), t.TempDir()
	for i := range 50 {
		must(t, os.WriteFile(filepath.Join(root, fmt.Sprint(i)), pattern(uint64(i), 10_000), 0o644))
	}
	p := startDev(t, dir)
	p.do(t, "x", "put", "1").Want(t, 0)
	p.stop(t)
	p = startDev(t, dir, "--reserve", "1000TiB") // a reserve larger than any disk, so that the store accepts no data
	p.do(t, "x", "put", "2").Want(t, 1).Has(t, "DISK_FULL")
	p.do(t, "", "import", root, "--id", "hash").Want(t, 1).Has(t, "no space")
	if o := p.do(t, "", "get", "1").Want(t, 0); o.Stdout != "x" {
		t.Errorf("reads must go on: %q", o.Stdout)
	}
	p.stop(t)
	p = startDev(t, dir)
	r, _ := p.importTree(t, 0, root, "--id", "hash", "--resume")
	if r.Stored != 50 {
		t.Errorf("--resume: %+v", r)
	}
}
