package prune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
)

// Point is a point of an archive, together with its state.
type Point struct {
	object.Point
	Dropped bool // a drop lists the point, so the point is no longer kept
}

// PointSpec describes the point that CreatePoint creates.
type PointSpec struct {
	Name  string
	Time  time.Time // if zero, the time up to which all groups are archived
	Until time.Time // if zero, the point is kept until it is dropped
	Made  string    // object.MadeByHand or object.MadeBySchedule
	Facts []object.Fact
}

// CreatePoint creates a point. It returns an error if some group cannot be read exactly as of the point's time. It
// returns ErrOther if a point with this name exists.
//
// A Run that rewrites a group meanwhile may not have seen the point. So the groups are checked again once the point
// exists. From then on, each Run sees the point before it lists anything for deletion (honour).
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
			continue // the group has been deleted since, but was already empty at that time, or did not exist
		}
		index, err := g.At(ctx, spec.Time)
		if err != nil {
			return nil, fmt.Errorf("point %s: %w", spec.Name, err)
		}
		p.Groups = append(p.Groups, object.PointGroup{Group: g.UUID, Name: g.Name, Index: index})
	}
	return p, s.Pin(ctx, p)
}

// Pin creates a point whose groups and indexes are known. It returns an error if some group cannot be read as of its
// index any more, and ErrOther if a point with this name exists.
func (s *Store) Pin(ctx context.Context, p *object.Point) error {
	name := object.PointPrefix + p.Name
	if _, err := s.create(ctx, name, p, nil); err != nil {
		return err
	}
	if err := s.checkPoint(ctx, p); err != nil {
		err = fmt.Errorf("point %s: the archive was pruned while the point was created, and the point is not kept: choose "+
			"another name, and a time that can still be read: %w", p.Name, err)
		return errors.Join(err, s.createDrop(ctx, []string{name}, unix(p.Created)))
	}
	return nil
}

// checkPoint returns an error if a group cannot be read as of a point.
func (s *Store) checkPoint(ctx context.Context, p *object.Point) error {
	a, err := s.open(ctx)
	if err != nil {
		return err
	}
	for _, in := range p.Groups {
		g, err := a.Group(ctx, in.Group)
		if err == nil {
			err = g.Check(ctx, in.Index)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Points returns the points of an archive, ordered by time.
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
		// A drop that is older than this point refers to an earlier point with the same name.
		dropped := slices.ContainsFunc(drops, func(d drop) bool {
			return d.Time >= h.Created && slices.Contains(d.Objects, info.Name)
		})
		points = append(points, Point{Point: *h, Dropped: dropped})
	}
	slices.SortStableFunc(points, func(a, b Point) int { return cmp.Compare(a.Time, b.Time) })
	return points, nil
}

// DropPoint lists a point in a drop. From then on the point is not kept, and a Run at least a day later deletes it.
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

// kept returns the points that must be kept, newest first. It leaves out dropped and expired points. Of the scheduled
// points, it returns only the newest ones, at most as many as the argument scheduled says.
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
