package group

import (
	"context"
	"fmt"
	"slices"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
)

// rewrite describes the replacement of adjacent segments with one segment that lacks some of their entries.
type rewrite struct {
	old []*segment // the neighbouring segments, in order
	// next is the new segment. Its ordinal is that of old[0] with the lowest bit inverted. Its file is durable, and its
	// image is loaded. It is nil if no entry remains.
	next  *segment
	moves []move // the fate of each version in the old segments, in order
	// repairs means that the old segment has bad bytes, so that versions which snapshots see may be lost. These snapshots
	// end. The versions in restored are not lost: a peer has sent them. Only snapshots still need their old locations,
	// which moves therefore does not have.
	repairs  bool
	restored []move
	// history is the index to which the rewrite raises a lower history floor. It is 0 if no superseded version is
	// dropped. If it is above the applied index, the floor is raised only to the applied index.
	history uint64
	// obeysHold means that the rewrite keeps what the hold needs. If the hold has become lower than history since, the
	// swap is refused, because the rewrite has dropped versions that the hold needs now.
	obeysHold bool
	// tombstones is the index to which the rewrite raises a lower tombstone floor. It is 0 if the floor need not rise.
	tombstones uint64
	to         *segio.Writer
}

// place returns the segments that replace the old ones in the list.
func (r *rewrite) place() []*segment {
	if r.next == nil {
		return nil
	}
	return []*segment{r.next}
}

// move describes a version that a rewrite keeps at a new location or drops. If the version is dropped, the field `to`
// is 0.
type move struct {
	id       int64
	index    uint64
	from, to index.Loc
}

// editor replaces old segments with rewritten ones. Both compaction and range repairs use it, but only one of them at
// a time. It first changes the manifest, and then the state in memory. It locks writer.mu briefly, places.swapping
// while locations change, and state.mu while it holds either of these.
type editor struct {
	w      *writer
	folder *folder
	state  *state
	places *places
	images *images
	hints  *hints
	memory *memory
}

// checkSpace returns an error unless there is enough free disk space, and enough memory for a segment with the given
// numbers of entries and bytes.
func (e *editor) checkSpace(disk int64, entries int, bytes int64) error {
	if err := format.CheckFreeSpace(e.folder.fs, e.folder.dir, disk, "a new segment"); err != nil {
		return err
	}
	return e.memory.askMore(entries, bytes)
}

// raiseTombstones durably records that the tombstones up to a floor may be dropped, before the first of them is
// dropped. It returns the floor in the manifest, which may already have been higher.
func (e *editor) raiseTombstones(floor uint64) (uint64, error) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if had := e.folder.manifest.TombstoneFloor; floor <= had {
		return had, nil
	}
	err := e.w.gate.usable()
	if err == nil {
		err = format.MarkShortage(e.w.amend(func(m *format.Manifest) { m.TombstoneFloor = floor }))
	}
	if err != nil {
		return 0, fmt.Errorf("tombstone floor: %w", err)
	}
	return floor, nil
}

// awaitHints waits until all pending hints are written. A replaced segment occupies disk space until its pending hint
// is written.
func (e *editor) awaitHints() {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.hints.writing.Wait()
}

// begin creates the file of a segment that replaces adjacent segments. The argument old is the first of these.
func (e *editor) begin(old view) (*rewrite, error) {
	e.w.mu.Lock()
	next, err := e.folder.create(old.first, old.ordinal^1, true)
	e.w.mu.Unlock()
	if err != nil {
		return nil, format.MarkShortage(err)
	}
	return &rewrite{old: []*segment{old.segment}, next: next, to: segio.NewWriter(next.file.Load(), next.manifest(),
		next.rows)}, nil
}

// finish makes the new segment durable, and loads its image. The argument last is the last index of the segments that
// it replaces.
func (e *editor) finish(ctx context.Context, r *rewrite, last uint64) error {
	err := r.to.Finish()
	if err == nil {
		err = e.images.load(ctx, r.next, r.to.Bytes)
	}
	r.next.bytes, r.next.last = r.to.Bytes, last
	r.next.counted(r.next.rows)
	return err
}

// swapChunk is the number of locations that are changed before the lock is released for a moment, so that readers and
// writers can take it.
const swapChunk = 1024

// swap replaces the old segments with the new one, first in the manifest (the commit point), and then in memory. The
// arguments floor and term are Raft's new compaction floor and the term of the entry at the floor. Callers that are
// reading an old segment can continue, but scans look up the new one. Other goroutines may supersede entries during the
// swap. The caller must not hold writer.mu. If swap fails, it changes nothing and discards the new segment. It returns
// errConfAhead if an applied membership change is not in the manifest yet.
func (e *editor) swap(r *rewrite, floor, term uint64) error {
	if err := e.swapManifest(r, floor, term); err != nil {
		return format.MarkShortage(err)
	}
	st := e.state
	e.places.swapping.Lock() // makes scans wait until the swap has finished
	defer e.places.swapping.Unlock()
	st.mu.Lock()
	for _, old := range r.old {
		old.moving = true
	}
	st.incoming, st.shifting = r.place(), true
	st.shifts++
	e.places.publish(st.listed())
	st.mu.Unlock()
	for chunk := range slices.Chunk(r.moves, swapChunk) {
		st.mu.Lock()
		for _, m := range chunk {
			st.moved(m.id, m.from, m.to, m.index)
			e.places.moved(m.id, m.from, m.to)
		}
		st.mu.Unlock()
	}
	for chunk := range slices.Chunk(r.restored, swapChunk) {
		st.mu.Lock()
		for _, m := range chunk {
			st.moved(m.id, m.from, m.to, m.index)
		}
		st.mu.Unlock()
	}
	st.mu.Lock()
	i := slices.Index(st.segments, r.old[0])
	st.segments = slices.Concat(st.segments[:i], r.place(), st.segments[i+len(r.old):])
	st.incoming, st.shifting = nil, false
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
func (e *editor) swapManifest(r *rewrite, floor, term uint64) error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	err := e.w.gate.usable()
	if err == nil && r.obeysHold && e.state.holdIndex() < r.history {
		err = errHoldLowered
	}
	applied, confKnown := e.state.appliedWithConf()
	if err == nil && !confKnown {
		err = errConfAhead
	}
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
			// The commit becomes the applied index, because Load applies only entries up to the commit. A dropped version was
			// superseded by an applied entry. If a later load did not apply that entry again, the record would be missing.
			e.w.hard.Commit = max(e.w.hard.Commit, applied)
			m.HardState = e.w.hardForManifest()
			if m.HistoryKnown {
				m.HistoryFloor = max(m.HistoryFloor, min(r.history, applied))
			}
			m.TombstoneFloor = max(m.TombstoneFloor, r.tombstones)
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
	e.state.endPast(e.folder.manifest.HistoryFloor)
	if r.repairs {
		e.state.endLost(r)
	}
	return nil
}
