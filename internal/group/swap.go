package group

import (
	"context"
	"slices"

	"sheaf.dev/sheaf/internal/group/format"
	"sheaf.dev/sheaf/internal/group/segio"
	"sheaf.dev/sheaf/internal/index"
)

// rewrite is one segment in place of neighbours, without some of their entries.
type rewrite struct {
	old   []*segment // neighbours, in order
	next  *segment   // has the other ordinal of the pair (old[0]'s ^ 1), its file is durable, its image loaded; nil: nothing stays
	moves []move     // of all versions of old, in order
	to    *segio.Writer
}

// beginRewrite makes the file of the segment that takes the place of neighbours, of which old is the first.
func (l *Log) beginRewrite(old view) (*rewrite, error) {
	l.wmu.Lock()
	next, err := l.createSegmentAt(old.first, old.ordinal^1, true)
	l.wmu.Unlock()
	if err != nil {
		return nil, format.NoSpace(err)
	}
	return &rewrite{old: []*segment{old.segment}, next: next, to: segio.NewWriter(next.file.Load(), next.manifest(), next.rows)}, nil
}

// finishRewrite makes the new segment durable, and loads its image. last is the last index of what it replaces.
func (l *Log) finishRewrite(ctx context.Context, r *rewrite, last uint64) error {
	err := r.to.Finish()
	if err == nil {
		err = l.loadImage(ctx, r.next, r.to.Bytes)
	}
	r.next.bytes, r.next.last = r.to.Bytes, last
	r.next.counted(r.next.rows)
	return err
}

// move is what became of a version: kept at a new place, or dropped (to is 0).
type move struct {
	id       int64
	index    uint64
	from, to index.Loc
}

// swapChunk bounds how many places are changed without letting readers and writers in between.
const swapChunk = 1024

// swap puts rewritten segments into the places of the old ones: first in the manifest, which change may alter further
// (the commit point), then in memory. Readers of an old segment go on undisturbed; scans look for the new one. What
// supersedes an entry meanwhile is noticed. The caller holds compacting, not wmu. Where it fails nothing has changed,
// and the new segments are discarded.
func (l *Log) swap(rewrites []*rewrite, change func(*format.Manifest)) error {
	if err := l.swapManifest(rewrites, change); err != nil {
		return err
	}
	l.swapping.Lock() // scans wait for the end
	defer l.swapping.Unlock()
	l.mu.Lock()
	for _, r := range rewrites {
		for _, old := range r.old {
			old.moving = true
		}
		if r.next != nil {
			l.incoming = append(l.incoming, r.next)
		}
	}
	l.publishSegments()
	l.mu.Unlock()
	for _, r := range rewrites {
		for chunk := range slices.Chunk(r.moves, swapChunk) {
			l.mu.Lock()
			for _, m := range chunk {
				l.moved(m.id, m.from, m.to, m.index)
			}
			l.mu.Unlock()
		}
	}
	l.mu.Lock()
	for _, r := range rewrites {
		i := slices.Index(l.state.segments, r.old[0])
		l.state.segments = slices.Concat(l.state.segments[:i], r.place(), l.state.segments[i+len(r.old):])
	}
	l.incoming = nil
	l.publishSegments()
	l.mu.Unlock()
	for _, r := range rewrites {
		for _, old := range r.old {
			l.superseded.Add(-old.used.drop())
			l.retireSegment(old)
		}
		if r.next != nil {
			l.writeHintLater(r.next)
		}
	}
	return nil
}

// place is what stands in the list instead of the old ones.
func (r *rewrite) place() []*segment {
	if r.next == nil {
		return nil
	}
	return []*segment{r.next}
}

// swapManifest is the commit point of swap.
func (l *Log) swapManifest(rewrites []*rewrite, change func(*format.Manifest)) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	err := l.usable()
	if err == nil {
		err = l.settle()
	}
	if err == nil {
		err = l.writeManifest(func(m *format.Manifest) {
			for _, r := range rewrites {
				i := slices.IndexFunc(m.Segments, func(s format.ManifestSegment) bool { return s.Number == r.old[0].number })
				place := r.place()
				next := make([]format.ManifestSegment, 0, len(place))
				for _, s := range place {
					next = append(next, s.manifest())
				}
				m.Segments = slices.Replace(m.Segments, i, i+len(r.old), next...)
			}
			change(m)
		})
	}
	if err != nil {
		for _, r := range rewrites {
			for _, next := range r.place() {
				l.discardUnlessListed(next)
			}
		}
		return err
	}
	l.mu.Lock()
	l.state.floor, l.state.floorTerm = l.w.manifest.CompactedThrough, l.w.manifest.CompactedTerm
	l.mu.Unlock()
	return nil
}

// moved tells index, used flags and snapshots what became of an applied version. The caller holds mu.
func (l *Log) moved(id int64, from, to index.Loc, at uint64) {
	for _, s := range l.state.snapshots {
		s.moved(from, to, at)
	}
	if to == 0 {
		l.table.CompareAndDelete(id, from)
		return
	}
	if !l.table.CompareAndSwap(id, from, to) {
		l.lose(to)
	}
}
