package prune

import (
	"context"
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
)

// honour makes the bases of the archive keep points that they have overlooked. A point may be created after a Run has
// read the points, and before that Run creates a base that leaves versions of the point out. CreatePoint finds a base
// that exists when the point does, so an overlooked point is older than the base. The objects that the base replaces
// are deleted a day later at the earliest, by a Run that first calls honour. So they still exist, and the base is made
// again from them. The same holds if the earlier Run was killed behind its base.
func (s *Store) honour(ctx context.Context, points []Point, opts *Options, report *Report) error {
	a, err := s.open(ctx)
	if err != nil {
		return err
	}
	groups, err := a.Groups(ctx)
	if err != nil {
		return err
	}
	names, err := s.list(ctx)
	if err != nil {
		return err
	}
	for _, g := range groups {
		overlooked, err := refused(ctx, g, points)
		if err != nil {
			return err
		}
		if g.Base() == nil || len(overlooked) == 0 {
			continue
		}
		before, err := whole(ctx, g, overlooked, names)
		if err != nil || before == nil {
			if err != nil {
				return fmt.Errorf("prune %s: %w", g, err)
			}
			continue // the group could not be read as of the points before either
		}
		report.Honoured++
		if opts.DryRun {
			continue
		}
		if err := s.remake(ctx, g, before, points, opts, names); err != nil {
			return fmt.Errorf("prune %s: %w", g, err)
		}
	}
	return nil
}

// refused returns the indexes as of which points read a group, and as of which it cannot be read.
func refused(ctx context.Context, g *reader.Group, points []Point) (indexes []uint64, err error) {
	for _, p := range points {
		for _, in := range p.Groups {
			if in.Group != g.UUID {
				continue
			}
			switch err := g.Check(ctx, in.Index); {
			case errors.Is(err, reader.ErrRefused):
				indexes = append(indexes, in.Index)
			case err != nil:
				return nil, err
			}
		}
	}
	return indexes, nil
}

// whole returns a group as it was before one of its bases, if all objects still exist, and if it can be read as of one
// of the indexes. It returns nil if there is no such base.
func whole(ctx context.Context, g *reader.Group, indexes []uint64, names map[string]bucket.Info) (*reader.Group,
	error) {
	for g.Base() != nil {
		var err error
		if g, err = g.BeforeBase(ctx); err != nil {
			return nil, err
		}
		if !exist(g, names) {
			continue
		}
		for _, index := range indexes {
			if err := g.Check(ctx, index); err == nil || !errors.Is(err, reader.ErrRefused) {
				return g, err
			}
		}
	}
	return nil, nil
}

// exist reports whether all segments of a group exist. The blobs of a group are deleted after its segments.
func exist(g *reader.Group, names map[string]bucket.Info) bool {
	for _, ref := range g.Segments() {
		id, err := object.ParseSegmentID(ref.ID)
		if err != nil {
			return false
		}
		if _, ok := names[object.SegmentName(g.UUID, ref.First, ref.Last, id)]; !ok {
			return false
		}
	}
	return true
}

// remake creates a base in place of the one that is in effect. It makes it from the group as it was before.
func (s *Store) remake(ctx context.Context, g, before *reader.Group, points []Point, opts *Options,
	names map[string]bucket.Info) error {
	bound, err := before.LastVersion(ctx, opts.Now().Add(-opts.Window).UnixNano())
	if err != nil {
		return err
	}
	r := &rewriting{store: s, group: before, bound: bound, bytes: opts.segmentBytes, now: opts.Now()}
	for _, ref := range g.Base().Replaces { // at least as much as the overlooking base replaces
		bound = max(bound, ref.Last)
	}
	n, _ := before.Apart(bound)
	r.prefix = before.Segments()[:n]
	for _, ref := range r.prefix {
		r.end = max(r.end, ref.Last)
	}
	if err := r.readable(ctx, points); err != nil {
		return err
	}
	if err := r.choose(ctx); err != nil {
		return err
	}
	return r.write(ctx, names)
}
