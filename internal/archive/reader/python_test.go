package reader_test

// The Python example reads files from the disk, so these tests write their archives to the disk.

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/prune"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

const script = "../../../examples/archive/read_archive.py"

// python runs the example, and returns its output.
func python(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	program := cmp.Or(os.Getenv("SHEAF_PYTHON"), "python3")
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("python3 is needed, or the path of a Python in SHEAF_PYTHON: %v", err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, append([]string{script}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return stdout.String(), err
}

// onDisk writes the archive of archivetest.Sample to a folder.
func onDisk(t *testing.T, key object.Key, blobBytes int) (folder string, b bucket.Bucket, w *archivetest.Writer) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "bucket")
	b, err := bucket.OpenFolder(vfs.OS{}, root)
	if err != nil {
		t.Fatal(err)
	}
	w = archivetest.Sample(t, b, key, blobBytes)
	return filepath.Join(root, w.Store.String()), b, w
}

// listing returns the expected output of the example as of a time, according to the Go reader and the model. If the
// time is zero, the listing is as of the end.
func listing(t *testing.T, a *reader.Archive, w *archivetest.Writer, at time.Time) string {
	t.Helper()
	var out strings.Builder
	groups := slices.SortedFunc(slices.Values(w.Groups), func(a, b *archivetest.Group) int {
		return strings.Compare(a.UUID.String(), b.UUID.String())
	})
	for _, model := range groups {
		g := group(t, a, model)
		index := g.Through
		var err error
		if !at.IsZero() {
			index, err = g.At(t.Context(), at)
		}
		if errors.Is(err, reader.ErrRefused) {
			fmt.Fprintf(&out, "%s refused\n", g.Name)
			continue
		}
		if err == nil {
			err = checkState(t.Context(), g, model, index)
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s through index %d\n", g.Name, g.Through)
		records := slices.SortedFunc(maps.Values(model.State(index)), func(a, b archivetest.Record) int {
			return cmp.Compare(a.Entry.Index, b.Entry.Index)
		})
		for _, r := range records {
			fmt.Fprintf(&out, "%s %d %d %d %d %x\n", g.Name, r.Entry.ID, r.Entry.Index, r.Entry.CommitTime, len(r.Data),
				sha256.Sum256(r.Data))
		}
	}
	return out.String()
}

// A program written from docs/archive.md alone reads the same data as the Go reader. The data of the Go reader agrees
// with the model.
func TestExampleReadsSameDataAsReader(t *testing.T) {
	for _, blobBytes := range []int{50, object.ChunkBytes + 99} {
		exampleReads(t, object.Key{}, blobBytes)
	}
}

// The same with an encrypted archive, if the package cryptography is there.
func TestExampleReadsEncryptedArchive(t *testing.T) {
	program := cmp.Or(os.Getenv("SHEAF_PYTHON"), "python3")
	if err := exec.CommandContext(t.Context(), program, "-c", "import cryptography").Run(); err != nil {
		t.Skipf("the package cryptography for Python is needed: %v", err)
	}
	exampleReads(t, archivetest.SampleKey(t), 50)
}

// exampleReads compares what the example prints with what the reader reads.
func exampleReads(t *testing.T, key object.Key, blobBytes int) {
	t.Helper()
	folder, b, w := onDisk(t, key, blobBytes)
	keys := t.TempDir()
	secret := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, object.KeyBytes)) + "\n" // archivetest.SampleKey
	for name, content := range map[string]string{"k1": secret, "current": "k1\n"} {
		if err := os.WriteFile(filepath.Join(keys, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, err := reader.Open(t.Context(), b, w.Store, object.Keys{key})
	if err != nil {
		t.Fatal(err)
	}
	times := []time.Time{{}}
	if blobBytes == 50 {
		begin := archivetest.Begin
		for _, second := range []int{4, 13, 19, 24, 99} {
			times = append(times, begin.Add(time.Duration(second)*time.Second))
		}
	}
	for _, at := range times {
		args := []string{folder, "", keys}
		if !at.IsZero() {
			args[1] = strconv.FormatInt(at.UnixNano(), 10)
		}
		got, err := python(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitAfter(got, "\n")
		for i, line := range lines {
			if before, _, found := strings.Cut(line, " refused: "); found {
				lines[i] = before + " refused\n"
			}
		}
		if want := listing(t, a, w, at); strings.Join(lines, "") != want {
			t.Errorf("as of %s the example prints\n%s, not\n%s", at, got, want)
		}
	}
}

// The example also reads a pruned archive.
func TestExampleReadsPrunedArchive(t *testing.T) {
	folder, b, w := onDisk(t, object.Key{}, 50)
	w.Log(w.Groups[:2]...)
	w.Roll(w.Groups[0])
	store := prune.Store{Bucket: b, UUID: w.Store}
	report, err := store.Run(t.Context(), prune.Options{Window: time.Nanosecond, Now: w.Now})
	if err != nil || report.Groups != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	a, err := reader.Open(t.Context(), b, w.Store, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := python(t, folder)
	if want := listing(t, a, w, time.Time{}); got != want || err != nil {
		t.Errorf("the example prints\n%s, not\n%s: %v", got, want, err)
	}
	at := archivetest.Begin.Add(8 * time.Second)
	got, err = python(t, folder, strconv.FormatInt(at.UnixNano(), 10))
	if err != nil || !strings.Contains(got, "alpha refused: below the history floor") {
		t.Errorf("before the base: %s, %v", got, err)
	}
}

// The example refuses objects that are damaged, missing, exchanged or encrypted, and names the object.
func TestExampleRefusesDamagedObjects(t *testing.T) {
	folder, _, w := onDisk(t, object.Key{}, 50)
	beta := w.Groups[1].UUID
	blobs, err := filepath.Glob(filepath.Join(folder, "g", beta.String(), "blob", "*"))
	if err != nil || len(blobs) != 1 {
		t.Fatalf("blobs %v, error %v", blobs, err)
	}
	blob := strings.TrimPrefix(blobs[0], folder+"/")
	for _, c := range []struct {
		what, name string
		change     func(b []byte) []byte
	}{
		{"a flipped byte", object.LogName(2), func(b []byte) []byte { b[len(b)-9] ^= 1; return b }},
		{"a cut object", blob, func(b []byte) []byte { return b[:len(b)-1] }},
		{"a missing blob", blob, func([]byte) []byte { return nil }},
		{"an object of another store", object.LogName(3), func(b []byte) []byte {
			other := archivetest.New(t, archivetest.NewMemory(), uuid.New(), object.Key{})
			return other.Encode(&object.Log{Pieces: []object.Piece{}}, nil)
		}},
		{"another log object", object.LogName(4), func([]byte) []byte {
			return w.Encode(&object.Log{Pieces: []object.Piece{}}, nil)
		}},
	} {
		path := filepath.Join(folder, c.name)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if changed := c.change(bytes.Clone(whole)); changed == nil {
			err = os.Remove(path)
		} else {
			err = os.WriteFile(path, changed, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := python(t, folder); err == nil || !strings.Contains(err.Error(), "object "+c.name) {
			t.Errorf("%s, %s: error %v", c.what, c.name, err)
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	encrypted, _, _ := onDisk(t, archivetest.SampleKey(t), 50)
	if _, err := python(t, encrypted); err == nil || !strings.Contains(err.Error(), "it is encrypted") {
		t.Errorf("an encrypted archive: error %v", err)
	}
}

func TestExampleIsShort(t *testing.T) {
	b, err := os.ReadFile(script)
	if lines := bytes.Count(b, []byte("\n")); err != nil || lines > 150 {
		t.Errorf("%d lines, at most 150 are promised: error %v", lines, err)
	}
}
