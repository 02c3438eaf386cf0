// Package archivetest writes small archives for tests of the programs that read them. It implements docs/archive.md
// independently of the archiver and the reader, so that both can be compared with it.
package archivetest

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Begin is the time at which the history of each archive begins. Each entry is committed one second after the previous
// entry of any group.
var Begin = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// Writer writes one archive, as an archiver would. It is not safe for concurrent use.
type Writer struct {
	Bucket bucket.Bucket
	Store  uuid.UUID
	Key    object.Key // key with which all objects are encrypted; the zero key leaves them unencrypted
	// Turns, if not empty, are used in place of Key: each object that is made takes the next one. The zero key leaves its
	// objects unencrypted.
	Turns  []object.Key
	Groups []*Group

	t        testing.TB
	seconds  int64  // time of the last entry, in seconds after Begin
	number   uint64 // number of the last log object
	previous uint32 // CRC of the last log object's envelope
	writer   uuid.UUID
	seed     byte
	made     int   // number of objects for which Turns has determined the key
	bytes    int64 // size of the last object
}

// New begins an archive with archive.json.
func New(t testing.TB, b bucket.Bucket, store uuid.UUID, key object.Key) *Writer {
	t.Helper()
	w := &Writer{Bucket: b, Store: store, Key: key, t: t, writer: uuid.UUID{0xaa}}
	w.create(object.ArchiveName, &object.Archive{
		Store: "quotes", Created: Begin.UnixNano(), Routing: "named", Lanes: 1,
	}, nil)
	return w
}

// Now returns the time of the last entry.
func (w *Writer) Now() time.Time { return Begin.Add(time.Duration(w.seconds) * time.Second) }

// Wait advances the time of the next entry.
func (w *Writer) Wait(seconds int64) { w.seconds += seconds }

// Name returns the name of an object in the bucket.
func (w *Writer) Name(name string) string { return w.Store.String() + "/" + name }

// create writes an object, and returns its envelope's CRC.
func (w *Writer) create(name string, header object.Header, body []byte) uint32 {
	w.t.Helper()
	b := w.Encode(header, body)
	if err := w.Bucket.Create(w.t.Context(), w.Name(name), int64(len(b)), bytes.NewReader(b)); err != nil {
		w.t.Fatal(err)
	}
	w.bytes = int64(len(b))
	e, err := object.DecodeEnvelope(b)
	if err != nil {
		w.t.Fatal(err)
	}
	return e.CRC()
}

