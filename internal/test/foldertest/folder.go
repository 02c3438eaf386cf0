// Package foldertest builds a group's folder using only the codec. It is for tests of code that reads such folders.
package foldertest

import (
	"cmp"
	"errors"
	"path"
	"slices"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/index"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/grouptest"
	"sheaf.dev/sheaf/internal/test/must"
)

// NewestLeft returns the newest version of each id, without counting the entries whose indexes are in the argument
// gone. Reads must return exactly these versions if those entries are missing from the folder.
func (g *Folder) NewestLeft(gone map[uint64]bool) map[int64]format.Entry {
	newest := map[int64]format.Entry{}
	for _, frames := range g.Frames {
		for _, f := range frames {
			e := f.Entry
			if e.Kind.IsVersion() && !gone[e.Index] && newest[e.ID].Index < e.Index {
				newest[e.ID] = e
			}
		}
	}
	return newest
}

// Folder is a group's folder that was built using only the codec.
type Folder struct {
	FS       vfs.FS
	Dir      string
	Manifest *format.Manifest
	Frames   map[string][]Frame // frames of each file, by the name of the file
	Blobs    []format.BlobRef
}

// Frame is one frame of a segment, with its content.
type Frame struct {
	Offset, Bytes int64
	Entry         format.Entry
}

// Build creates a folder with two sealed segments, which have hints, and an active segment with free space after its
// frames. Ids occur several times, so that some versions are superseded. One record is a blob, one is deleted, and
// the term changes once. The state frames, and also the mark, say how far the log was synced.
func Build(t testing.TB, fs vfs.FS, dir string, perSegment, dataBytes int) *Folder {
	t.Helper()
	must.OK(t, fs.MkdirAll(dir))
	g := &Folder{FS: fs, Dir: dir, Frames: map[string][]Frame{}}
	g.Manifest = &format.Manifest{
		Identity: format.Identity{Store: uuid.UUID{1}, Group: uuid.UUID{2}, Name: "g7"}, Sequence: 1, NextSegment: 4,
		HardState: format.StateRecord{Term: 1, Vote: 1},
	}
	next := uint64(1)
	var hints []*format.Hint
	for number := uint64(1); number <= 3; number++ {
		b := g.begin(number, next)
		b.add(format.Entry{Kind: format.KindEmpty})
		for i := range perSegment {
			e := b.add(g.entry(t, b, i, perSegment, dataBytes))
			if i == perSegment/2 {
				b.add(format.Entry{Kind: format.KindState, Data: format.StateRecord{Term: b.term, Vote: 1, Commit: e.Index,
					SyncedOffset: int64(len(b.image)), SyncedIndex: e.Index}.Encode()})
			}
		}
		next = b.next
		if number < 3 {
			b.m.LastIndex, b.m.Bytes = next-1, int64(len(b.image))
			b.hint.LastIndex, b.hint.Bytes = b.m.LastIndex, b.m.Bytes
			hints = append(hints, b.hint)
		} else {
			b.image = append(b.image, make([]byte, 4096)...)
		}
		must.OK(t, format.WriteReplace(fs, dir, format.SegmentName(number), b.image))
		g.Manifest.Segments = append(g.Manifest.Segments, b.m)
	}
	newest := g.NewestLeft(nil)
	for i, h := range hints {
		h.Used = make([]uint64, (len(h.IDs)+63)/64)
		for row, id := range h.IDs {
			h.SetUsed(row, newest[id].Index == h.FirstIndex+uint64(h.Indexes[row]))
		}
		OrderRows(h)
		must.OK(t, format.WriteHint(fs, dir, uint64(i+1), h))
	}
	must.OK(t, format.WriteManifest(fs, dir, g.Manifest))
	must.OK(t, format.CreateMark(fs, dir))
	g.WriteMark(t, g.Last().Offset+g.Last().Bytes, g.Last().Entry.Index)
	return g
}

// segmentBuilder builds one segment of a Folder.
type segmentBuilder struct {
	g     *Folder
	m     format.ManifestSegment
	hint  *format.Hint
	image []byte
	next  uint64 // index of the next entry
	term  uint64
}

func (g *Folder) begin(number, first uint64) *segmentBuilder {
	b := &segmentBuilder{g: g, next: first, term: 1, m: format.ManifestSegment{Number: number,
		ID: format.SegmentID{byte(number), 7}, FirstIndex: first}}
	if number > 1 {
		b.term = 3
	}
	b.hint = &format.Hint{Segment: b.m.ID, FirstIndex: first}
	b.image = format.SegmentHeader{Store: g.Manifest.Identity.Store, Group: g.Manifest.Identity.Group, ID: b.m.ID,
		FirstIndex: first, Created: 5}.Encode()
	return b
}

