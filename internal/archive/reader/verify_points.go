package reader

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
)

// isSmall reports whether the objects of a kind have a header alone, and belong to no chain of objects.
func isSmall(kind object.Kind) bool {
	switch kind {
	case object.KindBase, object.KindPoint, object.KindUse, object.KindDrop, object.KindDrill:
		return true
	}
	return false
}

// small checks the small kinds of objects: bases, points, uses, drops and drills.
func (v *verifier) small(ctx context.Context) {
	var points []*object.Point
	dropped := map[string]int64{} // for each object, the time of the latest drop that lists it
	for _, name := range slices.Sorted(maps.Keys(v.names)) {
		kind, ok := KindOf(name)
		if !ok || !isSmall(kind) {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		v.used[name] = true
		v.report.Bytes += v.names[name]
		o, err := v.a.Object(ctx, name)
		if kind == object.KindUse && IsMissing(err) {
			continue // a reader has ended since the listing
		}
		if err != nil {
			v.problem(nil, err)
			continue
		}
		switch h := o.Header.(type) {
		case *object.Drop:
			for _, listed := range h.Objects {
				dropped[listed] = max(dropped[listed], h.Time)
			}
		case *object.Point:
			if h.Name != strings.TrimPrefix(name, object.PointPrefix) {
				v.problem(nil, fmt.Errorf("object %s: %w: it is the point %s", name, object.ErrForeign, h.Name))
				continue
			}
			points = append(points, h)
		case *object.Drill:
			if name != object.DrillName(h.Time) {
				v.problem(nil, fmt.Errorf("object %s: %w: it is the drill %d", name, object.ErrForeign, h.Time))
			}
		}
	}
	for _, p := range points {
		v.report.Points++
		if at := dropped[object.PointPrefix+p.Name]; at == 0 || at < p.Created {
			v.point(ctx, p)
		}
	}
}

// point checks that each group can be read as of a point.
func (v *verifier) point(ctx context.Context, p *object.Point) {
	for _, in := range p.Groups {
		g, err := v.a.Group(ctx, in.Group)
		if err == nil {
			err = g.Check(ctx, in.Index)
		}
		if err != nil {
			v.problem(&Group{UUID: in.Group, Name: in.Name}, fmt.Errorf("point %s: %w", p.Name, err))
		}
	}
}

// Point returns the index of each group in a point. It returns fs.ErrNotExist if there is no point with this name.
func (a *Archive) Point(ctx context.Context, name string) (map[uuid.UUID]uint64, error) {
	p, err := a.NamedPoint(ctx, name)
	if err != nil {
		return nil, err
	}
	groups := make(map[uuid.UUID]uint64, len(p.Groups))
	for _, g := range p.Groups {
		groups[g.Group] = g.Index
	}
	return groups, nil
}

// NamedPoint reads a point. It returns fs.ErrNotExist if there is no point with this name.
func (a *Archive) NamedPoint(ctx context.Context, name string) (*object.Point, error) {
	if err := object.CheckPointName(name); err != nil {
		return nil, err
	}
	o, err := a.Object(ctx, object.PointPrefix+name)
	if err != nil {
		return nil, err
	}
	p, ok := o.Header.(*object.Point)
	if !ok || p.Name != name {
		return nil, fmt.Errorf("object %s%s: %w: it is another point", object.PointPrefix, name, object.ErrForeign)
	}
	return p, nil
}