// Encode returns the bytes of an object.
func (w *Writer) Encode(header object.Header, body []byte) []byte {
	w.t.Helper()
	key := w.Key
	if len(w.Turns) > 0 {
		key = w.Turns[w.made%len(w.Turns)]
		w.made++
	}
	e, err := object.NewEncoder(object.Spec{
		Store: w.Store, Header: header, Body: bytes.NewReader(body), BodyBytes: int64(len(body)), Key: key,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	b, err := io.ReadAll(e)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// segmentID returns the next id. The ids are the same in each run.
func (w *Writer) segmentID() format.SegmentID {
	w.seed++
	return format.SegmentID{0x5e, 0x60, 7: w.seed}
}

// Log creates the next log object, with the new entries and holes of the given groups, and returns its name.
func (w *Writer) Log(groups ...*Group) string {
	w.t.Helper()
	now := w.Now().UnixNano()
	h := &object.Log{Writer: w.writer, Epoch: 1, Previous: w.previous, Time: now, Pieces: []object.Piece{}}
	var body []byte
	w.number++
	for _, g := range groups {
		news := g.kept(g.archived+1, g.through())
		piece := object.Piece{
			Range: g.rangeOf(news), After: g.archived, Through: g.through(), ReadAt: now, Gone: g.Gone,
			Holes: g.newHoles,
		}
		if len(news) > 0 {
			segment := w.segment(g, news)
			piece.Bytes = int64(len(segment))
			body = append(body, segment...)
		}
		h.Pieces = append(h.Pieces, piece)
		g.Holes, g.newHoles = append(g.Holes, g.newHoles...), nil
		g.archived, g.logged = g.through(), w.number
	}
	name := object.LogName(w.number)
	w.previous = w.create(name, h, body)
	return name
}

// segment returns a segment with entries.
func (w *Writer) segment(g *Group, entries []format.Entry) []byte {
	id := w.segmentID()
	g.lastID = id
	return EncodeSegment(format.SegmentHeader{
		Store: w.Store, Group: g.UUID, ID: id, FirstIndex: entries[0].Index, Created: w.Now().UnixNano(),
	}, entries)
}

// EncodeSegment returns a segment with entries.
func EncodeSegment(h format.SegmentHeader, entries []format.Entry) []byte {
	for _, e := range entries {
		h.Rewritten = h.Rewritten || e.Kind == format.KindRequest
	}
	b := h.Encode()
	for i := range entries {
		b = format.AppendFrame(b, h.ID, int64(len(b)), &entries[i])
	}
	return b
}

// Copy writes all entries of a group into segments with at most the given number of entries each, and then writes a
// catalogue. An archiver does the same when it archives a group for the first time.
func (w *Writer) Copy(g *Group, entriesMax int) {
	w.t.Helper()
	w.segments(g, object.MadeByCopy, g.kept(1, g.through()), entriesMax)
	g.archived, g.logged = g.through(), w.number
	w.catalogue(g)
}

// CopyAgain archives a group anew, as an archiver does if none of the group's catalogues can be read. The leader's
// compaction has dropped all versions that were superseded at or below the floor. The new catalogue lists none of the
// former segments.
func (w *Writer) CopyAgain(g *Group, floor uint64, entriesMax int) {
	w.t.Helper()
	superseded := map[int64]uint64{} // for each record, the index of its newest version so far
	for _, e := range g.history {
		if e.Index > floor || !e.Kind.IsVersion() {
			continue
		}
		if before := superseded[e.ID]; before != 0 {
			g.dropped[before] = true
		}
		superseded[e.ID] = e.Index
	}
	g.Floor, g.Holes, g.newHoles, g.refs = floor, nil, nil, nil
	w.Copy(g, entriesMax)
}

// CopyMissed archives the entries that are not archived yet, as an archiver does if the store has dropped deletes: the
// missed deletes are in a segment of their own, which overlaps with the others, and in a hole. The last entry must not
// be such a delete.
func (w *Writer) CopyMissed(g *Group, entriesMax int) {
	w.t.Helper()
	entries := g.kept(g.archived+1, g.through())
	var deletes []format.Entry
	for _, e := range g.history[g.archived:] {
		if e.Kind == format.KindDelete && g.dropped[e.Index] {
			deletes = append(deletes, e)
			delete(g.dropped, e.Index)
		}
	}
	w.segments(g, object.MadeByCopy, entries, entriesMax)
	w.segments(g, object.MadeByCopy, deletes, entriesMax)
	slices.SortStableFunc(g.refs, func(a, b object.SegmentRef) int { return cmp.Compare(a.First, b.First) })
	g.Holes = append(g.Holes, object.Hole{From: g.archived + 1, To: deletes[len(deletes)-1].Index + 1})
	g.archived, g.logged = g.through(), w.number
	w.catalogue(g)
}

// Roll writes the entries of all pieces since the last Roll of the group into one segment, and then writes a
// catalogue.
func (w *Writer) Roll(g *Group) {
	w.t.Helper()
	if entries := g.kept(g.rolled+1, g.archived); len(entries) > 0 {
		w.segments(g, object.MadeByRoll, entries, len(entries))
	}
	w.catalogue(g)
}

func (w *Writer) segments(g *Group, made string, entries []format.Entry, entriesMax int) {
	w.t.Helper()
	for len(entries) > 0 {
		n := min(entriesMax, len(entries))
		part := entries[:n]
		entries = entries[n:]
		body := w.segment(g, part)
		h := &object.Segment{Range: g.rangeOf(part), Made: made}
		w.create(object.SegmentName(g.UUID, h.First, h.Last, g.lastID), h, body)
		g.refs = append(g.refs, object.SegmentRef{
			First: h.First, Last: h.Last, ID: hex.EncodeToString(g.lastID[:]), Bytes: w.bytes,
		})
	}
}

func (w *Writer) catalogue(g *Group) {
	w.t.Helper()
	g.catalogues++
	g.rolled = g.archived
	w.create(object.CatalogueName(g.UUID, g.catalogues), &object.Catalogue{
		Group: g.UUID, Name: g.Name, Segments: append([]object.SegmentRef{}, g.refs...), Through: g.archived,
		Floor: g.Floor, Log: g.logged, Holes: g.Holes, Gone: g.Gone,
	}, nil)
}
