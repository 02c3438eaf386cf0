package prune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
)

// Options of Run.
type Options struct {
	Window time.Duration    // reads as of times less than Window ago return the same results as before
	Points int              // number of scheduled points to keep
	DryRun bool             // if true, nothing is changed, and the Report says what would be done
	Now    func() time.Time // nil: time.Now

	segmentBytes int64 // size at which a segment of a base ends; 0 means 32 MiB
}

// Report describes what Run has done, or would do with Options.DryRun.
type Report struct {
	DryRun bool `json:"dryRun,omitempty"`
	// InUse describes a reader that uses the archive, in which case nothing more was done. It is empty if there is none.
	InUse        string   `json:"inUse,omitempty"`
	Groups       int      `json:"groups"`             // groups that got a new base
	Honoured     int      `json:"honoured"`           // groups whose base was made again for an overlooked point
	Forgotten    int      `json:"forgotten"`          // deleted groups whose whole history is no longer needed
	Versions     int64    `json:"versions"`           // puts and deletes that the new bases leave out
	Unpruned     []Left   `json:"unpruned,omitempty"` // groups that got no new base although they may need one
	Points       []string `json:"points"`             // points that are no longer kept
	Listed       int64    `json:"listed"`             // objects that are now listed in a drop, and were not before
	ListedBytes  int64    `json:"listedBytes"`        // of these
	Deleted      int64    `json:"deleted"`            // objects that a drop had listed for more than a day
	DeletedBytes int64    `json:"deletedBytes"`       // of these
}

// Left is a group that was left as it is.
type Left struct {
	Group uuid.UUID `json:"group"`
	Name  string    `json:"name"`
	Why   string    `json:"why"`
}

// logsKept is the number of log objects that are kept although the catalogues cover all of their pieces. They record
// up to which time idle groups are archived, and an archiver that starts continues the last one.
const logsKept = 200

// Run prunes an archive in two phases. It makes bases, and lists the objects that are no longer needed in a drop. It
// deletes the objects that earlier drops have listed for more than a day, if they are still not needed. While a use
// is valid, Run does nothing. If it is killed at any time, it can be run again.
func (s *Store) Run(ctx context.Context, opts Options) (*Report, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	opts.segmentBytes = cmp.Or(opts.segmentBytes, 32<<20)
	now := opts.Now()
	report := &Report{DryRun: opts.DryRun, Points: []string{}}
	a, err := s.open(ctx)
	if err != nil {
		return report, err
	}
	who, ended, err := s.inUse(ctx, a, now)
	if err != nil || who != "" {
		report.InUse = who
		return report, err
	}
	drops, err := s.drops(ctx, a)
	if err != nil {
		return report, err
	}
	points, err := s.points(ctx, a, drops)
	if err != nil {
		return report, err
	}
	keep := kept(points, opts.Points, now)
	useless := ended
	for _, p := range points {
		if !slices.ContainsFunc(keep, func(k Point) bool { return k.Name == p.Name }) {
			useless = append(useless, object.PointPrefix+p.Name)
			report.Points = append(report.Points, p.Name)
		}
	}
	if err := s.honour(ctx, keep, &opts, report); err != nil {
		return report, err
	}
	// This Run deletes only objects that were unnecessary even before it. The new bases make more objects unnecessary,
	// but readers that have just listed the archive still need those.
	f, err := s.find(ctx, useless)
	if err != nil {
		return report, err
	}
	// A reader creates its use before it lists the archive. So if there is no use now, a reader that begins later finds
	// the archive as find has found it, or as the archiver has extended it since.
	if report.InUse, _, err = s.inUse(ctx, a, now); err != nil || report.InUse != "" {
		return report, err
	}
	listed, err := s.delete(ctx, drops, f, &opts, report)
	if err != nil {
		return report, err
	}
	if err := s.bases(ctx, a, keep, &opts, report); err != nil {
		return report, err
	}
	// Points may have been created since this Run has read them. They are honoured before anything is listed for deletion.
	if points, err = s.points(ctx, a, drops); err != nil {
		return report, err
	}
	if !opts.DryRun { // a dry run has made no base, and has counted the earlier ones already
		if err := s.honour(ctx, kept(points, opts.Points, now), &opts, report); err != nil {
			return report, err
		}
	}
	if f, err = s.find(ctx, useless); err != nil {
		return report, err
	}
	if report.InUse, _, err = s.inUse(ctx, a, opts.Now()); err != nil || report.InUse != "" {
		return report, err
	}
	return report, s.listNew(ctx, listed, f, &opts, report)
}

