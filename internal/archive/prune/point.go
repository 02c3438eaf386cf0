package prune

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
)

// Point is a point of an archive.
type Point struct {
	object.Point
	Dropped bool // a drop lists it: it is not kept any more
}

// PointSpec says which point CreatePoint makes.
type PointSpec struct {
	Name  string
	Time  time.Time // zero: the time up to which all groups are archived
	Until time.Time // zero: kept until it is dropped
	Made  string    // object.MadeByHand or object.MadeBySchedule
	Facts []object.Fact
}

// CreatePoint makes a point. It refuses a time as of which a group cannot be read exactly. It returns ErrOther if there
// is a point of this name.
func (s *Store) CreatePoint(ctx context.Context, spec PointSpec, now time.Time) (*object.Point, error) {
	if err := object.CheckPointName(spec.Name); err != nil {
		return nil, err
	}
	a, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	groups, err := a.Groups(ctx)
	if err != nil {
		return nil, err
	}
	if spec.Time.IsZero() {
		if spec.Time = reader.Covered(groups); spec.Time.IsZero() {
			return nil, fmt.Errorf("point %s: it is not known up to when the groups are archived: give a time", spec.Name)
		}
	}
	p := &object.Point{Name: spec.Name, Time: spec.Time.UnixNano(), Created: now.UnixNano(), Made: spec.Made,
		Facts: spec.Facts, Groups: []object.PointGroup{}}
	if !spec.Until.IsZero() {
		p.Until = spec.Until.UnixNano()
	}
	for _, g := range groups {
		if g.Gone && spec.Time.After(g.Covered) {
			continue // it held nothing, or did not exist
		}
		index, err := g.At(ctx, spec.Time)
		if err != nil {
			return nil, fmt.Errorf("point %s: %w", spec.Name, err)
		}
		p.Groups = append(p.Groups, object.PointGroup{Group: g.UUID, Name: g.Name, Index: index})
	}
	_, err = s.create(ctx, object.PointPrefix+spec.Name, p, nil)
	return p, err
}

// Points returns the points of an archive, in the order of their times.
func (s *Store) Points(ctx context.Context) ([]Point, error) {
	a, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	drops, err := s.drops(ctx, a)
	if err != nil {
		return nil, err
	}
	return s.points(ctx, a, drops)
}

func (s *Store) points(ctx context.Context, a *reader.Archive, drops []drop) (points []Point, err error) {
	for info, err := range s.folder().List(ctx, object.PointPrefix, "") {
		if err != nil {
			return nil, fmt.Errorf("listing the points: %w", err)
		}
		h, err := header[object.Point](ctx, a, info.Name)
		if err != nil {
			return nil, err
		}
		if h.Name != strings.TrimPrefix(info.Name, object.PointPrefix) {
			return nil, fmt.Errorf("object %s: %w: it is the point %s", info.Name, object.ErrForeign, h.Name)
		}
		// A drop that is older than the point listed an earlier point of this name.
		dropped := slices.ContainsFunc(drops, func(d drop) bool {
			return d.Time >= h.Created && slices.Contains(d.Objects, info.Name)
		})
		points = append(points, Point{Point: *h, Dropped: dropped})
	}
	slices.SortStableFunc(points, func(a, b Point) int { return cmp.Compare(a.Time, b.Time) })
	return points, nil
}

// DropPoint lists a point in a drop. It is not kept from then on, and deleted by a Run that is more than a day later.
func (s *Store) DropPoint(ctx context.Context, name string, now time.Time) error {
	if err := object.CheckPointName(name); err != nil {
		return err
	}
	points, err := s.Points(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(points, func(p Point) bool { return p.Name == name })
	switch {
	case at < 0:
		return fmt.Errorf("the archive has no point %q: %w", name, fs.ErrNotExist)
	case points[at].Dropped:
		return nil
	}
	return s.createDrop(ctx, []string{object.PointPrefix + name}, now)
}

// kept returns the points that are kept: those that are not dropped, have not ended, and are not too many.
func kept(points []Point, scheduled int, now time.Time) (keep []Point) {
	for _, p := range slices.Backward(points) { // newest first
		switch {
		case p.Dropped, p.Until != 0 && unix(p.Until).Before(now):
			continue
		case p.Made == object.MadeBySchedule:
			if scheduled == 0 {
				continue
			}
			scheduled--
		}
		keep = append(keep, p)
	}
	return keep
}
