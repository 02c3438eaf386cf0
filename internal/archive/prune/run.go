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
	Window time.Duration    // times that are younger than this stay readable as they are
	Points int              // how many points of a schedule are kept
	DryRun bool             // change nothing, and report what would be done
	Now    func() time.Time // nil: time.Now

	segmentBytes int64 // of a segment of a base, at which it ends; 0: 32 MiB
}

// Report says what Run has done, or would do.
type Report struct {
	DryRun bool `json:"dryRun,omitempty"`
	// InUse says who reads the archive; then nothing was done. Empty: nobody.
	InUse        string   `json:"inUse,omitempty"`
	Groups       int      `json:"groups"`       // groups that got a base
	Versions     int64    `json:"versions"`     // puts and deletes that their bases leave out
	Points       []string `json:"points"`       // points that are not kept any more
	Listed       int64    `json:"listed"`       // objects that a drop lists now, and did not before
	ListedBytes  int64    `json:"listedBytes"`  // of these
	Deleted      int64    `json:"deleted"`      // objects that were listed for more than a day
	DeletedBytes int64    `json:"deletedBytes"` // of these
}

// logsKept is how many log objects are kept that no catalogue leaves anything to read in. They tell when groups that
// are not written were read, and an archiver that starts continues the last one.
const logsKept = 200

// Run prunes an archive in two phases: it makes bases and lists what is not needed in a drop, and it deletes what
// earlier drops have listed for more than a day and is still not needed. While a use counts, it does nothing. It may be
// killed at any time, and run again.
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
	// What is deleted was not needed before this Run: a base that it makes may leave out more, which readers that have
	// just listed the archive still need.
	f, err := s.find(ctx, useless)
	if err != nil {
		return report, err
	}
	listed, err := s.delete(ctx, drops, f, &opts, report)
	if err != nil {
		return report, err
	}
	if err := s.bases(ctx, a, keep, &opts, report); err != nil {
		return report, err
	}
	if f, err = s.find(ctx, useless); err != nil {
		return report, err
	}
	return report, s.listNew(ctx, listed, f, &opts, report)
}

// bases makes the bases of all groups that need one.
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
		left, err := s.rewrite(ctx, g, points, opts.Now().Add(-opts.Window), opts, names)
		if err != nil {
			return fmt.Errorf("prune %s: %w", g, err)
		}
		if left > 0 {
			report.Groups++
			report.Versions += left
		}
	}
	return nil
}

// listNew lists in a drop what is not needed and not listed yet.
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

// delete deletes what drops have listed for more than a day, if it is still not needed, and then these drops. It
// returns what younger drops list. An object that an older drop lists, too, waits for the younger one.
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
				listed[name] = true // so that it is not counted as one to list
				continue
			}
			if err := s.folder().Delete(ctx, name); err != nil {
				return nil, fmt.Errorf("delete %s: %w", name, err)
			}
		}
		if d == &drops[len(drops)-1] || opts.DryRun {
			continue // the newest drop stays, so that no number is used twice
		}
		if err := s.folder().Delete(ctx, d.name); err != nil {
			return nil, fmt.Errorf("delete %s: %w", d.name, err)
		}
	}
	return listed, nil
}

// finder finds the objects that nothing needs, in the order in which they are to be deleted.
type finder struct {
	store   *Store
	names   map[string]bucket.Info // all objects
	newest  time.Time              // when the newest object was created, by the clock of the bucket
	useless []string
}

// find reads the archive as it is now. The argument has points and uses that are not needed.
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
	for _, info := range f.names {
		if info.Created.After(f.newest) {
			f.newest = info.Created
		}
	}
	f.logs(a, groups)
	var last []string // catalogues and bases: while they exist, they tell what else is not needed
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

// logs adds the log objects that no catalogue leaves anything to read in.
func (f *finder) logs(a *reader.Archive, groups []*reader.Group) {
	first, through := a.Logs()
	living := 0
	for _, g := range groups {
		c, number := g.Catalogue()
		if number == 0 {
			return // its history begins in a log object
		}
		if !g.Gone {
			through, living = min(through, c.Log), living+1
		}
	}
	for number := first; living > 0 && number != 0 && number+logsKept <= through; number++ {
		f.useless = append(f.useless, object.LogName(number))
	}
}

// group adds the objects of one group that are not needed, and returns its catalogues and bases that are not.
func (f *finder) group(ctx context.Context, a *reader.Archive, g *reader.Group) (last []string, err error) {
	c, number := g.Catalogue()
	if number == 0 {
		return nil, nil
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
			continue // a person has to look at it
		case err != nil:
			return nil, err
		case allIn(old.Segments, listed):
			last = append(last, name)
		}
	}
	bases, err := f.bases(ctx, a, g, needed)
	return append(last, bases...), err
}

// bases returns the older bases of a group whose segments the base that counts has replaced, and adds these segments.
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

// segment adds a segment object unless it is needed.
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
