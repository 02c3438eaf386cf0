package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// exportReport is the output of export -o json.
type exportReport struct {
	Files      int64            `json:"files"`
	Privileged int64            `json:"privileged"`
	Failed     map[string]int64 `json:"failed"`
}

func (p *process) exportTree(t testing.TB, code int, args ...string) (exportReport, outcome) {
	t.Helper()
	o := p.do(t, "", append([]string{"export", "-o", "json"}, args...)...).Want(t, code)
	var r exportReport
	o.JSON(t, &r)
	return r, o
}

// An export restores no setuid, setgid or sticky bits unless the user asks for it, because the writers of the records
// must not get the rights of the user who exports.
func TestExportRestoresNoPrivilegesByDefault(t *testing.T) {
	p := startDev(t, t.TempDir(), "--shards", "1", "--groups", "1")
	for i, mode := range []string{"4755", "2755", "1777", "0640"} {
		p.do(t, "#!/bin/sh\n", "put", fmt.Sprint(i), "--attr", "path="+mode, "--attr", "mode="+mode).Want(t, 0)
	}
	modes := func(dir string) (got []os.FileMode) {
		for _, name := range []string{"4755", "2755", "1777", "0640"} {
			info, err := os.Lstat(filepath.Join(dir, name))
			must(t, err)
			got = append(got, info.Mode())
		}
		return got
	}
	plain, kept := filepath.Join(t.TempDir(), "plain"), filepath.Join(t.TempDir(), "kept")
	r, _ := p.exportTree(t, 0, plain)
	if got, want := fmt.Sprint(modes(plain)), "[-rwxr-xr-x -rwxr-xr-x -rwxrwxrwx -rw-r-----]"; got != want {
		t.Errorf("without --keep-setuid: %s, want %s", got, want)
	}
	if r.Privileged != 3 {
		t.Errorf("%d files are said to have lost such a bit, want 3: %+v", r.Privileged, r)
	}
	p.do(t, "", "export", plain, "--force").Want(t, 0).Has(t, "3 files").Has(t, "--keep-setuid")
	p.exportTree(t, 0, kept, "--keep-setuid")
	if got, want := fmt.Sprint(modes(kept)), "[urwxr-xr-x grwxr-xr-x trwxrwxrwx -rw-r-----]"; got != want {
		t.Errorf("with --keep-setuid: %s, want %s", got, want)
	}
}

// Between two imports, a folder of the tree was replaced by a symbolic link. The record with the old path still
// exists. An export must not follow the link and write that record into the link's target.
func TestExportNeverWritesThroughALink(t *testing.T) {
	p := startDev(t, t.TempDir(), "--shards", "1", "--groups", "1")
	p.do(t, "right", "put", "1", "--attr", "path=e/f").Want(t, 0)
	p.do(t, "e", "put", "2", "--attr", "path=d", "--attr", "type=symlink").Want(t, 0)
	p.do(t, "stale", "put", "3", "--attr", "path=d/f").Want(t, 0)
	for _, flags := range [][]string{{"--force"}, {}, {"--force", "--workers", "1"}} {
		out := filepath.Join(t.TempDir(), "out")
		r, o := p.exportTree(t, 1, append([]string{out}, flags...)...)
		if data, err := os.ReadFile(filepath.Join(out, "e/f")); err != nil || string(data) != "right" {
			t.Errorf("%v: e/f: %q %v", flags, data, err)
		}
		if r.Files != 2 || len(r.Failed) != 1 || r.Failed["path of both a file and a folder"] != 1 {
			t.Errorf("%v: %+v", flags, r)
		}
		o.Has(t, ": d")
	}
	// The same applies to symbolic links that were in the target folder before the export.
	out := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(out, "keep"), 0o755))
	must(t, os.WriteFile(filepath.Join(out, "keep/f"), []byte("precious"), 0o644))
	must(t, os.Symlink("keep", filepath.Join(out, "d")))
	must(t, os.Symlink("keep", filepath.Join(out, "e")))
	p.do(t, "", "rm", "2").Want(t, 0)
	r, o := p.exportTree(t, 1, out, "--force")
	if data, err := os.ReadFile(filepath.Join(out, "keep/f")); err != nil || string(data) != "precious" {
		t.Errorf("a file was written through a link: %q %v", data, err)
	}
	if r.Files != 0 || r.Failed["path leads through a symbolic link"] != 2 {
		t.Errorf("%+v", r)
	}
	o.Has(t, "d is a symbolic link")
	// If the path of a record is itself a symbolic link, the export replaces the link and does not write to its target.
	must(t, os.Remove(filepath.Join(out, "d")))
	must(t, os.Mkdir(filepath.Join(out, "d"), 0o755))
	must(t, os.Symlink("../keep/f", filepath.Join(out, "d/f")))
	p.do(t, "", "rm", "1").Want(t, 0)
	p.exportTree(t, 0, out, "--force")
	if data, err := os.ReadFile(filepath.Join(out, "d/f")); err != nil || string(data) != "stale" {
		t.Errorf("d/f: %q %v", data, err)
	}
	if data, err := os.ReadFile(filepath.Join(out, "keep/f")); err != nil || string(data) != "precious" {
		t.Errorf("a file was written through a link: %q %v", data, err)
	}
}

