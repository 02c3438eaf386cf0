package group

import (
	"context"
	"fmt"
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
)

// rewrite is one segment in place of neighbours, without some of their entries.
type rewrite struct {
	old []*segment // neighbours, in order
	// has the other ordinal of the pair (old[0]'s ^ 1), its file is durable, its image loaded; nil: nothing stays
	next  *segment
	moves []move // of all versions of old, in order
	to    *segio.Writer
}

// place is what stands in the list instead of the old ones.
func (r *rewrite) place() []*segment {
	if r.next == nil {
		return nil
	}
	return []*segment{r.next}
}

// move is what became of a version: kept at a new place, or dropped (to is 0).
type move struct {
	id       int64
	index    uint64
	from, to index.Loc
}

// editor puts rewritten segments into the places of the old ones. Compaction and the repair of a range have it, one of
// them at a time. What it changes it changes in the manifest first, and then in memory. It takes writer.mu for moments,
// places.swapping while places change, and state.mu within either.
type editor struct {
	gate   *gate
	w      *writer
	folder *folder
	state  *state
	places *places
	images *images
	hints  *hints
	memory *memory
}

// checkRoom makes sure that there is room on the disk for so many bytes, and in memory for a segment of so many entries
// and bytes.
func (e *editor) checkRoom(disk int64, entries int, bytes int64) error {
	if err := format.CheckRoom(e.folder.fs, e.folder.dir, disk, "a new segment"); err != nil {
		return err
	}
	return e.memory.askMore(entries, bytes)
}

// sealNow seals the active segment.
func (e *editor) sealNow() error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if err := e.gate.usable(); err != nil {
		return err
	}
	return format.NoSpace(e.w.seal())
}

// raiseTombstones makes durable that the tombstones up to a floor may go, before the first of them goes. It gives the
// floor that the manifest has then: a higher one, where it had that before.
func (e *editor) raiseTombstones(floor uint64) (uint64, error) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if had := e.folder.manifest.TombstoneFloor; floor <= had {
		return had, nil
	}
	err := e.gate.usable()
	if err == nil {
		err = format.NoSpace(e.w.amend(func(m *format.Manifest) { m.TombstoneFloor = floor }))
	}
	if err != nil {
		return 0, fmt.Errorf("tombstone floor: %w", err)
	}
	return floor, nil
}

// awaitHints waits until the hints on their way are written: each keeps its segment, and with it the room.
func (e *editor) awaitHints() {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.hints.writing.Wait()
}

// begin makes the file of the segment that takes the place of neighbours, of which old is the first.
func (e *editor) begin(old view) (*rewrite, error) {
	e.w.mu.Lock()
	next, err := e.folder.create(old.first, old.ordinal^1, true)
	e.w.mu.Unlock()
	if err != nil {
		return nil, format.NoSpace(err)
	}
	return &rewrite{old: []*segment{old.segment}, next: next, to: segio.NewWriter(next.file.Load(), next.manifest(),
		next.rows)}, nil
}

// finish makes the new segment durable, and loads its image. last is the last index of what it replaces.
func (e *editor) finish(ctx context.Context, r *rewrite, last uint64) error {
	err := r.to.Finish()
	if err == nil {
		err = e.images.load(ctx, r.next, r.to.Bytes)
	}
	r.next.bytes, r.next.last = r.to.Bytes, last
	r.next.counted(r.next.rows)
	return err
}

// swapChunk bounds how many places are changed without letting readers and writers in between.
const swapChunk = 1024

// swap puts a rewritten segment into the place of the old ones: first in the manifest (the commit point), then in
// memory. Raft's compaction floor rises to floor, which has this term; what is applied up to an index counts as
// committed. Readers of an old segment go on undisturbed; scans look for the new one. What supersedes an entry
// meanwhile is noticed. writer.mu is not held. Where it fails nothing has changed, and the new segment is discarded.
func (e *editor) swap(r *rewrite, floor, term, applied uint64) error {
	if err := e.swapManifest(r, floor, term, applied); err != nil {
		return format.NoSpace(err)
	}
	st := e.state
	e.places.swapping.Lock() // scans wait for the end
	defer e.places.swapping.Unlock()
	st.mu.Lock()
	for _, old := range r.old {
		old.moving = true
	}
	st.incoming = r.place()
	e.places.publish(st.listed())
	st.mu.Unlock()
	for chunk := range slices.Chunk(r.moves, swapChunk) {
		st.mu.Lock()
		for _, m := range chunk {
			st.moved(m.from, m.to, m.index)
			e.places.moved(m.id, m.from, m.to)
		}
		st.mu.Unlock()
	}
	st.mu.Lock()
	i := slices.Index(st.segments, r.old[0])
	st.segments = slices.Concat(st.segments[:i], r.place(), st.segments[i+len(r.old):])
	st.incoming = nil
	e.places.publish(st.listed())
	st.mu.Unlock()
	for _, old := range r.old {
		e.places.superseded.Add(-old.used.drop())
		e.folder.retire(old)
	}
	if r.next != nil {
		e.hints.writeLater(r.next)
	}
	return nil
}

// swapManifest is the commit point of swap.
func (e *editor) swapManifest(r *rewrite, floor, term, applied uint64) error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	err := e.gate.usable()
	if err == nil {
		err = e.w.amend(func(m *format.Manifest) {
			i := slices.IndexFunc(m.Segments, func(s format.ManifestSegment) bool { return s.Number == r.old[0].number })
			next := make([]format.ManifestSegment, 0, 1)
			for _, s := range r.place() {
				next = append(next, s.manifest())
			}
			m.Segments = slices.Replace(m.Segments, i, i+len(r.old), next...)
			if floor > m.CompactedThrough {
				m.CompactedThrough, m.CompactedTerm = floor, term
			}
			// Also where Raft has not told yet: Load applies no more than the hard state says.
			e.w.hard.Commit = max(e.w.hard.Commit, applied)
			m.HardState = e.w.hardForManifest()
		})
	}
	if err != nil {
		for _, next := range r.place() {
			e.folder.discardUnlessListed(next)
		}
		return err
	}
	e.state.mu.Lock()
	defer e.state.mu.Unlock()
	e.state.floor, e.state.floorTerm = e.folder.manifest.CompactedThrough, e.folder.manifest.CompactedTerm
	return nil
}
