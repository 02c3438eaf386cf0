package reader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sort"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// ErrRefused means that an archive has no exact answer as of an index or a time. The error is a *RefusedError.
var ErrRefused = errors.New("the archive cannot answer exactly")

// RefusedError says why a group cannot be read as of an index or a time, and names the nearest points that can be
// read instead.
type RefusedError struct {
	Group   uuid.UUID
	Name    string
	Asked   string       // the requested index or time
	Why     string       // the reason; Asked followed by Why is a sentence
	Hole    *object.Hole // the hole that contains Asked, or nil
	Earlier Point        // last readable point before Asked; zero if there is none or it is unknown
	Later   Point        // first readable point after Asked; zero if there is none or it is unknown
}

// Point is an index of a group, and a time that corresponds to it. Time is zero if it is unknown.
type Point struct {
	Index uint64
	Time  time.Time
}

// String formats the point for messages.
func (p Point) String() string {
	if p.Time.IsZero() {
		return fmt.Sprintf("index %d", p.Index)
	}
	return fmt.Sprintf("index %d, time %s", p.Index, formatTime(p.Time))
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func (e *RefusedError) Error() string {
	var nearest []string
	for _, p := range []Point{e.Earlier, e.Later} {
		if p != (Point{}) {
			nearest = append(nearest, p.String())
		}
	}
	text := fmt.Sprintf("group %s (%s): %s %s", e.Name, e.Group, e.Asked, e.Why)
	if len(nearest) > 0 {
		text += ": the nearest that can be read: " + strings.Join(nearest, "; or ")
	}
	return text
}

// Is makes errors.Is(err, ErrRefused) true.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

func (g *Group) refuse(asked, why string) *RefusedError {
	return &RefusedError{Group: g.UUID, Name: g.Name, Asked: asked, Why: why}
}

// Check returns nil if reads as of an index are exact, and otherwise a *RefusedError.
func (g *Group) Check(ctx context.Context, index uint64) error {
	return g.check(ctx, fmt.Sprintf("index %d", index), index, index)
}

// check refuses a read if the archive cannot answer it exactly. The index of the read is only known to be between lo
// and hi, because compaction may have dropped entries between the archived ones.
func (g *Group) check(ctx context.Context, asked string, lo, hi uint64) error {
	if hi > g.Through {
		return g.beyond(asked)
	}
	if g.catalogue.Covered != 0 {
		return g.refuse(asked, "is not archived any more: the group was deleted, and its history was pruned")
	}
	if lo < g.Floor {
		refused := g.refuse(asked, fmt.Sprintf("is below the history floor, index %d, under which versions are missing",
			g.Floor))
		refused.Later = g.pointFrom(ctx, g.Floor)
		return refused
	}
	for _, h := range g.Holes {
		if lo >= h.To || hi < h.From {
			continue
		}
		refused := g.refuse(asked, fmt.Sprintf("is in the hole from index %d to %d, in which versions may be missing", h.From,
			h.To))
		refused.Hole = &h
		if h.From > g.Floor {
			refused.Earlier = g.pointBefore(ctx, h.From)
		}
		refused.Later = g.pointFrom(ctx, h.To)
		return refused
	}
	return nil
}

// beyond returns the error for a read as of an index or time that is not archived.
func (g *Group) beyond(asked string) error {
	why := "is not archived yet"
	switch {
	case g.Missing != "":
		why = "is not archived: " + g.Missing
	case g.Gone:
		why = "is not archived: the group was deleted"
	}
	refused := g.refuse(asked, why)
	if g.catalogue.Covered != 0 {
		return refused
	}
	refused.Earlier = Point{Index: g.Through, Time: g.Covered}
	return refused
}

// At returns the index that corresponds to a time, which is the index of the last entry committed at or before that
// time. It returns a *RefusedError if the time is not covered, is before the floor, or is in a hole.
func (g *Group) At(ctx context.Context, t time.Time) (uint64, error) {
	asked := "time " + formatTime(t)
	lo, hi, err := g.bounds(ctx, t)
	if err != nil {
		return 0, err
	}
	if t.After(g.Covered) {
		return 0, g.beyond(asked)
	}
	return lo, g.check(ctx, asked, lo, hi)
}

// bounds returns two indexes. The last entry that was committed at or before the given time is between them.
func (g *Group) bounds(ctx context.Context, t time.Time) (lo, hi uint64, err error) {
	nanos := t.UnixNano()
	if g.overlaps() {
		lo, hi, err = g.boundsOfAll(ctx, nanos)
	} else {
		lo, hi, err = g.boundsInOrder(ctx, nanos)
	}
	if err != nil {
		return 0, 0, err
	}
	// At the time readAt of a piece, all entries up to the index from which the piece continues had been committed. If
	// readAt is not later than the given time, the index that is searched for is therefore not below that index.
	for _, p := range g.reads {
		if p.readAt != 0 && p.readAt <= nanos && p.after <= hi {
			lo = max(lo, p.after)
		}
	}
	return lo, max(hi, lo), nil
}

// overlaps reports whether several objects of the group may contain the same index.
func (g *Group) overlaps() bool { return overlap(g.sources) }

func overlap(sources []*source) bool {
	last := uint64(0)
	for _, s := range sources {
		if s.Last != 0 && s.First <= last {
			return true
		}
		last = max(last, s.Last)
	}
	return false
}

// boundsOfAll searches all sources. It returns the index of the last put or delete committed at or before a time, and
// the index before the first one committed after that time.
func (g *Group) boundsOfAll(ctx context.Context, nanos int64) (lo, hi uint64, err error) {
	hi = g.Through
	err = g.versionsUpTo(ctx, g.Through, func(e *format.Entry, _ *source) error {
		if e.CommitTime <= nanos {
			lo = max(lo, e.Index)
		} else {
			hi = min(hi, e.Index-1)
		}
		return nil
	})
	return lo, hi, err
}

// boundsInOrder is like boundsOfAll for sources that do not overlap. It reads only the two sources between which the
// time falls.
func (g *Group) boundsInOrder(ctx context.Context, nanos int64) (lo, hi uint64, err error) {
	at, err := g.firstSource(ctx, func(s *source) bool { return s.LastCommit > nanos })
	if err != nil {
		return 0, 0, err
	}
	hi = g.Through
	if at < len(g.sources) {
		found, err := g.firstVersion(ctx, g.sources[at], func(e *format.Entry) bool { return e.CommitTime > nanos })
		if err != nil {
			return 0, 0, err
		}
		if found == nil {
			return 0, 0, fmt.Errorf("object %s: %w: no entry has the last commit time of its header", g.sources[at].name,
				object.ErrCorrupt)
		}
		hi = found.Index - 1
	}
	for i := min(at, len(g.sources)-1); i >= 0 && lo == 0; i-- {
		s := g.sources[i]
		if err := s.describe(ctx, g.archive.folder); err != nil {
			return 0, 0, err
		}
		if s.Records == 0 || s.FirstCommit > nanos {
			continue
		}
		last, err := g.lastVersion(ctx, s, func(e *format.Entry) bool { return e.CommitTime <= nanos })
		if err != nil {
			return 0, 0, err
		}
		if last != nil {
			lo = last.Index
		}
	}
	return lo, hi, nil
}

// firstSource returns the position of the first source with versions for which found returns true. The function found
// must then also return true for all later sources with versions. If there is no such source, firstSource returns
// len(g.sources).
func (g *Group) firstSource(ctx context.Context, found func(s *source) bool) (at int, err error) {
	at = sort.Search(len(g.sources), func(i int) bool {
		for ; i >= 0 && err == nil; i-- {
			s := g.sources[i]
			if err = s.describe(ctx, g.archive.folder); err == nil && s.Records > 0 {
				return found(s)
			}
		}
		return false
	})
	return at, err
}

// firstVersion returns the first put or delete of a source for which found returns true, or nil if there is none.
func (g *Group) firstVersion(ctx context.Context, s *source, found func(e *format.Entry) bool) (v *format.Entry,
	err error) {
	err = s.walk(ctx, g.archive.folder, func(e *format.Entry) error {
		if e.Kind.IsVersion() && found(e) {
			v = &format.Entry{Index: e.Index, CommitTime: e.CommitTime}
			return errStop
		}
		return nil
	})
	return v, err
}

// lastVersion returns the last put or delete of a source before the first one for which found returns false. It
// returns nil if there is none.
func (g *Group) lastVersion(ctx context.Context, s *source, found func(e *format.Entry) bool) (v *format.Entry,
	err error) {
	err = s.walk(ctx, g.archive.folder, func(e *format.Entry) error {
		switch {
		case !e.Kind.IsVersion():
		case !found(e):
			return errStop
		default:
			v = &format.Entry{Index: e.Index, CommitTime: e.CommitTime}
		}
		return nil
	})
	return v, err
}

// First returns the history floor, and the first time as of which the group can be read. The time is zero if it is
// unknown, or if the bucket cannot be read.
func (g *Group) First(ctx context.Context) Point { return g.pointFrom(ctx, g.Floor) }

// pointFrom returns an index, and the first time that corresponds to that index or a later one. The time is zero if
// it is unknown, or if the bucket cannot be read. An error does not matter, because the caller already reports
// another one.
func (g *Group) pointFrom(ctx context.Context, index uint64) Point {
	if index > g.Through {
		return Point{}
	}
	p := Point{Index: index}
	nanos := int64(math.MaxInt64)
	at, err := g.firstSource(ctx, func(s *source) bool { return s.Last >= index })
	for ; err == nil && at < len(g.sources) && nanos == math.MaxInt64; at++ {
		var v *format.Entry
		v, err = g.firstVersion(ctx, g.sources[at], func(e *format.Entry) bool { return e.Index >= index })
		if v != nil {
			nanos = v.CommitTime
		}
	}
	for _, r := range g.reads {
		if r.after >= index && r.readAt != 0 {
			nanos = min(nanos, r.readAt)
		}
	}
	if err == nil && nanos != math.MaxInt64 {
		p.Time = g.readable(ctx, nanos)
	}
	return p
}

// pointBefore returns the index before a hole, and the last time that corresponds to that index or an earlier one.
func (g *Group) pointBefore(ctx context.Context, from uint64) Point {
	p := Point{Index: from - 1}
	var last *format.Entry
	for i := len(g.sources) - 1; i >= 0 && last == nil; i-- {
		s := g.sources[i]
		if s.First > from || s.Last == 0 {
			continue
		}
		v, err := g.lastVersion(ctx, s, func(e *format.Entry) bool { return e.Index <= from })
		if err != nil {
			return p
		}
		last = v
	}
	if last != nil {
		p.Time = g.readable(ctx, last.CommitTime-1)
	}
	return p
}

// readable returns the given time if the group can be read as of it, and otherwise the zero time.
func (g *Group) readable(ctx context.Context, nanos int64) time.Time {
	t := time.Unix(0, nanos).UTC()
	lo, hi, err := g.bounds(ctx, t)
	if err != nil || lo < g.Floor || hi > g.Through || t.After(g.Covered) {
		return time.Time{}
	}
	for _, h := range g.Holes {
		if lo < h.To && hi >= h.From {
			return time.Time{}
		}
	}
	return t
}
