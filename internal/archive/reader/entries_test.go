package reader_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"sync"
	"testing"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// checkEntries reads a range of a group's entries, and compares them with the model.
func checkEntries(t *testing.T, g *reader.Group, model *archivetest.Group, first, last uint64) {
	t.Helper()
	var want []format.Entry
	for _, e := range model.Entries() {
		if e.Index >= first && e.Index <= last {
			want = append(want, e)
		}
	}
	n := 0
	for f, err := range g.Entries(t.Context(), first, last) {
		if err != nil {
			t.Fatal(err)
		}
		if n == len(want) || f.Entry.Index != want[n].Index || f.Entry.Kind != want[n].Kind ||
			!bytes.Equal(f.Entry.Data, want[n].Data) {
			t.Fatalf("%s, %d to %d: entry %d is %+v", g, first, last, n, f.Entry)
		}
		again := want[n]
		if frame := format.AppendFrame(nil, format.SegmentID{}, 0, &again); len(frame) != len(f.Frame) ||
			!bytes.Equal(frame[8:], f.Frame[8:]) {
			t.Fatalf("%s: the frame of index %d is not that of the entry", g, f.Entry.Index)
		}
		n++
	}
	if n != len(want) {
		t.Fatalf("%s, %d to %d: %d entries, not %d", g, first, last, n, len(want))
	}
}

// For every range of every group, the entries come in the order of their indexes.
func TestEntriesOfEachRange(t *testing.T) {
	b, w := sample(t, object.Key{}, 50)
	a := open(t, b, w)
	for _, model := range w.Groups {
		g := group(t, a, model)
		for first := range model.Through() + 2 {
			for last := range model.Through() + 2 {
				checkEntries(t, g, model, first, last)
			}
		}
	}
}

// Objects that overlap are merged. If compaction has reduced a put to its request in one of them, and another one
// still has the put, the put takes precedence.
func TestEntriesOfObjectsThatOverlap(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	model := w.NewGroup("twice", 1)
	for i := range int64(9) {
		model.Put(i%4, fmt.Sprint("data ", i))
	}
	w.Copy(model, 9)
	w.Copy(model, 2)
	addRequests(t, b, w, model)
	g := group(t, open(t, b, w), model)
	for first := range uint64(11) {
		for last := range uint64(11) {
			checkEntries(t, g, model, first, last)
		}
	}
}

// addRequests adds a catalogue that begins with a segment which contains only requests, with the indexes 1 to 9.
func addRequests(t *testing.T, b *archivetest.Memory, w *archivetest.Writer, model *archivetest.Group) {
	t.Helper()
	id := format.SegmentID{0x77}
	var requests []format.Entry
	for _, e := range model.Entries() {
		e.RequestID = [16]byte{1}
		requests = append(requests, format.RequestEntry(&e))
	}
	body := archivetest.EncodeSegment(format.SegmentHeader{Store: w.Store, Group: model.UUID, ID: id, FirstIndex: 1},
		requests)
	segment := w.Encode(&object.Segment{
		Range: object.Range{Group: model.UUID, Name: model.Name, First: 1, Last: 9}, Made: object.MadeByCopy,
	}, body)
	b.Set(w.Name(object.SegmentName(model.UUID, 1, 9, id)), segment)
	var c object.Catalogue
	d, err := object.NewDecoder(bytes.NewReader(b.Get(w.Name(object.CatalogueName(model.UUID, 2)))), w.Store,
		object.KindCatalogue, nil)
	if err == nil {
		err = d.Header(&c)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Segments = append([]object.SegmentRef{
		{First: 1, Last: 9, ID: hex.EncodeToString(id[:]), Bytes: int64(len(segment))},
	}, c.Segments...)
	b.Set(w.Name(object.CatalogueName(model.UUID, 3)), w.Encode(&c, nil))
}

// Entries and blobs of one group are read concurrently, so that the race detector can find races.
func TestEntriesAreReadConcurrently(t *testing.T) {
	b, w := sample(t, object.Key{}, 50)
	model := w.Groups[0]
	g := group(t, open(t, b, w), model)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for f, err := range g.Entries(t.Context(), 1, model.Through()) {
				if err != nil {
					t.Error(err)
					return
				}
				if f.Entry.Codec != format.CodecBlob {
					if _, err := g.Blob(t.Context(), f.Entry); err == nil {
						t.Errorf("index %d has no blob", f.Entry.Index)
					}
					continue
				}
				data, err := g.Blob(t.Context(), f.Entry)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(data)
				if want := model.State(f.Entry.Index)[f.Entry.ID].Data; err != nil || !bytes.Equal(got, want) {
					t.Errorf("blob of %d bytes, not %d, error %v", len(got), len(want), err)
				}
				if err := data.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// A group whose objects are missing or damaged does not prevent the other groups from being read.
func TestReadableNamesTheGroupsThatAreBroken(t *testing.T) {
	b, w := sample(t, object.Key{}, 50)
	alpha := w.Groups[0]
	name := w.Name(object.CatalogueName(alpha.UUID, 2))
	b.Set(name, b.Get(name)[:100])
	groups, broken, err := open(t, b, w).Readable(t.Context())
	if err != nil || len(groups) != len(w.Groups)-1 || len(broken) != 1 || !reader.IsBroken(broken[alpha.UUID]) {
		t.Errorf("groups %v, broken %v, error %v", groups, broken, err)
	}
	if _, err := open(t, b, w).Groups(t.Context()); !reader.IsBroken(err) {
		t.Errorf("error %v", err)
	}
}

// The pieces of all groups in small log objects are read by one request for each log object, however many groups there
// are and however often they are read. Log objects of several chunks are read piece by piece.
func TestLogObjectsAreReadOnceForAllGroups(t *testing.T) {
	const groups, logs = 5, 6
	for _, c := range []struct {
		what  string
		bytes int // data of a put
		opens int // requests for all groups after the archive was opened
	}{{"one chunk", 100, 0}, {"two chunks", 250 << 10, groups * logs}} {
		m := archivetest.NewMemory()
		w := archivetest.New(t, m, archivetest.SampleStore, archivetest.SampleKey(t))
		for i := range byte(groups) {
			w.NewGroup(fmt.Sprint("g", i), i+1)
		}
		for range logs {
			for _, g := range w.Groups {
				g.Put(1, string(bytes.Repeat([]byte{'x'}, c.bytes)))
			}
			w.Log(w.Groups...)
		}
		a, err := reader.Open(t.Context(), m, w.Store, object.Keys{archivetest.SampleKey(t)})
		if err != nil {
			t.Fatal(err)
		}
		all, err := a.Groups(t.Context())
		if err != nil || len(all) != groups {
			t.Fatalf("%d groups, %v", len(all), err)
		}
		m.Opens()
		for i, g := range w.Groups {
			checkEntries(t, all[i], g, 1, g.Through())
		}
		if n := m.Opens(); n != c.opens {
			t.Errorf("%s: %d requests, want %d", c.what, n, c.opens)
		}
	}
}
