package prune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/pieces"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// mergeSegments is the number of segments from which a group is rewritten even if no version can be left out.
const mergeSegments = 64

// rewriting creates a new base for one group.
type rewriting struct {
	store   *Store
	group   *reader.Group
	points  []uint64 // indexes that must remain readable, in increasing order
	prefix  []object.SegmentRef
	end     uint64 // last index of prefix; reads as of an index at or above it remain exact
	bound   uint64 // index of the last version before the window begins; this version is kept
	bytes   int64  // size in bytes at which a segment of the new base ends
	now     time.Time
	keep    []uint64 // indexes of the versions that are kept, in increasing order
	dropped int64    // number of versions that are left out
}

// version is a put or delete in the prefix.
type version struct {
	id      int64
	index   uint64
	deleted bool
}

// rewrite replaces a group's oldest segments, if worthwhile. It reads them twice, and needs 32 bytes of memory for
// each of their versions. It returns the number of versions that it left out. If it cannot rewrite the group, although
// the group may have versions that nothing needs, it returns the reason.
func (s *Store) rewrite(ctx context.Context, g *reader.Group, points []Point, window time.Time, opts *Options,
	names map[string]bucket.Info) (left int64, why string, err error) {
	switch _, number := g.Catalogue(); {
	case number == 0:
		return 0, "it has no catalogue yet", nil
	case g.Missing != "":
		return 0, "its archive is not whole: " + g.Missing, nil
	}
	bound, err := g.LastVersion(ctx, window.UnixNano())
	if err != nil || bound <= g.Floor {
		return 0, "", err
	}
	r := &rewriting{store: s, group: g, bound: bound, bytes: opts.segmentBytes, now: opts.Now()}
	n, crossed := g.Apart(bound)
	r.prefix = g.Segments()[:n]
	for _, ref := range r.prefix {
		r.end = max(r.end, ref.Last)
	}
	switch isDue := r.end > g.Floor && r.worthIt(); {
	case !isDue && crossed:
		return 0, "objects with deletes that were added later overlap with others, and one of them is in the window", nil
	case !isDue:
		return 0, "", nil
	}
	left, err = r.rewrite(ctx, points, opts.DryRun, names)
	return left, "", err
}

// rewrite replaces the prefix, if versions can be left out of it or it has many segments.
func (r *rewriting) rewrite(ctx context.Context, points []Point, dryRun bool, names map[string]bucket.Info) (left int64,
	err error) {
	if err := r.readable(ctx, points); err != nil {
		return 0, err
	}
	if err := r.choose(ctx); err != nil || r.dropped == 0 && len(r.prefix) < mergeSegments {
		return 0, err
	}
	if dryRun {
		return r.dropped, nil
	}
	return r.dropped, r.write(ctx, names)
}

// worthIt reports whether the prefix has at least as much data from outside the base as from the base. This limits
// how often a version is rewritten, and keeps the unneeded data from exceeding the needed data.
func (r *rewriting) worthIt() bool {
	based := map[string]bool{}
	if b := r.group.Base(); b != nil {
		for _, ref := range b.Segments {
			based[ref.ID] = true
		}
	}
	var old, fresh int64
	for _, ref := range r.prefix {
		if based[ref.ID] {
			old += ref.Bytes
		} else {
			fresh += ref.Bytes
		}
	}
	return fresh > 0 && fresh >= old
}

// readable collects the indexes at which points read the group and which can be read now. These indexes must remain
// readable.
func (r *rewriting) readable(ctx context.Context, points []Point) error {
	for _, p := range points {
		for _, in := range p.Groups {
			if in.Group != r.group.UUID || in.Index >= r.end {
				continue
			}
			err := r.group.Check(ctx, in.Index)
			if err == nil {
				r.points = append(r.points, in.Index)
			} else if !errors.Is(err, reader.ErrRefused) {
				return err
			}
		}
	}
	slices.Sort(r.points)
	r.points = slices.Compact(r.points)
	return nil
}

// choose decides which versions are kept. These are the versions that a read returns as of a point, or as of the end
// of the prefix or a later index, and the deletes that hide an older version that is kept. The last version before
// the window is also kept, so that times in the window correspond to the same indexes as before.
func (r *rewriting) choose(ctx context.Context) error {
	var versions []version
	err := r.group.WalkSegments(ctx, len(r.prefix), func(e *format.Entry, _ []byte) error {
		if e.Kind.IsVersion() {
			versions = append(versions, version{id: e.ID, index: e.Index, deleted: e.Kind == format.KindDelete})
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(versions, func(a, b version) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.index, b.index))
	})
	older := false // whether an older version of the record is kept
	for i, v := range versions {
		if i == 0 || versions[i-1].id != v.id {
			older = false
		}
		newest := i+1 == len(versions) || versions[i+1].id != v.id
		needed := newest || r.pointIn(v.index, versions[min(i+1, len(versions)-1)].index)
		if needed && (!v.deleted || older) || v.index == r.bound {
			r.keep = append(r.keep, v.index)
			older = true
			continue
		}
		r.dropped++
	}
	slices.Sort(r.keep)
	return nil
}

