package reader

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
)

// Group is one group of an archive. Its methods read from the bucket, and are not safe for concurrent use.
type Group struct {
	UUID uuid.UUID
	Name string
	// Floor is the history floor: reads as of an index at or above it are exact, except in holes.
	Floor uint64
	// Through is the index up to which the group is archived.
	Through uint64
	// Holes are sorted, and do not touch each other. A read as of an index X is refused if From <= X < To for some hole.
	Holes []object.Hole
	// Gone is true if the group was deleted.
	Gone bool
	// Covered is a time such that all writes acknowledged up to it are in the archive. It is zero if no such time is
	// known.
	Covered time.Time
	// Missing describes the missing objects that cause the archived history of the group to end at Through. It is empty
	// if no object is missing.
	Missing string

	archive   *Archive
	number    uint64 // number of the catalogue; 0 if there is none
	catalogue object.Catalogue
	base      *object.Base // the base that is in effect, or nil
	based     uint64       // number of the base that is in effect
	below     uint64       // if not 0, bases with this number and with greater ones are ignored
	sources   []*source    // in log order
	reads     []piece      // times at which entries were read from the store, in log order
}

// piece holds the information about a group in a piece of a log object, apart from the entries.
type piece struct {
	after  uint64
	readAt int64
}

// Group returns the group with the given UUID. It returns fs.ErrNotExist if the archive does not have the group.
func (a *Archive) Group(ctx context.Context, id uuid.UUID) (*Group, error) {
	if g := a.groups[id]; g != nil {
		return g, nil
	}
	g, err := a.readGroup(ctx, id, 0)
	if err == nil && g.Missing != "" {
		g, err = a.readGroup(ctx, id, 0) // a newer catalogue may have replaced this one meanwhile
	}
	if err != nil {
		return nil, fmt.Errorf("group %s: %w", id, err)
	}
	a.groups[id] = g
	return g, nil
}

func (a *Archive) readGroup(ctx context.Context, id uuid.UUID, below uint64) (*Group, error) {
	g := &Group{UUID: id, archive: a, below: below}
	if err := g.readCatalogue(ctx); err != nil {
		return nil, err
	}
	if err := g.readBase(ctx); err != nil {
		return nil, err
	}
	if !g.Gone { // nothing can follow the catalogue of a deleted group
		if err := g.readPieces(ctx); err != nil {
			return nil, err
		}
	}
	if g.number == 0 && len(g.sources) == 0 {
		return nil, fs.ErrNotExist
	}
	if n := len(g.sources); n > 0 && g.Covered.IsZero() {
		if err := g.sources[n-1].describe(ctx, a.folder); err != nil {
			return nil, err
		}
	}
	for _, s := range g.sources {
		g.Covered = later(g.Covered, s.LastCommit)
	}
	g.Holes = merge(g.Holes)
	return g, nil
}

// readPieces adds the pieces that follow the catalogue.
func (g *Group) readPieces(ctx context.Context) error {
	l, f := g.archive.logs, g.archive.folder
	from := g.catalogue.Log + 1
	logs, err := l.read(ctx, f, from)
	if err != nil {
		return err
	}
	first := g.number == 0
	for _, o := range logs {
		if p, offset := o.piece(g.UUID); p != nil && g.Missing == "" {
			g.add(o, p, offset, first)
			first = false
		}
	}
	if missing := l.gap(from); missing != 0 && g.Missing == "" {
		g.Missing = fmt.Sprintf("%s is missing, so that those behind it do not count", object.LogName(missing))
	}
	// A log object that the catalogue covers may still show up to which time the group is archived.
	for number := g.catalogue.Log; number > 0 && g.Covered.IsZero() && l.has(number) &&
		g.catalogue.Log-number < coveredLogsMax; number-- {
		o, err := l.load(ctx, f, number)
		if err != nil {
			return err
		}
		if p, _ := o.piece(g.UUID); p != nil && !p.Gone {
			g.Covered = later(g.Covered, p.ReadAt)
		}
	}
	return nil
}

// coveredLogsMax limits the number of log objects that are read only to find out up to which time a group is
// archived. An archiver adds a piece for an idle group every 10 minutes, and creates a log object at most every 10
// seconds, so at least one in 60 log objects has a piece of the group.
const coveredLogsMax = 90

