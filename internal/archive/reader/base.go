package reader

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// readBase reads the group's newest base. If the base is in effect, its segments replace those of the catalogue.
func (g *Group) readBase(ctx context.Context) error {
	if g.number == 0 {
		return nil
	}
	f := g.archive.folder
	var name string
	var bytes int64
	for info, err := range f.bucket.List(ctx, object.BasePrefix(g.UUID), "") {
		if err != nil {
			return fmt.Errorf("listing %s: %w", object.BasePrefix(g.UUID), err)
		}
		if _, n, ok := object.ParseBaseName(info.Name); ok && (g.below == 0 || n < g.below) {
			name, bytes, g.based = info.Name, info.Bytes, n
		}
	}
	if name == "" {
		return nil
	}
	b := &object.Base{}
	opened, err := f.openContent(ctx, name, object.KindBase, bytes, b, func() error {
		if b.Group != g.UUID {
			return fmt.Errorf("%w: it is of group %s", object.ErrForeign, b.Group)
		}
		return nil
	})
	if err != nil {
		return err
	}
	opened.close()
	return g.apply(b)
}

// apply puts a base into effect, unless the catalogue does not list all of the segments that the base replaces. In
// that case the group has been copied again since the base was made, and the base is ignored.
func (g *Group) apply(b *object.Base) error {
	listed := make(map[object.SegmentRef]bool, len(g.catalogue.Segments))
	for _, ref := range g.catalogue.Segments {
		listed[ref] = true
	}
	replaced := make(map[object.SegmentRef]bool, len(b.Replaces))
	for _, ref := range b.Replaces {
		if !listed[ref] {
			g.based = 0
			return nil
		}
		replaced[ref] = true
	}
	segments := slices.Clone(b.Segments)
	for _, ref := range g.catalogue.Segments {
		if !replaced[ref] {
			segments = append(segments, ref)
		}
	}
	slices.SortStableFunc(segments, func(a, b object.SegmentRef) int { return cmp.Compare(a.First, b.First) })
	g.base, g.sources = b, nil
	g.Floor, g.Holes = max(g.Floor, b.Floor), append(g.Holes, b.Holes...)
	return g.addSegments(segments)
}

// Catalogue returns the newest catalogue and its number, which is 0 if the group has no catalogue. The caller must
// not change the catalogue.
func (g *Group) Catalogue() (object.Catalogue, uint64) { return g.catalogue, g.number }

// Base returns the base that is in effect, or nil if there is none. The caller must not change it.
func (g *Group) Base() *object.Base { return g.base }

// BeforeBase returns the group as it is without the base that is in effect, and without later ones: an earlier base may
// be in effect instead. Pruning may have deleted objects of it. It must be called only if Base is not nil.
func (g *Group) BeforeBase(ctx context.Context) (*Group, error) {
	before, err := g.archive.readGroup(ctx, g.UUID, g.based)
	if err != nil {
		return nil, fmt.Errorf("%s, before base %d: %w", g, g.based, err)
	}
	return before, nil
}

// Segments returns the segment objects with the group's history, in log order. Later entries are in pieces of log
// objects.
func (g *Group) Segments() (refs []object.SegmentRef) {
	for _, s := range g.sources {
		if s.log == nil {
			refs = append(refs, object.SegmentRef{First: s.First, Last: s.Last, ID: fmt.Sprintf("%x", s.id[:]), Bytes: s.bytes})
		}
	}
	return refs
}

// WalkSegments calls visit for each entry of the first n segments, together with the entry's frame, in log order and
// each index once. Both are valid only during the call. All bytes have been checked. If visit returns an error, the
// walk ends.
func (g *Group) WalkSegments(ctx context.Context, n int, visit func(e *format.Entry, frame []byte) error) error {
	sources := g.sources[:n]
	if overlap(sources) {
		for f, err := range g.merge(ctx, sources, 0, math.MaxUint64) {
			if err == nil {
				err = visit(f.Entry, f.Frame)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	for _, s := range sources {
		if err := s.walkFrames(ctx, g.archive.folder, visit); err != nil {
			return fmt.Errorf("%s: %w", g, err)
		}
	}
	return nil
}

// LastVersion returns the index of the last archived put or delete that was committed at or before a time, given in
// Unix ns. It returns 0 if there is none. If the group's sources overlap, it reads all of them.
func (g *Group) LastVersion(ctx context.Context, nanos int64) (lo uint64, err error) {
	if g.overlaps() {
		lo, _, err = g.boundsOfAll(ctx, nanos)
	} else {
		lo, _, err = g.boundsInOrder(ctx, nanos)
	}
	return lo, err
}

// Apart returns how many of the group's oldest segments have only indexes up to the bound, while all other objects have
// only greater indexes than they. The result crossed is true if there are fewer because objects overlap.
func (g *Group) Apart(bound uint64) (n int, crossed bool) {
	below := make([]uint64, len(g.sources)+1) // for each source, the lowest index in it and in those behind it
	below[len(g.sources)] = math.MaxUint64
	for i, s := range slices.Backward(g.sources) {
		if below[i] = below[i+1]; s.Last != 0 {
			below[i] = min(below[i], s.First)
		}
	}
	last := uint64(0)
	for i, s := range g.sources {
		if last = max(last, s.Last); s.log != nil || last > bound {
			break
		}
		if crossed = below[i+1] <= last; !crossed {
			n = i + 1
		}
	}
	return n, crossed
}

// Overlaps reports whether several objects of the group may contain the same index.
func (g *Group) Overlaps() bool { return g.overlaps() }
