package prune

import (
	"context"
	"slices"
	"strings"
	"time"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
)

// forget removes the history of a deleted group from the archive. It creates a last catalogue without segments, so that
// nothing needs the group's other objects any more. The last catalogue stays for ever: it shows that the group existed,
// up to when, and that its history was pruned. Without it, a restore as of such a time would silently lack the group,
// and the group's pieces in log objects would look like a history whose beginning is missing.
//
// A history is forgotten if no point reads it and it ended before the window, both by this process's clock and by the
// bucket's, where the creation of the newest catalogue is the time of the end. forget reports whether it did so.
func (s *Store) forget(ctx context.Context, g *reader.Group, points []Point, window time.Duration, opts *Options,
	names map[string]bucket.Info) (bool, error) {
	c, number := g.Catalogue()
	if !c.Gone || isForgotten(&c) || !g.Covered.Before(opts.Now().Add(-window)) {
		return false, nil
	}
	info, ok := names[object.CatalogueName(g.UUID, number)]
	if !ok || !info.Created.Add(window).Before(newestOf(names)) {
		return false, nil
	}
	for _, p := range points {
		if slices.ContainsFunc(p.Groups, func(in object.PointGroup) bool { return in.Group == g.UUID }) {
			return false, nil
		}
	}
	if opts.DryRun {
		return true, nil
	}
	last := &object.Catalogue{Group: g.UUID, Name: g.Name, Segments: []object.SegmentRef{}, Through: g.Through,
		Floor: g.Through + 1, Log: c.Log, Gone: true}
	if !g.Covered.IsZero() {
		last.Covered = g.Covered.UnixNano()
	}
	// An archiver never creates another catalogue of a group that is deleted according to the newest one.
	_, err := s.create(ctx, object.CatalogueName(g.UUID, number+1), last, nil)
	return err == nil, err
}

// isForgotten reports whether a group was deleted, and nothing but its newest catalogue is needed.
func isForgotten(c *object.Catalogue) bool { return c.Gone && len(c.Segments) == 0 }

// forgotten adds all objects of a group whose history is forgotten, except its newest catalogue. It returns the names
// of those that must be deleted last.
func (f *finder) forgotten(g *reader.Group) (last []string) {
	_, number := g.Catalogue()
	for name := range f.names {
		if !strings.HasPrefix(name, object.GroupPrefix(g.UUID)) || name == object.CatalogueName(g.UUID, number) {
			continue
		}
		kind, ok := reader.KindOf(name)
		switch {
		case !ok:
		case kind == object.KindSegment || kind == object.KindBlob:
			f.useless = append(f.useless, name)
		default:
			last = append(last, name)
		}
	}
	slices.Sort(last)
	return last
}

// newestOf returns the time at which the newest object was created, by the bucket's clock.
func newestOf(names map[string]bucket.Info) (newest time.Time) {
	for _, info := range names {
		if info.Created.After(newest) {
			newest = info.Created
		}
	}
	return newest
}
