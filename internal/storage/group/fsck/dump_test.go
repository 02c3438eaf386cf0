package fsck

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/foldertest"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func dumped(t *testing.T, g *foldertest.Folder, name string) []string {
	t.Helper()
	var b bytes.Buffer
	must.OK(t, Dump(&b, g.FS, path.Join(g.Dir, name)))
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

func TestDumpHasALineForEveryFrame(t *testing.T) {
	g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
	for number := uint64(1); number <= 3; number++ {
		name := format.SegmentName(number)
		lines := dumped(t, g, name)
		extra := 1
		if name == g.Active() {
			extra = 2 // the line for the unused space at the end of the active segment
		}
		if len(lines) != len(g.Frames[name])+extra {
			t.Fatalf("%d lines for %d frames", len(lines), len(g.Frames[name]))
		}
		for i, f := range g.Frames[name] {
			want := fmt.Sprintf("offset %d: %d bytes: %s", f.Offset, f.Bytes, f.Entry.Kind)
			if !strings.HasPrefix(lines[i+1], want) || f.Entry.Kind.IsVersion() &&
				!strings.Contains(lines[i+1], fmt.Sprintf(" id %d index %d ", f.Entry.ID, f.Entry.Index)) {
				t.Errorf("%q, want %q", lines[i+1], want)
			}
		}
	}
}

func TestDumpNamesBadPlaces(t *testing.T) {
	g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
	f := g.Frames[format.SegmentName(2)][4]
	for at, want := range map[int64]string{
		0:        "offset 0: BAD 128 bytes: segment header",
		100:      "offset 0: BAD 128 bytes: segment header",
		f.Offset: fmt.Sprintf("offset %d: BAD %d bytes: no frame", f.Offset, f.Bytes),
		f.Offset + 80: fmt.Sprintf("offset %d: BAD %d bytes: entry content is bad: put id %d index %d", f.Offset, f.Bytes,
			f.Entry.ID, f.Entry.Index),
	} {
		undo := g.Change(t, format.SegmentName(2), at, func(b []byte) { b[0] ^= 0x80 }, 1)
		text := strings.Join(dumped(t, g, format.SegmentName(2)), "\n")
		if !strings.Contains(text, want) || strings.Count(text, "BAD") != 1 || !strings.Contains(text, "index 62 ") {
			t.Errorf("byte %d: no %q in\n%s", at, want, text)
		}
		undo()
	}
	undo := g.Change(t, format.ManifestName, 4096, func(b []byte) { b[0]++ }, 1)
	if lines := dumped(t, g, format.ManifestName); !strings.HasPrefix(lines[0], "copy 1: BAD") ||
		len(lines) != 1+1+1+1+1+1+3 ||
		!strings.Contains(lines[1], "version 1,") || lines[3] != "history floor not known" {
		t.Errorf("%q", lines)
	}
	undo()
	undo = g.Change(t, format.MarkName, 4096, func(b []byte) { b[0]++ }, 1)
	if lines := dumped(t, g, format.MarkName); len(lines) != 2 || !strings.HasPrefix(lines[1], "slot 1: BAD") ||
		!strings.Contains(lines[0], "sequence 2") {
		t.Errorf("%q", lines)
	}
	undo()
	blob := format.BlobName(g.Blobs[0].ID)
	undo = g.Change(t, blob, 1000, func(b []byte) { b[0]++ }, 1)
	if lines := dumped(t, g, blob); len(lines) != 2 || !strings.HasPrefix(lines[1], "offset 128: BAD 5004 bytes") {
		t.Errorf("%q", lines)
	}
	undo()
	g.Change(t, format.HintName(1), 100, func(b []byte) { b[0]++ }, 1)
	if err := Dump(&bytes.Buffer{}, g.FS, g.Dir+"/"+format.HintName(1)); !errors.Is(err, format.ErrCorrupt) {
		t.Error(err)
	}
}

func TestDumpPrintsTheHistoryFloor(t *testing.T) {
	g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
	g.Manifest.HistoryKnown, g.Manifest.HistoryFloor = true, 17
	must.OK(t, format.WriteManifest(g.FS, g.Dir, g.Manifest))
	if lines := dumped(t, g, format.ManifestName); !strings.Contains(lines[0], "version 2,") ||
		!slices.Contains(lines, "history floor 17") {
		t.Errorf("%q", lines)
	}
}

func TestDumpOfOtherFiles(t *testing.T) {
	g := foldertest.Build(t, vfstest.NewMem(), "/g", 30, 100)
	if lines := dumped(t, g, format.HintName(2)); len(lines) != 1+1+1+30 {
		t.Errorf("%d lines", len(lines))
	}
	piece := samplePiece().Encode()
	must.OK(t, format.WriteReplace(g.FS, g.Dir, format.ActiveHintName, append(slices.Clone(piece), piece[:100]...)))
	if lines := dumped(t, g, format.ActiveHintName); len(lines) != 1+2+1+71+1 ||
		!strings.Contains(lines[len(lines)-1], "does not count") {
		t.Errorf("%q", lines)
	}
	must.OK(t, g.FS.Remove(path.Join(g.Dir, format.ActiveHintName)))
	if lines := dumped(t, g, format.BlobName(g.Blobs[0].ID)); lines[len(lines)-1] != "all chunks are whole" {
		t.Errorf("%q", lines)
	}
	must.OK(t, format.WriteReplace(g.FS, g.Dir, "other", []byte("something else")))
	if err := Dump(&bytes.Buffer{}, g.FS, g.Dir+"/other"); err == nil ||
		!strings.Contains(err.Error(), "no file of a group") {
		t.Error(err)
	}
	if err := Dump(&bytes.Buffer{}, g.FS, g.Dir+"/nothing"); err == nil {
		t.Error("a missing file passes")
	}
	must.OK(t, format.WriteReplace(g.FS, g.Dir, format.MarkName, nil))
	if err := Dump(&bytes.Buffer{}, g.FS, g.Dir+"/"+format.MarkName); !errors.Is(err, format.ErrCorrupt) {
		t.Error("an empty mark file:", err)
	}
}

// samplePiece returns a second piece, with a row for every 88 bytes.
func samplePiece() *format.HintPiece {
	p := &format.HintPiece{Segment: format.SegmentID{1, 2, 3}, First: 10, Begin: 1 << 12, End: 1 << 14, LastBefore: 30,
		Last: 200, RowsBefore: 15,
		Terms: []format.TermRun{{FirstIndex: 31, Term: 1}, {FirstIndex: 50, Term: 3}},
		Table: format.Rows{LastCommit: 99, Blobs: []format.HintBlob{{Index: 42,
			Ref: format.BlobRef{ID: uuid.UUID{1}, Size: 2 << 20, CRC32C: 5}}}}}
	for i := range 71 {
		p.Table.IDs = append(p.Table.IDs, int64(i)*7-100)
		p.Table.Places = append(p.Table.Places, uint64(1<<12+88*i)/8<<16|2<<1|uint64(i%2))
		p.Table.Indexes = append(p.Table.Indexes, uint32(21+i+i/50))
	}
	return p
}