// bases creates a new base for each group that needs one, and a last catalogue for each deleted group that nothing
// needs.
func (s *Store) bases(ctx context.Context, a *reader.Archive, points []Point, opts *Options, report *Report) error {
	groups, err := a.Groups(ctx)
	if err != nil {
		return err
	}
	names, err := s.list(ctx)
	if err != nil {
		return err
	}
	for _, g := range groups {
		isGone, err := s.forget(ctx, g, points, opts.Window, opts, names)
		if err != nil {
			return fmt.Errorf("prune %s: %w", g, err)
		}
		if isGone {
			report.Forgotten++
			continue
		}
		left, why, err := s.rewrite(ctx, g, points, opts.Now().Add(-opts.Window), opts, names)
		if err != nil {
			return fmt.Errorf("prune %s: %w", g, err)
		}
		if why != "" {
			report.Unpruned = append(report.Unpruned, Left{Group: g.UUID, Name: g.Name, Why: why})
		}
		if left > 0 {
			report.Groups++
			report.Versions += left
		}
	}
	return nil
}

// listNew creates a drop with the objects that are not needed and not listed yet.
func (s *Store) listNew(ctx context.Context, listed map[string]bool, f *finder, opts *Options, report *Report) error {
	var names []string
	for _, name := range f.useless {
		info, ok := f.names[name]
		if !ok || listed[name] {
			continue
		}
		names = append(names, name)
		report.Listed++
		report.ListedBytes += info.Bytes
	}
	if opts.DryRun || len(names) == 0 {
		return nil
	}
	return s.createDrop(ctx, names, opts.Now())
}

// delete deletes the objects that drops have listed for more than a day, if they are still not needed, and then those
// drops. It returns the objects that younger drops list. An object that is listed in an old and in a younger drop is
// deleted only when the younger drop is due.
func (s *Store) delete(ctx context.Context, drops []drop, f *finder, opts *Options, report *Report) (
	listed map[string]bool, err error) {
	useless := map[string]bool{}
	for _, name := range f.useless {
		useless[name] = true
	}
	listed = map[string]bool{}
	var due []*drop
	for i := range drops {
		if d := &drops[i]; d.due(opts.Now(), f.newest) {
			due = append(due, d)
			continue
		}
		for _, name := range drops[i].Objects {
			listed[name] = true
		}
	}
	for _, d := range due {
		for _, name := range d.Objects {
			info, ok := f.names[name]
			if !ok || !useless[name] || listed[name] {
				continue
			}
			report.Deleted++
			report.DeletedBytes += info.Bytes
			delete(f.names, name)
			if opts.DryRun {
				listed[name] = true // listNew must not count the object as well
				continue
			}
			if err := s.folder().Delete(ctx, name); err != nil {
				return nil, fmt.Errorf("delete %s: %w", name, err)
			}
		}
		if d == &drops[len(drops)-1] || opts.DryRun {
			continue // keep the newest drop, so that its number is not used again
		}
		if err := s.folder().Delete(ctx, d.name); err != nil {
			return nil, fmt.Errorf("delete %s: %w", d.name, err)
		}
	}
	return listed, nil
}

// finder finds the objects that nothing needs, in the order in which they must be deleted.
type finder struct {
	store   *Store
	names   map[string]bucket.Info // all objects
	newest  time.Time              // creation time of the newest object, according to the bucket's clock
	useless []string
}

// find reads the archive in its present state. The argument useless holds the names of points and uses that are not
// needed.
func (s *Store) find(ctx context.Context, useless []string) (*finder, error) {
	f := &finder{store: s, useless: slices.Clone(useless)}
	a, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	groups, err := a.Groups(ctx)
	if err != nil {
		return nil, err
	}
	if f.names, err = s.list(ctx); err != nil {
		return nil, err
	}
	f.newest = newestOf(f.names)
	f.logs(a, groups)
	var last []string // catalogues and bases, which must be deleted last because they show what else is not needed
	for _, g := range groups {
		more, err := f.group(ctx, a, g)
		if err != nil {
			return nil, err
		}
		last = append(last, more...)
	}
	f.useless = append(f.useless, last...)
	return f, nil
}

