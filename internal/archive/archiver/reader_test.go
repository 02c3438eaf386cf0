package archiver

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/pieces"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// readable is one group, as a reader reads it from the bucket.
type readable struct {
	entries        map[uint64]format.Entry
	through, floor uint64
	holes          []object.Hole
	gone           bool
	readAt         int64
	pieces         int    // number of pieces with entries
	bytes          int64  // total size of the segments and pieces
	segments       int    // number of segments that the catalogue lists
	log            uint64 // number of the log object up to which the catalogue covers the log
	catalogues     uint64
}

// archive is a strict reader of archives. It returns an error for any deviation from docs/archive.md.
type archive struct {
	memory *memory
	store  uuid.UUID
	last   uint64 // number of the last log object
	epochs map[uint64]uuid.UUID
	groups map[uuid.UUID]*readable
}

func readArchive(m *memory, store uuid.UUID) (*archive, error) {
	a := &archive{memory: m, store: store, epochs: make(map[uint64]uuid.UUID), groups: make(map[uuid.UUID]*readable)}
	if _, ok := m.get(a.path(object.ArchiveName)); !ok {
		if names := m.names(""); len(names) > 0 {
			return nil, fmt.Errorf("objects before archive.json: %v", names)
		}
		return a, nil
	}
	if _, _, err := a.open(object.ArchiveName, object.KindArchive, &object.Archive{}); err != nil {
		return nil, err
	}
	newest := make(map[uuid.UUID]uint64)
	for _, name := range m.names(a.path("g/")) {
		if id, number, ok := object.ParseCatalogueName(name[len(a.path("")):]); ok {
			if number != newest[id]+1 {
				return nil, fmt.Errorf("%s follows number %d", name, newest[id])
			}
			newest[id] = number
		}
	}
	for id, number := range newest {
		if err := a.catalogue(id, number); err != nil {
			return nil, err
		}
	}
	return a, a.logs()
}

func (a *archive) path(name string) string { return a.store.String() + "/" + name }

