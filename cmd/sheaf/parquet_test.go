package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/local/parquetfile"
)

// parquetOf writes a Parquet file with records of one group.
func parquetOf(t testing.TB, name string, data map[int64][]byte) {
	t.Helper()
	f, err := os.Create(name)
	must(t, err)
	w := parquetfile.NewWriter(f)
	for id := range int64(len(data)) {
		must(t, w.Write(&parquetfile.Record{Group: "a", ID: id, Data: data[id]}))
	}
	must(t, w.Close())
	must(t, f.Close())
}

// parquetRows reads the ids and data of all files of an export.
func parquetRows(t testing.TB, dir string) map[int64][]byte {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.parquet"))
	must(t, err)
	rows := map[int64][]byte{}
	for _, name := range names {
		content, err := os.ReadFile(name)
		must(t, err)
		p, err := parquetfile.Open(bytes.NewReader(content), int64(len(content)))
		must(t, err)
		must(t, p.Read(parquetfile.Selection{ID: "id", Data: "data"}, func(r parquetfile.Row) error {
			if _, twice := rows[r.ID]; twice || r.Bad != nil {
				t.Errorf("%s row %d: id %d is there twice, or %v", name, r.Number, r.ID, r.Bad)
			}
			rows[r.ID] = bytes.Clone(r.Data)
			return nil
		}))
	}
	return rows
}

func sameRows(t testing.TB, got, want map[int64][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d rows, want %d", len(got), len(want))
	}
	for id, data := range want {
		if !bytes.Equal(got[id], data) {
			t.Fatalf("record %d has other data", id)
		}
	}
}

// Rows of a Parquet file become records of a real store. An export of them is killed with SIGKILL again and again,
// while the records change. In the end it has exactly the records that there were when it began.
func TestParquetExportIsKilled(t *testing.T) {
	t.Parallel()
	p := startDev(t, t.TempDir(), "--shards", "1", "--groups", "8")
	dir := t.TempDir()
	random, want := rand.NewChaCha8([32]byte{}), map[int64][]byte{}
	for id := range int64(400) {
		want[id] = make([]byte, 20<<10)
		_, _ = random.Read(want[id]) // never fails
	}
	in, out := filepath.Join(dir, "in.parquet"), filepath.Join(dir, "out")
	parquetOf(t, in, want)
	load := []string{"import", "--format", "parquet", in, "--id", "id", "--data", "data"}
	prints(t, p.do(t, "", load...).Want(t, 0), "stored 400 records of 400 rows")
	p.do(t, "", load...).Want(t, 1).Has(t, "in.parquet row ").Has(t, "--resume").Has(t, "400 rows exists already")
	prints(t, p.do(t, "", append(load, "--resume")...).Want(t, 0), "400 were there already")

	var view string
	killed := 0
	for i := range 4 {
		cmd := exec.Command(sheafBinary, "export", "--server", p.server, "--format", "parquet", "--workers", "1", out)
		must(t, cmd.Start())
		awaitFile(t, cmd, filepath.Join(out, fmt.Sprintf("part-%05d.parquet", i)))
		_ = cmd.Process.Kill()
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() < 0 {
			killed++
		} else if err != nil {
			t.Errorf("an export that was not killed has failed: %v", err)
		}
		p.do(t, "changed", "put", fmt.Sprint(i)).Want(t, 0)
		if m := manifestOf(t, out); view == "" {
			view = m.View
		} else if m.View != view {
			t.Fatalf("after a kill, the manifest names view %s instead of %s", m.View, view)
		}
	}
	t.Logf("%d of 4 exports were killed before they had ended", killed) // the others were quicker than this process
	prints(t, p.do(t, "", "export", "--format", "parquet", out).Want(t, 0), "wrote 8 files", "of 400 records")
	if m := manifestOf(t, out); m.View != view || !m.Complete || m.Records != 400 {
		t.Errorf("%+v, want view %s", m, view)
	}
	sameRows(t, parquetRows(t, out), want)
	if left, err := os.ReadDir(out); err != nil || len(left) != 9 {
		t.Errorf("the folder has %v (%v), want 8 files and the manifest", left, err)
	}
}

// prints checks what a command has printed on stdout.
func prints(t testing.TB, o outcome, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(o.Stdout, w) {
			t.Errorf("stdout does not say %q: %s", w, o.Stdout)
		}
	}
}

// awaitFile waits until a file is there or the process has ended.
func awaitFile(t testing.TB, cmd *exec.Cmd, file string) {
	t.Helper()
	for {
		if _, err := os.Stat(file); err == nil {
			return
		}
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid)); err != nil ||
			strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// exportManifest is the part of a manifest that tests read.
type exportManifest struct {
	View     string
	Complete bool
	Records  int64
}

func manifestOf(t testing.TB, dir string) (m exportManifest) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	must(t, err)
	must(t, json.Unmarshal(content, &m))
	return m
}

// Flags of the other format are refused, and so is what is no Parquet file.
func TestParquetUsage(t *testing.T) {
	p := startDev(t, t.TempDir(), "--shards", "1", "--groups", "1")
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	must(t, os.WriteFile(text, []byte("some text, and no Parquet file"), 0o644))
	for _, one := range []struct {
		says string
		args []string
	}{
		{"--force does not go with --format parquet", []string{"export", "--format", "parquet", dir, "--force"}},
		{"--view-expires does not go with --format files", []string{"export", dir, "--view-expires", "1h"}},
		{"must be files or parquet", []string{"export", dir, "--format", "csv"}},
		{"--update does not go with", []string{"import", "--format", "parquet", text, "--update"}},
		{"needs --id COLUMN", []string{"import", "--format", "parquet", text, "--data", "data"}},
		{"no Parquet file", []string{"import", "--format", "parquet", text, "--id", "id", "--data", "data"}},
		{"--split-bytes", []string{"export", "--format", "parquet", filepath.Join(dir, "out"), "--split-bytes", "1"}},
	} {
		p.do(t, "", one.args...).Want(t, 2).Has(t, one.says)
	}
	p.do(t, "", "export", "--format", "parquet", dir).Want(t, 1).Has(t, "is not empty").Has(t, "text")
}
