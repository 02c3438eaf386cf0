package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/test/clitest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func TestAttributesUpToTheirLimit(t *testing.T) {
	t.Parallel()
	p := startDev(t, t.TempDir(), "--shards", "1", "--groups", "1")
	// The attributes may take 64 KiB. Of these, the two length fields take 2 and 4 bytes, and the key takes 1.
	most := strings.Repeat("v", 64<<10-2-4-1)
	p.do(t, "data", "put", "-9223372036854775808", "--attr", "k="+most).Want(t, 0)
	p.do(t, "", "put", "9223372036854775807", "--attr", "k="+most).Want(t, 0) // a record with empty data
	p.do(t, "data", "put", "1", "--attr", "k="+most+"v").Want(t, 2).Has(t, "attributes")
	p.do(t, "data", "put", "1", "--attr", strings.Repeat("k", 256)+"=v").Want(t, 2).Has(t, "attributes")
	p.do(t, "", "get", "1").Want(t, 3) // the refused puts have stored nothing
	p.kill()
	p = startDev(t, filepath.Clean(p.dir()))
	for id, data := range map[string]string{"-9223372036854775808": "data", "9223372036854775807": ""} {
		if o := p.do(t, "", "get", id).Want(t, 0); o.Stdout != data {
			t.Errorf("get %s: %q", id, o.Stdout)
		}
		var got struct {
			Attributes map[string]string
		}
		o := p.do(t, "", "get", id, "--metadata", "-o", "json").Want(t, 0)
		if err := json.Unmarshal([]byte(o.Stdout), &got); err != nil || len(got.Attributes["k"]) < len(most) {
			t.Errorf("record %s: %v, attribute of %d bytes", id, err, len(got.Attributes["k"]))
		}
	}
	p.do(t, "", "get", "-9223372036854775808", "--offset", "9223372036854775807", "--length", "9223372036854775807").
		Want(t, 1)
}

// dir returns the value of the flag --dir with which the process was started.
func (p *process) dir() string {
	for i, arg := range p.cmd.Args {
		if arg == "--dir" {
			return p.cmd.Args[i+1]
		}
	}
	return ""
}

// TestAFullRealDisk imports more data than a real file system can hold. Stored records can be read, and files that were
// not stored are named. After space becomes free, the import continues without a restart.
func TestAFullRealDisk(t *testing.T) {
	t.Parallel()
	point := vfstest.LoopMount(t, "ext4", "", 512<<20, "-F", "-m", "0")
	root := t.TempDir()
	const files, fileBytes = 300, 100_000
	for i := range files {
		must(t, os.WriteFile(filepath.Join(root, fmt.Sprint(i)), pattern(uint64(i), fileBytes), 0o644))
	}
	dir := filepath.Join(point, "store")
	p := startDev(t, dir, "--shards", "1", "--groups", "2", "--reserve", "16MiB", "--segment-bytes", "2MiB",
		"--compaction-off")
	defer p.kill() // the process must end before the disk is unmounted
	// A large file is created, so that only about a third of the imported files fit on the disk above the reserve.
	var space syscall.Statfs_t
	must(t, syscall.Statfs(point, &space))
	ballast := filepath.Join(point, "ballast")
	f, err := os.Create(ballast)
	must(t, err)
	must(t, syscall.Fallocate(int(f.Fd()), 0, 0, int64(space.Bavail)*space.Bsize-(16<<20)-files*fileBytes/3))
	must(t, f.Close())

	r, o := p.importTree(t, 1, root, "--id", "name")
	if r.Stored == 0 || r.Stored >= files || !strings.Contains(o.Stderr, "no space") {
		t.Fatalf("import into a disk that fills up: %+v: %s", r, clitest.Shortened(o.Stderr))
	}
	p.do(t, strings.Repeat("x", files*fileBytes), "put", "-1").Want(t, 1).Has(t, "DISK_FULL")
	p.do(t, "", "get", "-1").Want(t, 3)
	if stored := p.checkExported(t, files, fileBytes); int64(stored) < r.Stored {
		t.Errorf("%d records are there, %d were stored", stored, r.Stored)
	}
	p.do(t, "", "rm", "-2", "--ignore-not-found").Want(t, 0) // deletes still succeed on the full disk
	must(t, os.Remove(ballast))
	eventually(t, func() bool { return p.do(t, "room", "put", "-1").Code == 0 })
	if r, _ := p.importTree(t, 0, root, "--id", "name", "--resume"); r.Stored+r.AlreadyThere != files {
		t.Errorf("--resume with room: %+v", r)
	}
	p.kill()
	p = startDev(t, dir)
	defer p.kill()
	if stored := p.checkExported(t, files, fileBytes); stored != files {
		t.Errorf("after a restart, %d records are there", stored)
	}
}

// checkExported counts the files that an export writes, and compares each of them with the imported file.
func (p *process) checkExported(t *testing.T, files, fileBytes int) (count int) {
	t.Helper()
	dir := t.TempDir()
	p.do(t, "", "export", dir).Want(t, 0)
	for i := range files {
		data, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i)))
		if err == nil && !bytes.Equal(data, pattern(uint64(i), fileBytes)) {
			t.Fatalf("record %d is wrong", i)
		}
		if err == nil {
			count++
		} else if !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	return count
}
