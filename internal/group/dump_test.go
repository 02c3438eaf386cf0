package group

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/vfs/vfstest"
)

func dumped(t *testing.T, g *testGroup, name string) []string {
	t.Helper()
	var b bytes.Buffer
	must(t, Dump(&b, g.fs, path.Join(g.dir, name)))
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

func TestDumpHasALineForEveryFrame(t *testing.T) {
	g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
	for number := uint64(1); number <= 3; number++ {
		name := SegmentName(number)
		lines := dumped(t, g, name)
		extra := 1
		if name == g.active() {
			extra = 2 // room
		}
		if len(lines) != len(g.frames[name])+extra {
			t.Fatalf("%d lines for %d frames", len(lines), len(g.frames[name]))
		}
		for i, f := range g.frames[name] {
			want := fmt.Sprintf("offset %d: %d bytes: %s", f.offset, f.bytes, f.entry.Kind)
			if !strings.HasPrefix(lines[i+1], want) || f.entry.Kind.isVersion() && !strings.Contains(lines[i+1], fmt.Sprintf(" id %d index %d ", f.entry.ID, f.entry.Index)) {
				t.Errorf("%q, want %q", lines[i+1], want)
			}
		}
	}
}

func TestDumpNamesBadPlaces(t *testing.T) {
	g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
	f := g.frames[SegmentName(2)][4]
	for at, want := range map[int64]string{
		0:             "offset 0: BAD 128 bytes: segment header",
		100:           "offset 0: BAD 128 bytes: segment header",
		f.offset:      fmt.Sprintf("offset %d: BAD %d bytes: no frame", f.offset, f.bytes),
		f.offset + 80: fmt.Sprintf("offset %d: BAD %d bytes: entry content is bad: put id %d index %d", f.offset, f.bytes, f.entry.ID, f.entry.Index),
	} {
		undo := g.change(t, SegmentName(2), at, func(b []byte) { b[0] ^= 0x80 }, 1)
		text := strings.Join(dumped(t, g, SegmentName(2)), "\n")
		if !strings.Contains(text, want) || strings.Count(text, "BAD") != 1 || !strings.Contains(text, "index 62 ") {
			t.Errorf("byte %d: no %q in\n%s", at, want, text)
		}
		undo()
	}
	undo := g.change(t, ManifestName, 4096, func(b []byte) { b[0]++ }, 1)
	if lines := dumped(t, g, ManifestName); !strings.HasPrefix(lines[0], "copy 1: BAD") || len(lines) != 1+1+1+1+1+3 {
		t.Errorf("%q", lines)
	}
	undo()
	undo = g.change(t, MarkName, 4096, func(b []byte) { b[0]++ }, 1)
	if lines := dumped(t, g, MarkName); len(lines) != 2 || !strings.HasPrefix(lines[1], "slot 1: BAD") || !strings.Contains(lines[0], "sequence 2") {
		t.Errorf("%q", lines)
	}
	undo()
	blob := BlobName(g.blobs[0].ID)
	undo = g.change(t, blob, 1000, func(b []byte) { b[0]++ }, 1)
	if lines := dumped(t, g, blob); len(lines) != 2 || !strings.HasPrefix(lines[1], "offset 128: BAD 5004 bytes") {
		t.Errorf("%q", lines)
	}
	undo()
	g.change(t, HintName(1), 100, func(b []byte) { b[0]++ }, 1)
	if err := Dump(&bytes.Buffer{}, g.fs, g.dir+"/"+HintName(1)); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

func TestDumpOfOtherFiles(t *testing.T) {
	g := buildGroup(t, vfstest.NewMem(), "/g", 30, 100)
	if lines := dumped(t, g, HintName(2)); len(lines) != 1+1+1+30 {
		t.Errorf("%d lines", len(lines))
	}
	piece := samplePiece().encode()
	must(t, writeReplace(g.fs, g.dir, ActiveHintName, append(slices.Clone(piece), piece[:100]...)))
	if lines := dumped(t, g, ActiveHintName); len(lines) != 1+2+1+71+1 || !strings.Contains(lines[len(lines)-1], "does not count") {
		t.Errorf("%q", lines)
	}
	must(t, g.fs.Remove(path.Join(g.dir, ActiveHintName)))
	if lines := dumped(t, g, BlobName(g.blobs[0].ID)); lines[len(lines)-1] != "all chunks are whole" {
		t.Errorf("%q", lines)
	}
	must(t, writeReplace(g.fs, g.dir, "other", []byte("something else")))
	if err := Dump(&bytes.Buffer{}, g.fs, g.dir+"/other"); err == nil || !strings.Contains(err.Error(), "no file of a group") {
		t.Error(err)
	}
	if err := Dump(&bytes.Buffer{}, g.fs, g.dir+"/nothing"); err == nil {
		t.Error("a missing file passes")
	}
	must(t, writeReplace(g.fs, g.dir, MarkName, nil))
	if err := Dump(&bytes.Buffer{}, g.fs, g.dir+"/"+MarkName); !errors.Is(err, ErrCorrupt) {
		t.Error("an empty mark file:", err)
	}
}