// piece returns the piece of a group and the piece's offset in the body. It returns nil if the log object has no such
// piece.
func (o *logObject) piece(group uuid.UUID) (p *object.Piece, offset int64) {
	for i := range o.header.Pieces {
		if p := &o.header.Pieces[i]; p.Group == group {
			return p, offset
		}
		offset += o.header.Pieces[i].Bytes
	}
	return nil, 0
}

// readCatalogue reads the group's newest catalogue, if there is one.
func (g *Group) readCatalogue(ctx context.Context) error {
	f := g.archive.folder
	var name string
	var bytes int64
	for info, err := range f.bucket.List(ctx, object.CataloguePrefix(g.UUID), "") {
		if err != nil {
			return fmt.Errorf("listing %s: %w", object.CataloguePrefix(g.UUID), err)
		}
		if _, number, ok := object.ParseCatalogueName(info.Name); ok {
			name, bytes, g.number = info.Name, info.Bytes, number
		}
	}
	if g.number == 0 {
		return nil
	}
	c := &g.catalogue
	opened, err := f.openContent(ctx, name, object.KindCatalogue, bytes, c, func() error {
		if c.Group != g.UUID {
			return fmt.Errorf("%w: it is of group %s", object.ErrForeign, c.Group)
		}
		return nil
	})
	if err != nil {
		return err
	}
	opened.close()
	g.Name, g.Floor, g.Through, g.Holes, g.Gone = c.Name, c.Floor, c.Through, slices.Clone(c.Holes), c.Gone
	g.Covered = later(g.Covered, c.Covered)
	return g.addSegments(c.Segments)
}

// addSegments adds segment objects to the group's sources.
func (g *Group) addSegments(refs []object.SegmentRef) error {
	for _, ref := range refs {
		id, err := object.ParseSegmentID(ref.ID)
		if err != nil {
			return err // cannot happen, because openContent has checked the ids
		}
		g.sources = append(g.sources, &source{
			Range: object.Range{Group: g.UUID, Name: g.Name, First: ref.First, Last: ref.Last},
			name:  object.SegmentName(g.UUID, ref.First, ref.Last, id), bytes: ref.Bytes, id: &id,
		})
	}
	return nil
}

// add adds a piece that follows the catalogue.
func (g *Group) add(l *logObject, p *object.Piece, offset int64, first bool) {
	if p.After > g.Through {
		g.Missing = fmt.Sprintf("%s continues from index %d, and the objects before it end at %d: at least one of them is "+
			"missing", l.name, p.After, g.Through)
		return
	}
	e := l.chunks.Envelope()
	g.Name, g.Gone = p.Name, g.Gone || p.Gone
	g.sources = append(g.sources, &source{
		Range: p.Range, described: true, name: l.name, bytes: l.bytes, log: l, offset: e.HeaderBytes + offset,
		length: p.Bytes,
	})
	g.reads = append(g.reads, piece{after: p.After, readAt: p.ReadAt})
	g.Holes = append(g.Holes, p.Holes...)
	switch {
	case first:
		g.Floor = p.Floor
	case p.Floor > max(p.After, g.Floor):
		g.Holes = append(g.Holes, object.Hole{From: p.After + 1, To: p.Floor})
	}
	g.Through = max(g.Through, p.Through)
	if !p.Gone { // if the group is gone, its last writes may be missing, so ReadAt proves nothing
		g.Covered = later(g.Covered, p.ReadAt)
	}
}

func later(t time.Time, unix int64) time.Time {
	if other := time.Unix(0, unix); unix != 0 && other.After(t) {
		return other.UTC()
	}
	return t
}

// merge sorts holes, and joins those that touch.
func merge(holes []object.Hole) (merged []object.Hole) {
	slices.SortFunc(holes, func(a, b object.Hole) int { return cmp.Compare(a.From, b.From) })
	for _, h := range holes {
		if n := len(merged); n > 0 && h.From <= merged[n-1].To {
			merged[n-1].To = max(merged[n-1].To, h.To)
			continue
		}
		merged = append(merged, h)
	}
	return merged
}

// String names the group for messages.
func (g *Group) String() string { return fmt.Sprintf("group %s (%s)", g.Name, g.UUID) }