// A prefix without records is an error, because it is probably misspelled.
func TestExportOfMissingPrefixFails(t *testing.T) {
	p := startDev(t, t.TempDir(), "--shards", "1", "--groups", "1")
	p.do(t, "x", "put", "1", "--attr", "path=right/x").Want(t, 0)
	p.do(t, "", "export", filepath.Join(t.TempDir(), "out"), "--prefix", "wrong").Want(t, 3).Has(t, `"wrong"`)
}

// The system's tar unpacks an archive to the same tree that export writes, without warnings.
func TestAnArchiveIsTheTreeThatExportWrites(t *testing.T) {
	p := startDev(t, t.TempDir(), "--shards", "1", "--groups", "1")
	put := func(id, path, data string, attributes ...string) {
		args := []string{"put", id, "--attr", "path=" + path, "--attr", "mtime=1000000000.123456789"}
		for _, a := range attributes {
			args = append(args, "--attr", a)
		}
		p.do(t, data, args...).Want(t, 0)
	}
	put("1", "bin/x", "#!/bin/sh\n", "mode=4755", "a=b=c%", "k=\x01\xff")
	put("2", "link", "bin/x", "mode=0777", "type=symlink")
	put("3", "dangling", "/nowhere", "mode=0777", "type=symlink")
	put("4", "private", "p", "mode=0600")
	p.do(t, "far", "put", "5", "--attr", "path=far", "--attr", "mtime=17179869185.000000000").Want(t, 0)
	p.do(t, "no path", "put", "-6").Want(t, 0)
	for _, flags := range [][]string{nil, {"--keep-setuid"}} {
		out := filepath.Join(t.TempDir(), "out")
		p.do(t, "", append([]string{"export", out}, flags...)...).Want(t, 0)
		o := p.do(t, "", append([]string{"scan", "--tar", "--tar-names", "path"}, flags...)...).Want(t, 0)
		compareTrees(t, untar(t, o.Stdout), describeTree(t, out))
		if flags == nil {
			o.Has(t, "1 file").Has(t, "--keep-setuid")
		}
	}

	// GNU tar decodes every attribute, and WebDataset finds every sample.
	sample := regexp.MustCompile(`^((?:.*/|)[^.]+)[.]([^/]*)$`)
	archive := tar.NewReader(strings.NewReader(p.do(t, "", "scan", "--tar").Want(t, 0).Stdout))
	for n := 0; ; n++ {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			if n != 6 {
				t.Errorf("%d members, want 6", n)
			}
			break
		}
		must(t, err)
		if m := sample.FindStringSubmatch(h.Name); m == nil || m[2] != "bin" {
			t.Errorf("%s is no sample for WebDataset", h.Name)
		}
		const prefix = "SCHILY.xattr.user.sheaf."
		id := h.PAXRecords[prefix+"id"]
		if h.Name != h.PAXRecords[prefix+"group"]+"/"+id+".bin" || h.PAXRecords[prefix+"version"] == "" {
			t.Errorf("%s: %v", h.Name, h.PAXRecords)
		}
		if id == "1" && (h.PAXRecords[prefix+"attribute.a"] != "b=c%" || h.PAXRecords[prefix+"attribute.k"] != "\x01\xff" ||
			h.Mode != 0o755) {
			t.Errorf("%s: mode %o, %q", h.Name, h.Mode, h.PAXRecords)
		}
		if h.Typeflag != tar.TypeReg {
			t.Errorf("%s is no regular file", h.Name)
		}
	}
}

// No member of an archive is written through a link when the archive is unpacked.
func TestAnArchiveHoldsOneTree(t *testing.T) {
	p := startDev(t, t.TempDir(), "--shards", "1", "--groups", "1")
	p.do(t, "right", "put", "1", "--attr", "path=e/f").Want(t, 0)
	p.do(t, "e", "put", "2", "--attr", "path=d", "--attr", "type=symlink").Want(t, 0)
	p.do(t, "stale", "put", "3", "--attr", "path=d/f").Want(t, 0)
	p.do(t, "again", "put", "4", "--attr", "path=e/f").Want(t, 0)
	p.do(t, "evil", "put", "5", "--attr", "path=../f").Want(t, 0)
	p.do(t, "", "put", "6", "--attr", "path=empty", "--attr", "type=symlink").Want(t, 0)
	o := p.do(t, "", "scan", "--tar", "--tar-names", "path").Want(t, 1)
	for _, words := range []string{"path of both a file and a folder", "path exported twice", "path leads outside",
		": empty", "4 records were not written"} {
		o.Has(t, words)
	}
	if tree := untar(t, o.Stdout); len(tree) != 2 {
		t.Errorf("%d files, want e/f and d: %v", len(tree), tree)
	}
}

// untar unpacks an archive with the system's tar, which must not print warnings when it lists the archive. It returns
// the description of the tree.
func untar(t *testing.T, archive string) map[string]string {
	t.Helper()
	program, err := exec.LookPath("tar")
	if err != nil {
		t.Fatal("the test needs tar: ", err)
	}
	list := exec.Command(program, "-t")
	list.Stdin = strings.NewReader(archive)
	var words bytes.Buffer
	list.Stderr = &words
	if err := list.Run(); err != nil || words.Len() > 0 {
		t.Errorf("tar -t: %v %s", err, &words)
	}
	dir := t.TempDir()
	extract := exec.Command(program, "-xp", "-C", dir)
	extract.Stdin = strings.NewReader(archive)
	if said, err := extract.CombinedOutput(); err != nil {
		t.Errorf("tar -x: %v %s", err, said)
	}
	return describeTree(t, dir)
}
