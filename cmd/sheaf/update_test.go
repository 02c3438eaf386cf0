package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/local/cli"
)

// writeFile writes a file of a tree with a fixed time, so that files differ only by the changes of a test.
func writeFile(t testing.TB, root, name, data string) {
	t.Helper()
	full := filepath.Join(root, name)
	must(t, os.MkdirAll(filepath.Dir(full), 0o755))
	must(t, os.WriteFile(full, []byte(data), 0o644))
	at := time.Unix(1_600_000_000, 7)
	must(t, os.Chtimes(full, at, at))
}

func TestImportUpdateStoresChangedFiles(t *testing.T) {
	p := startDev(t, t.TempDir(), "--shards", "1", "--groups", "1")
	root := t.TempDir()
	large := strings.Repeat("x", 1<<20+1)
	for name, data := range map[string]string{"same": "same", "mode": "mode", "small": "small", "large": large} {
		writeFile(t, root, name, data)
	}
	r, _ := p.importTree(t, 0, root, "--dry-run")
	if r.Stored != 4 || r.AlreadyThere != 0 {
		t.Errorf("a dry run: %+v", r)
	}
	p.importTree(t, 0, root)

	// A different mode alone is a change.
	must(t, os.Chmod(filepath.Join(root, "mode"), 0o600))
	r, _ = p.importTree(t, 1, root, "--resume")
	if r.AlreadyThere != 3 || r.Failed["changed since it was imported"] != 1 {
		t.Errorf("--resume after chmod: %+v", r)
	}
	r, _ = p.importTree(t, 0, root, "--update", "--dry-run")
	if r.Stored != 1 || r.Updated != 1 || r.AlreadyThere != 3 {
		t.Errorf("a dry run after chmod: %+v", r)
	}
	r, _ = p.importTree(t, 1, root, "--dry-run")
	if r.Stored != 0 || r.Failed["exists already"] != 4 {
		t.Errorf("a dry run of a first import: %+v", r)
	}
	r, _ = p.importTree(t, 0, root, "--update")
	if r.Updated != 1 || r.AlreadyThere != 3 {
		t.Errorf("--update after chmod: %+v", r)
	}
	// Changing the mode back requires another put of the same file.
	must(t, os.Chmod(filepath.Join(root, "mode"), 0o644))
	must(t, os.Chmod(filepath.Join(root, "same"), 0o640))
	r, _ = p.importTree(t, 0, root, "--update", "--import-id", "mine")
	if r.Updated != 2 || r.AlreadyThere != 2 {
		t.Errorf("--update after chmod back: %+v", r)
	}

	// If the bytes of a file change but its size and time do not, only --checksum finds the change.
	writeFile(t, root, "small", "SMALL")
	writeFile(t, root, "large", large[1:]+"y")
	r, _ = p.importTree(t, 0, root, "--update")
	if r.Stored != 0 || r.AlreadyThere != 4 {
		t.Errorf("--update after a change of bytes: %+v", r)
	}
	r, _ = p.importTree(t, 0, root, "--update", "--checksum", "--dry-run")
	if r.Stored != 2 || r.Updated != 2 || r.Large != 1 || r.AlreadyThere != 2 {
		t.Errorf("a dry run with --checksum: %+v", r)
	}
	r, _ = p.importTree(t, 0, root, "--update", "--checksum")
	if r.Stored != 2 || r.Updated != 2 || r.AlreadyThere != 2 {
		t.Errorf("--checksum: %+v", r)
	}
	p.checkExport(t, root)
	p.do(t, "", "import", root, "--checksum").Want(t, 2)
	p.do(t, "", "import", root, "--delete").Want(t, 2)
}