func (a *archive) open(name string, kind object.Kind, h object.Header) (object.Envelope, []byte, error) {
	b, ok := a.memory.get(a.path(name))
	if !ok {
		return object.Envelope{}, nil, fmt.Errorf("%s is missing", name)
	}
	d, err := object.NewDecoder(bytes.NewReader(b), a.store, kind, a.memory.keys)
	if err != nil {
		return object.Envelope{}, nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := d.Header(h); err != nil {
		return object.Envelope{}, nil, fmt.Errorf("%s: %w", name, err)
	}
	body, err := io.ReadAll(d)
	if err != nil {
		return object.Envelope{}, nil, fmt.Errorf("%s: %w", name, err)
	}
	return d.Envelope(), body, nil
}

func (a *archive) catalogue(id uuid.UUID, number uint64) error {
	var c object.Catalogue
	if _, _, err := a.open(object.CatalogueName(id, number), object.KindCatalogue, &c); err != nil {
		return err
	}
	g := &readable{
		entries: make(map[uint64]format.Entry), through: c.Through, floor: c.Floor, holes: c.Holes, gone: c.Gone,
		segments: len(c.Segments), log: c.Log, catalogues: number,
	}
	a.groups[id] = g
	for _, ref := range c.Segments {
		segment, err := object.ParseSegmentID(ref.ID)
		if err != nil {
			return err
		}
		var h object.Segment
		name := object.SegmentName(id, ref.First, ref.Last, segment)
		_, body, err := a.open(name, object.KindSegment, &h)
		if err != nil {
			return err
		}
		if h.First != ref.First || h.Last != ref.Last || h.Group != id || ref.Last > c.Through {
			return fmt.Errorf("%s: %+v, in the catalogue %+v through %d", name, h, ref, c.Through)
		}
		if err := a.segment(g, h.Range, body, &segment); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// segment adds the entries of one segment.
func (a *archive) segment(g *readable, r object.Range, body []byte, id *format.SegmentID) error {
	g.bytes += int64(len(body))
	want := pieces.Want{Store: a.store, Range: r, Bytes: int64(len(body)), ID: id}
	reader := pieces.NewReader(bytes.NewReader(body), want)
	for reader.Next() {
		e := *reader.Entry()
		e.Attributes, e.Data = bytes.Clone(e.Attributes), bytes.Clone(e.Data)
		if have, twice := g.entries[e.Index]; twice && !same(&have, &e) && have.Kind != format.KindRequest &&
			e.Kind != format.KindRequest {
			return fmt.Errorf("index %d occurs twice: %+v and %+v", e.Index, have, e)
		} else if twice && e.Kind == format.KindRequest {
			continue
		}
		g.entries[e.Index] = e
		if err := a.blob(r.Group, &e); err != nil {
			return err
		}
	}
	return reader.Err()
}

// blob checks that the data to which an entry refers exists.
func (a *archive) blob(group uuid.UUID, e *format.Entry) error {
	ref, err := e.BlobRef()
	if err != nil || ref == nil {
		return err
	}
	_, body, err := a.open(object.BlobName(group, ref.ID), object.KindBlob, &object.Blob{})
	if err == nil && (int64(len(body)) != ref.Size || format.Checksum(body) != ref.CRC32C) {
		err = fmt.Errorf("blob %s has other data", ref.ID)
	}
	return err
}

// logs reads the log objects up to the first gap in their numbers.
func (a *archive) logs() error {
	var previous uint32
	var epoch uint64
	for number := uint64(1); ; number++ {
		name := object.LogName(number)
		if _, ok := a.memory.get(a.path(name)); !ok {
			break
		}
		var l object.Log
		e, body, err := a.open(name, object.KindLog, &l)
		if err != nil {
			return err
		}
		if l.Previous != previous || l.Epoch < epoch || l.Epoch > epoch+1 {
			return fmt.Errorf("%s: epoch %d after %d, previous %x after %x", name, l.Epoch, epoch, l.Previous, previous)
		}
		if writer, ok := a.epochs[l.Epoch]; ok && writer != l.Writer {
			return fmt.Errorf("%s: epoch %d is of %s and of %s", name, l.Epoch, writer, l.Writer)
		}
		a.epochs[l.Epoch], a.last, previous, epoch = l.Writer, number, e.CRC(), l.Epoch
		for i := range l.Pieces {
			p := &l.Pieces[i]
			if err := a.piece(number, p, body[:p.Bytes]); err != nil {
				return fmt.Errorf("%s: group %s: %w", name, p.Name, err)
			}
			body = body[p.Bytes:]
		}
	}
	if n := len(a.memory.names(a.path(object.LogPrefix))); uint64(n) != a.last {
		return fmt.Errorf("%d log objects, a gap behind %d", n, a.last)
	}
	return nil
}

func (a *archive) piece(number uint64, p *object.Piece, body []byte) error {
	g := a.groups[p.Group]
	switch {
	case g == nil:
		return fmt.Errorf("a piece before the first catalogue")
	case number <= g.log:
		return nil
	case p.After > g.through:
		return fmt.Errorf("it continues from %d, the group is read up to %d", p.After, g.through)
	case p.Floor != g.floor:
		return fmt.Errorf("floor %d, in the catalogue %d", p.Floor, g.floor)
	}
	g.through, g.gone, g.readAt = max(g.through, p.Through), g.gone || p.Gone, max(g.readAt, p.ReadAt)
	for _, h := range p.Holes {
		g.holes = mergeHole(g.holes, h)
	}
	if p.Bytes == 0 {
		return nil
	}
	g.pieces++
	return a.segment(g, p.Range, body, nil)
}

// isInHole reports whether versions may be missing that the entry at the given index has superseded. So reads as of the
// index before it are not exact.
func (g *readable) isInHole(by uint64) bool {
	return by <= g.floor || slices.ContainsFunc(g.holes, func(h object.Hole) bool { return h.From < by && by <= h.To })
}

// mayBeMadeUp reports whether the archive may have a made-up delete at the given index.
func (g *readable) mayBeMadeUp(at uint64) bool {
	return slices.ContainsFunc(g.holes, func(h object.Hole) bool { return h.From <= at && at <= h.To })
}

func (g *readable) indexes() []uint64 { return slices.Sorted(maps.Keys(g.entries)) }

// same compares two entries, ignoring the used flag.
func same(a, b *format.Entry) bool {
	x, y := *a, *b
	x.Used, y.Used = false, false
	frame := func(e *format.Entry) []byte { return format.AppendFrame(nil, format.SegmentID{}, 0, e) }
	return bytes.Equal(frame(&x), frame(&y))
}