// pointIn reports whether a point reads the group as of an index in the range [from, to).
func (r *rewriting) pointIn(from, to uint64) bool {
	i, _ := slices.BinarySearch(r.points, from)
	return i < len(r.points) && r.points[i] < to
}

// write creates the new segments, and then the base that puts them into effect.
func (r *rewriting) write(ctx context.Context, names map[string]bucket.Info) error {
	g := r.group
	base := &object.Base{Group: g.UUID, Name: g.Name, Replaces: r.replaces(), Segments: []object.SegmentRef{}}
	base.Floor, base.Holes = r.history()
	gone := map[uuid.UUID]bool{}
	var b *pieces.Builder
	flush := func() error {
		if b == nil || b.Empty() {
			return nil
		}
		ref, err := r.segment(ctx, b, base.Floor)
		base.Segments, b = append(base.Segments, ref), nil
		return err
	}
	err := g.WalkSegments(ctx, len(r.prefix), func(e *format.Entry, frame []byte) error {
		blob, err := e.BlobRef()
		if err != nil {
			return err
		}
		if _, ok := slices.BinarySearch(r.keep, e.Index); !ok {
			if blob != nil {
				gone[blob.ID] = true
			}
			return nil
		}
		if b != nil && b.Bytes() >= r.bytes {
			if err := flush(); err != nil {
				return err
			}
		}
		if b == nil {
			b = pieces.NewBuilder(r.store.UUID, g.UUID, r.now)
		}
		err = b.Copy(e, frame)
		if errors.Is(err, pieces.ErrSpan) {
			if err := flush(); err != nil {
				return err
			}
			b = pieces.NewBuilder(r.store.UUID, g.UUID, r.now)
			err = b.Copy(e, frame)
		}
		return err
	})
	if err == nil {
		err = flush()
	}
	if err != nil {
		return err
	}
	base.Blobs = r.blobs(gone, names)
	number := uint64(1)
	for name := range names {
		if id, n, ok := object.ParseBaseName(name); ok && id == g.UUID {
			number = max(number, n+1)
		}
	}
	_, err = r.store.create(ctx, object.BaseName(g.UUID, number), base, nil)
	return err
}

// replaces returns the catalogue's segments that the new base replaces. These are the segments that the previous base
// replaced, and the segments of the prefix that are not from a base.
func (r *rewriting) replaces() (refs []object.SegmentRef) {
	replaced := map[object.SegmentRef]bool{}
	if b := r.group.Base(); b != nil {
		for _, ref := range b.Replaces {
			replaced[ref] = true
		}
	}
	for _, ref := range r.prefix {
		replaced[ref] = true
	}
	c, _ := r.group.Catalogue()
	for _, ref := range c.Segments {
		if replaced[ref] {
			refs = append(refs, ref)
		}
	}
	return refs
}

// history returns the floor and the holes of the new base. Reads are exact as of the points' indexes, and from the
// end of the prefix on.
func (r *rewriting) history() (floor uint64, holes []object.Hole) {
	exact := append(slices.Clone(r.points), r.end)
	floor = max(exact[0], r.group.Floor)
	if b := r.group.Base(); b != nil {
		holes = slices.Clone(b.Holes)
	}
	for i := 1; i < len(exact); i++ {
		if from, to := exact[i-1]+1, exact[i]; from < to {
			holes = append(holes, object.Hole{From: from, To: to})
		}
	}
	return floor, slices.DeleteFunc(holes, func(h object.Hole) bool { return h.To <= floor })
}

// segment creates one segment object.
func (r *rewriting) segment(ctx context.Context, b *pieces.Builder, floor uint64) (object.SegmentRef, error) {
	body, err := b.Finish()
	if err != nil {
		return object.SegmentRef{}, err
	}
	span, id := b.Range(), b.ID()
	span.Name, span.Floor = r.group.Name, floor
	size, err := r.store.create(ctx, object.SegmentName(span.Group, span.First, span.Last, id),
		&object.Segment{Range: span, Made: object.MadeByRoll}, body)
	return object.SegmentRef{First: span.First, Last: span.Last, ID: fmt.Sprintf("%x", id[:]), Bytes: size}, err
}

// blobs returns the blobs to which no entry refers any more. These are the blobs of the entries that were left out,
// and those blobs that the previous base lists and that still exist.
func (r *rewriting) blobs(gone map[uuid.UUID]bool, names map[string]bucket.Info) []uuid.UUID {
	if b := r.group.Base(); b != nil {
		for _, id := range b.Blobs {
			if _, ok := names[object.BlobName(r.group.UUID, id)]; ok {
				gone[id] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(gone), func(a, b uuid.UUID) int { return strings.Compare(a.String(), b.String()) })
}