func TestImportDeleteMatchesTheTree(t *testing.T) {
	p := startDev(t, t.TempDir(), "--shards", "1", "--groups", "1")
	root, other := t.TempDir(), t.TempDir()
	for _, name := range []string{"stays", "goes", "becomes/folder", "d/f", "e/f", "9.a"} {
		writeFile(t, root, name, name)
	}
	writeFile(t, other, "other", "other")
	p.importTree(t, 0, root, "--prefix", "p")
	p.importTree(t, 0, other, "--prefix", "pp")
	p.do(t, "no path", "put", "1").Want(t, 0)
	p.do(t, "outside", "put", "2", "--attr", "path=p/../../x").Want(t, 0)

	// One file is deleted, one folder becomes a symbolic link, and another folder becomes a file.
	must(t, os.Remove(filepath.Join(root, "goes")))
	must(t, os.RemoveAll(filepath.Join(root, "d")))
	must(t, os.Symlink("e", filepath.Join(root, "d")))
	must(t, os.RemoveAll(filepath.Join(root, "becomes")))
	writeFile(t, root, "becomes", "a file")
	r, _ := p.importTree(t, 0, root, "--prefix", "p", "--update", "--delete", "--dry-run")
	if r.Stored != 2 || r.Deleted != 3 || r.AlreadyThere != 3 {
		t.Errorf("a dry run: %+v", r)
	}
	r, _ = p.importTree(t, 0, root, "--prefix", "p", "--update", "--delete")
	if r.Stored != 2 || r.Deleted != 3 || r.AlreadyThere != 3 {
		t.Errorf("--delete: %+v", r)
	}
	out := filepath.Join(t.TempDir(), "out")
	// Record 2 is still stored, and its path leads outside the target folder, so the export fails.
	p.do(t, "", "export", out, "--prefix", "p").Want(t, 1).Has(t, "path leads outside")
	compareTrees(t, describeTree(t, out), describeTree(t, root))
	for _, id := range []string{"1", "2"} {
		p.do(t, "", "get", id).Want(t, 0)
	}
	p.do(t, "", "export", filepath.Join(t.TempDir(), "out"), "--prefix", "pp").Want(t, 0)

	// A file that was deleted and then returns unchanged is stored again.
	writeFile(t, root, "goes", "goes")
	r, _ = p.importTree(t, 0, root, "--prefix", "p", "--update", "--delete")
	if r.Stored != 1 || r.Deleted != 0 {
		t.Errorf("a file that came back: %+v", r)
	}
	// If the tree is not mounted, nothing is deleted.
	r, o := p.importTree(t, 1, t.TempDir(), "--prefix", "p", "--update", "--delete")
	if r.Deleted != 0 || r.Failed["not deleted"] != 1 {
		t.Errorf("an empty tree: %+v", r)
	}
	o.Has(t, "is it mounted?")
}

// A file that takes the id of a deleted file replaces its record.
func TestImportDeleteGivesAnIDToAFileThatIsRenamed(t *testing.T) {
	p := startDev(t, t.TempDir(), "--shards", "1", "--groups", "1")
	root := t.TempDir()
	writeFile(t, root, "9.a", "nine")
	p.importTree(t, 0, root, "--id", "name")
	must(t, os.Rename(filepath.Join(root, "9.a"), filepath.Join(root, "9.b")))
	r, _ := p.importTree(t, 1, root, "--id", "name", "--update")
	if r.Failed["collision"] != 1 {
		t.Errorf("without --delete: %+v", r)
	}
	r, _ = p.importTree(t, 0, root, "--id", "name", "--update", "--delete")
	if r.Stored != 1 || r.Updated != 1 || r.Deleted != 0 {
		t.Errorf("with --delete: %+v", r)
	}
	p.checkExport(t, root)
}

// With Named routing, the group of an import may not have been created yet. The flag --group limits which files are
// deleted.
func TestImportDeleteInNamedRouting(t *testing.T) {
	p := startDev(t, t.TempDir(), "--shards", "1", "--routing", "named")
	root := t.TempDir()
	writeFile(t, root, "one/a", "a")
	writeFile(t, root, "two/b", "b")
	for _, group := range []string{"dir", "g"} {
		args := []string{root, "--prefix", group, "--group", group, "--update", "--delete"}
		for range 2 { // a dry run changes nothing
			if r, _ := p.importTree(t, 0, append(args, "--dry-run")...); r.Stored != 2 || r.Deleted != 0 {
				t.Errorf("a dry run with --group %s: %+v", group, r)
			}
		}
		if r, _ := p.importTree(t, 0, args...); r.Stored != 2 || r.Deleted != 0 {
			t.Errorf("--group %s: %+v", group, r)
		}
	}
	must(t, os.Remove(filepath.Join(root, "two/b")))
	if r, _ := p.importTree(t, 0, root, "--group", "g", "--update", "--delete"); r.Stored != 1 || r.Deleted != 2 {
		t.Errorf("without --prefix: %+v", r)
	}
	r, _ := p.importTree(t, 0, root, "--group", "dir", "--prefix", "dir", "--update", "--delete")
	if r.AlreadyThere != 1 || r.Deleted != 1 {
		t.Errorf("--group dir: %+v", r)
	}
}

