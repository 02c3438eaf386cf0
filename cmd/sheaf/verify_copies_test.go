package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A group has three copies, and in each of them a different record has a corrupt byte. All three records are found and
// repaired from the other copies, no matter which copy leads.
func TestGroupVerifyReadsAllCopies(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startDev(t, dir, "--copies", "3", "--groups", "1")
	p.putEach(t, "0 1 2 3", 5000)
	p.do(t, "", "group", "verify", "0").Want(t, 0)
	for n := range 3 {
		hit := false
		// A copy may still be joining, or may not have received the record yet.
		for deadline := time.Now().Add(time.Minute); !hit; time.Sleep(10 * time.Millisecond) {
			segments, err := filepath.Glob(filepath.Join(dir, "shards", fmt.Sprintf("shard-%d", n), "groups", "*", "segment-*"))
			must(t, err)
			for _, name := range segments {
				data, err := os.ReadFile(name)
				must(t, err)
				if at := strings.Index(string(data), strings.Repeat(fmt.Sprint(n), 5000)); at >= 0 {
					f, err := os.OpenFile(name, os.O_RDWR, 0)
					must(t, err)
					_, err = f.WriteAt([]byte("X"), int64(at+10))
					must(t, err)
					must(t, f.Close())
					hit = true
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("record %d is in none of %v", n, segments)
			}
		}
	}
	o := p.do(t, "", "group", "verify", "0").Want(t, 1)
	for n := range 3 {
		if words := fmt.Sprintf("group 0 on shard shard-%d, segment-", n); !strings.Contains(o.Stdout, words) {
			t.Errorf("%q is not in %s", words, o.Stdout)
		}
	}
	for deadline := time.Now().Add(time.Minute); o.Code != 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the copies are not mended: %s%s\n%s", o.Stdout, o.Stderr, p.stderr.String())
		}
		o = p.do(t, "", "group", "verify", "0")
	}
	p.checkEach(t, "0 1 2 3", 5000)
}