// logs adds those log objects whose pieces are all covered by catalogues, except the newest ones.
func (f *finder) logs(a *reader.Archive, groups []*reader.Group) {
	first, through := a.Logs()
	living := 0
	for _, g := range groups {
		c, number := g.Catalogue()
		if number == 0 {
			return // this group's history begins in a log object, so all log objects are needed
		}
		if !c.Gone { // a piece alone does not say it: the pieces of the group are needed until a catalogue has them
			through, living = min(through, c.Log), living+1
		}
	}
	for number := first; living > 0 && number != 0 && number+logsKept <= through; number++ {
		f.useless = append(f.useless, object.LogName(number))
	}
}

// group adds the unneeded objects of one group. It returns the names of the group's unneeded catalogues and bases.
func (f *finder) group(ctx context.Context, a *reader.Archive, g *reader.Group) (last []string, err error) {
	c, number := g.Catalogue()
	switch {
	case number == 0:
		return nil, nil
	case isForgotten(&c):
		return f.forgotten(g), nil
	}
	needed := map[object.SegmentRef]bool{}
	for _, ref := range g.Segments() {
		needed[ref] = true
	}
	listed := map[object.SegmentRef]bool{}
	for _, ref := range c.Segments {
		listed[ref] = true
	}
	if base := g.Base(); base != nil {
		for _, ref := range base.Replaces {
			f.segment(g.UUID, ref, needed)
		}
		for _, id := range base.Blobs {
			f.useless = append(f.useless, object.BlobName(g.UUID, id))
		}
	}
	for n := number - 1; n > 0; n-- {
		name := object.CatalogueName(g.UUID, n)
		if _, ok := f.names[name]; !ok {
			continue
		}
		old, err := header[object.Catalogue](ctx, a, name)
		switch {
		case errors.Is(err, object.ErrCorrupt):
			continue // keep a damaged catalogue, because a person has to examine it
		case err != nil:
			return nil, err
		case allIn(old.Segments, listed):
			last = append(last, name)
		}
	}
	bases, err := f.bases(ctx, a, g, needed)
	return append(last, bases...), err
}

// bases returns the names of those older bases of a group that the base in effect has superseded. It adds their
// unneeded segments.
func (f *finder) bases(ctx context.Context, a *reader.Archive, g *reader.Group, needed map[object.SegmentRef]bool) (
	last []string, err error) {
	counts := g.Base()
	if counts == nil {
		return nil, nil
	}
	replaced := map[object.SegmentRef]bool{}
	for _, ref := range counts.Replaces {
		replaced[ref] = true
	}
	newest := uint64(0)
	numbers := []uint64{}
	for name := range f.names {
		if id, n, ok := object.ParseBaseName(name); ok && id == g.UUID {
			numbers, newest = append(numbers, n), max(newest, n)
		}
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		if n == newest {
			continue
		}
		name := object.BaseName(g.UUID, n)
		old, err := header[object.Base](ctx, a, name)
		if err != nil {
			return nil, err
		}
		if !allIn(old.Replaces, replaced) {
			continue
		}
		for _, ref := range old.Segments {
			f.segment(g.UUID, ref, needed)
		}
		last = append(last, name)
	}
	return last, nil
}

// segment adds a segment object, unless the object is needed.
func (f *finder) segment(group uuid.UUID, ref object.SegmentRef, needed map[object.SegmentRef]bool) {
	id, err := object.ParseSegmentID(ref.ID)
	if err != nil || needed[ref] {
		return
	}
	f.useless = append(f.useless, object.SegmentName(group, ref.First, ref.Last, id))
}

func allIn(refs []object.SegmentRef, in map[object.SegmentRef]bool) bool {
	return !slices.ContainsFunc(refs, func(ref object.SegmentRef) bool { return !in[ref] })
}
