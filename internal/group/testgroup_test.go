package group

import (
	"errors"
	"path"
	"slices"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/index"
	"sheaf.dev/sheaf/internal/vfs"
)

// testGroup is a group on disk, built through the codec alone.
type testGroup struct {
	fs       vfs.FS
	dir      string
	manifest *Manifest
	frames   map[string][]testFrame // by file name
	blobs    []BlobRef
}

type testFrame struct {
	offset, bytes int64
	entry         Entry
}

// buildGroup makes two sealed segments with hints and an active one with room behind. Ids repeat, so that there is history;
// one record is a blob, one is deleted; a term changes; state frames and the mark say what is synced.
func buildGroup(t testing.TB, fs vfs.FS, dir string, perSegment, dataBytes int) *testGroup {
	t.Helper()
	must(t, fs.MkdirAll(dir))
	g := &testGroup{fs: fs, dir: dir, frames: map[string][]testFrame{}}
	g.manifest = &Manifest{
		Identity: Identity{Store: uuid.UUID{1}, Group: uuid.UUID{2}, Name: "g7"}, Sequence: 1, NextSegment: 4,
		HardState: StateRecord{Term: 1, Vote: 1},
	}
	next := uint64(1)
	var hints []*Hint
	for number := uint64(1); number <= 3; number++ {
		b := g.begin(number, next)
		b.add(Entry{Kind: KindEmpty})
		for i := range perSegment {
			e := b.add(g.entry(t, b, i, perSegment, dataBytes))
			if i == perSegment/2 {
				b.add(Entry{Kind: KindState, Data: StateRecord{Term: b.term, Vote: 1, Commit: e.Index, SyncedOffset: int64(len(b.image)), SyncedIndex: e.Index}.Encode()})
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
		must(t, writeReplace(fs, dir, SegmentName(number), b.image))
		g.manifest.Segments = append(g.manifest.Segments, b.m)
	}
	newest := g.newestLeft(nil)
	for i, h := range hints {
		h.Used = make([]uint64, (len(h.IDs)+63)/64)
		for row, id := range h.IDs {
			h.SetUsed(row, newest[id].Index == h.FirstIndex+uint64(h.Indexes[row]))
		}
		orderRows(h)
		must(t, WriteHint(fs, dir, uint64(i+1), h))
	}
	must(t, WriteManifest(fs, dir, g.manifest))
	must(t, CreateMark(fs, dir))
	g.writeMark(t, g.last().offset+g.last().bytes, g.last().entry.Index)
	return g
}

// segmentBuilder makes one segment of a testGroup.
type segmentBuilder struct {
	g     *testGroup
	m     ManifestSegment
	hint  *Hint
	image []byte
	next  uint64 // index
	term  uint64
}

func (g *testGroup) begin(number, first uint64) *segmentBuilder {
	b := &segmentBuilder{g: g, next: first, term: 1, m: ManifestSegment{Number: number, ID: SegmentID{byte(number), 7}, FirstIndex: first}}
	if number > 1 {
		b.term = 3
	}
	b.hint = &Hint{Segment: b.m.ID, FirstIndex: first}
	b.image = SegmentHeader{Store: g.manifest.Identity.Store, Group: g.manifest.Identity.Group, ID: b.m.ID, FirstIndex: first, Created: 5}.Encode()
	return b
}

// entry is number i of a segment.
func (g *testGroup) entry(t testing.TB, b *segmentBuilder, i, perSegment, dataBytes int) Entry {
	e := Entry{Kind: KindPut, Used: true, ID: int64(i % (perSegment*2/3 + 1)), CommitTime: int64(b.next)}
	switch {
	case i == 1 && b.m.Number == 2:
		ref := writeBlob(t, g.fs, g.dir, randomBytes(99, 5000), 4096)
		g.blobs = append(g.blobs, ref)
		e.ID, e.Codec, e.Data = 1000, CodecBlob, ref.Encode()
		b.hint.Blobs = append(b.hint.Blobs, HintBlob{b.next, ref})
	case i == 2:
		e.Kind, e.ID = KindDelete, 2
	default:
		e.Data = randomBytes(b.next, 1+int(b.next)%(2*dataBytes))
	}
	return e
}

// add adds an entry behind the others, with its index and term, and its row in the hint.
func (b *segmentBuilder) add(e Entry) Entry {
	if e.Kind != KindState {
		e.Index, e.Term = b.next, b.term
		b.next++
	}
	offset := int64(len(b.image))
	b.image = AppendFrame(b.image, b.m.ID, offset, &e)
	f := testFrame{offset, int64(len(b.image)) - offset, e}
	name := SegmentName(b.m.Number)
	b.g.frames[name] = append(b.g.frames[name], f)
	if e.Kind == KindState {
		return e
	}
	h := b.hint
	if n := len(h.Terms); n == 0 || h.Terms[n-1].Term != e.Term {
		h.Terms = append(h.Terms, TermRun{e.Index, e.Term})
	}
	if e.Kind.isVersion() {
		h.IDs = append(h.IDs, e.ID)
		h.Places = append(h.Places, uint64(index.MakeLoc(0, f.offset, f.bytes, e.Kind == KindDelete)))
		h.Indexes = append(h.Indexes, uint32(e.Index-h.FirstIndex))
		h.LastCommit = e.CommitTime
	}
	return e
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (g *testGroup) active() string { return SegmentName(g.manifest.Segments[2].Number) }

// last is the last frame of the log.
func (g *testGroup) last() testFrame { f := g.frames[g.active()]; return f[len(f)-1] }

func (g *testGroup) writeMark(t testing.TB, offset int64, index uint64) {
	t.Helper()
	f, err := g.fs.OpenWrite(path.Join(g.dir, MarkName))
	must(t, err)
	for sequence := range uint64(2) {
		must(t, WriteMark(f, Mark{Sequence: sequence + 1, Segment: g.manifest.Segments[2].ID, Offset: offset, Index: index}))
	}
	must(t, f.Close())
}

func (g *testGroup) verify(t testing.TB) VerifyReport {
	t.Helper()
	report, err := VerifyDir(t.Context(), g.fs, g.dir, nil)
	must(t, err)
	return report
}

func (g *testGroup) names(t testing.TB) []string {
	t.Helper()
	names, err := g.fs.List(g.dir)
	must(t, err)
	return names
}

// change writes bytes into a file and gives a function that puts back what was there.
func (g *testGroup) change(t testing.TB, name string, offset int64, edit func(b []byte), length int) (undo func()) {
	t.Helper()
	f, err := g.fs.OpenWrite(path.Join(g.dir, name))
	must(t, err)
	old := make([]byte, length)
	must(t, readFull(f, old, offset))
	b := slices.Clone(old)
	edit(b)
	_, err = f.WriteAt(b, offset)
	must(t, err)
	return func() {
		_, err := f.WriteAt(old, offset)
		must(t, errors.Join(err, f.Close()))
	}
}

// sealAndClose closes a log with everything sealed, so that the next load finds hints of all.
func sealAndClose(l *Log) error { return errors.Join(l.Seal(), l.Close(true)) }