// entry returns entry number i of a segment.
func (g *Folder) entry(t testing.TB, b *segmentBuilder, i, perSegment, dataBytes int) format.Entry {
	e := format.Entry{Kind: format.KindPut, Used: true, ID: int64(i % (perSegment*2/3 + 1)), CommitTime: int64(b.next)}
	switch {
	case i == 1 && b.m.Number == 2:
		ref := WriteBlob(t, g.FS, g.Dir, grouptest.RandomBytes(99, 5000), 4096)
		g.Blobs = append(g.Blobs, ref)
		e.ID, e.Codec, e.Data = 1000, format.CodecBlob, ref.Encode()
		b.hint.Blobs = append(b.hint.Blobs, format.HintBlob{Index: b.next, Ref: ref})
	case i == 2:
		e.Kind, e.ID = format.KindDelete, 2
	default:
		e.Data = grouptest.RandomBytes(b.next, 1+int(b.next)%(2*dataBytes))
	}
	return e
}

// add appends an entry. It sets the index and the term, and adds the entry's row to the hint.
func (b *segmentBuilder) add(e format.Entry) format.Entry {
	if e.Kind != format.KindState {
		e.Index, e.Term = b.next, b.term
		b.next++
	}
	offset := int64(len(b.image))
	b.image = format.AppendFrame(b.image, b.m.ID, offset, &e)
	f := Frame{offset, int64(len(b.image)) - offset, e}
	name := format.SegmentName(b.m.Number)
	b.g.Frames[name] = append(b.g.Frames[name], f)
	if e.Kind == format.KindState {
		return e
	}
	h := b.hint
	if n := len(h.Terms); n == 0 || h.Terms[n-1].Term != e.Term {
		h.Terms = append(h.Terms, format.TermRun{FirstIndex: e.Index, Term: e.Term})
	}
	if e.Kind.IsVersion() {
		h.IDs = append(h.IDs, e.ID)
		h.Places = append(h.Places, uint64(index.MakeLoc(0, f.Offset, f.Bytes, e.Kind == format.KindDelete)))
		h.Indexes = append(h.Indexes, uint32(e.Index-h.FirstIndex))
		h.LastCommit = e.CommitTime
	}
	return e
}

// Active returns the name of the active segment's file.
func (g *Folder) Active() string { return format.SegmentName(g.Manifest.Segments[2].Number) }

// Last returns the last frame of the active segment, which is the end of the log.
func (g *Folder) Last() Frame { f := g.Frames[g.Active()]; return f[len(f)-1] }

// WriteMark writes both slots of the mark. They say that the active segment was synced up to an offset and an index.
func (g *Folder) WriteMark(t testing.TB, offset int64, index uint64) {
	t.Helper()
	f, err := g.FS.OpenWrite(path.Join(g.Dir, format.MarkName))
	must.OK(t, err)
	for sequence := range uint64(2) {
		must.OK(t, format.WriteMark(f, format.Mark{Sequence: sequence + 1, Segment: g.Manifest.Segments[2].ID,
			Offset: offset, Index: index}))
	}
	must.OK(t, f.Close())
}

// Names returns the names of all files.
func (g *Folder) Names(t testing.TB) []string {
	t.Helper()
	names, err := g.FS.List(g.Dir)
	must.OK(t, err)
	return names
}

// Change writes bytes into a file and returns a function that restores the old bytes.
func (g *Folder) Change(t testing.TB, name string, offset int64, edit func(b []byte), length int) (undo func()) {
	t.Helper()
	f, err := g.FS.OpenWrite(path.Join(g.Dir, name))
	must.OK(t, err)
	old := make([]byte, length)
	must.OK(t, format.ReadFull(f, old, offset))
	b := slices.Clone(old)
	edit(b)
	_, err = f.WriteAt(b, offset)
	must.OK(t, err)
	return func() {
		_, err := f.WriteAt(old, offset)
		must.OK(t, errors.Join(err, f.Close()))
	}
}

// WriteBlob writes data in pieces of the given length.
func WriteBlob(t testing.TB, fs vfs.FS, dir string, data []byte, piece int) format.BlobRef {
	t.Helper()
	w, err := format.CreateBlob(fs, dir)
	must.OK(t, err)
	for rest := data; len(rest) > 0; {
		n, err := w.Write(rest[:min(piece, len(rest))])
		must.OK(t, err)
		rest = rest[n:]
	}
	ref, err := w.Commit()
	must.OK(t, err)
	must.OK(t, w.Close())
	return ref
}

// OrderRows sorts the rows of a hint, together with their used flags, into the order of hints.
func OrderRows(h *format.Hint) {
	rows := make([]int, len(h.IDs))
	for i := range rows {
		rows[i] = i
	}
	slices.SortFunc(rows, func(a, b int) int {
		return cmp.Or(cmp.Compare(index.Hash(h.IDs[a]), index.Hash(h.IDs[b])), cmp.Compare(h.Places[a], h.Places[b]))
	})
	old := *h
	h.IDs, h.Places, h.Indexes, h.Used = nil, nil, nil, make([]uint64, len(old.Used))
	for i, row := range rows {
		h.IDs = append(h.IDs, old.IDs[row])
		h.Places = append(h.Places, old.Places[row])
		h.Indexes = append(h.Indexes, old.Indexes[row])
		h.SetUsed(i, old.IsUsed(row))
	}
}