// The files in a folder that cannot be read do not count as deleted, because the import cannot see them.
func TestImportDeletesNothingWhereAFolderCannotBeRead(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"closed/f", "goes", "stays"} {
		writeFile(t, root, name, name)
	}
	p := startDev(t, t.TempDir(), "--shards", "1", "--groups", "1")
	p.importTree(t, 0, root)
	must(t, os.Remove(filepath.Join(root, "goes")))
	must(t, os.Chmod(filepath.Join(root, "closed"), 0o000))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(root, "closed"), 0o700) })
	o := runUnprivileged(t, root, sheafBinary, "import", root, "-o", "json", "--update", "--delete", "--server", p.server)
	var r importReport
	o.Want(t, 1).Has(t, "nothing was deleted").JSON(t, &r)
	if r.Deleted != 0 || r.Failed["not deleted"] != 1 {
		t.Errorf("--delete: %+v", r)
	}
}

// Files with a reported size of 0 may have content.
func TestImportReadsFilesOfReportedSizeZero(t *testing.T) {
	const tree = "/proc/sys/net/ipv4/conf/lo"
	if _, err := os.Stat(tree); err != nil {
		t.Skipf("no such files here: %v", err)
	}
	p := startDev(t, t.TempDir(), "--shards", "1", "--groups", "1")
	r, _ := p.importTree(t, 0, tree)
	out, want := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "want")
	p.do(t, "", "export", out).Want(t, 0)
	if said, err := exec.Command("cp", "-r", tree, want).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v %s", err, said)
	}
	if said, err := exec.Command("diff", "-r", want, out).CombinedOutput(); err != nil || r.Empty == r.Stored {
		t.Errorf("%+v: %s", r, said)
	}
}

func TestImportCountsWhatItDoesNotKeep(t *testing.T) {
	p := startDev(t, t.TempDir(), "--shards", "1", "--groups", "1")
	root := t.TempDir()
	for _, name := range []string{"plain", "sub/one", "attributes", "owner"} {
		writeFile(t, root, name, "x")
	}
	must(t, os.MkdirAll(filepath.Join(root, "empty/empty"), 0o755))
	must(t, os.Link(filepath.Join(root, "sub/one"), filepath.Join(root, "two")))
	must(t, os.Truncate(filepath.Join(root, "plain"), 1<<20))
	want := map[string]int64{"emptyFolders": 1, "hardLinks": 2, "holes": 1}
	words := []string{"1 empty folder,", "2 hard links", "1 file's holes"}
	if unix.Setxattr(filepath.Join(root, "attributes"), "user.x", []byte("x"), 0) == nil {
		want["attributes"], words = 1, append(words, "1 file's extended attributes")
	}
	if os.Chown(filepath.Join(root, "owner"), 12345, -1) == nil {
		want["owners"], words = 1, append(words, "1 file's owner")
	}
	r, _ := p.importTree(t, 0, root, "--dry-run")
	again, _ := p.importTree(t, 0, root)
	for kind := range r.NotKept {
		if r.NotKept[kind] != want[kind] || again.NotKept[kind] != want[kind] {
			t.Errorf("%s: %d in a dry run and %d, want %d", kind, r.NotKept[kind], again.NotKept[kind], want[kind])
		}
	}
	o := p.do(t, "", "import", root, "--prefix", "again").Want(t, 0)
	for _, word := range words {
		if !strings.Contains(o.Stdout, word) {
			t.Errorf("%q does not say %q", o.Stdout, word)
		}
	}
}

func TestInterruptedImportSaysHowToContinue(t *testing.T) {
	var said bytes.Buffer
	err := reportImport(&cli.Output{Out: &said, Err: &said}, cli.ImportReport{Seconds: 1},
		fmt.Errorf("interrupt signal received: %w", context.Canceled))
	if err == nil || !strings.Contains(err.Error(), "--resume") {
		t.Errorf("an import that ended with Ctrl-C: %v", err)
	}
}
