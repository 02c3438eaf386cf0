package archiver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/pieces"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// The code in this file brings a group's archive up to date if the store has dropped deletes that are not archived yet,
// or has lost entries and goes on without them. Entries alone are not enough then: the archive would keep records that
// were deleted, or versions that were lost. The group is copied again, and the copy is compared with the archive. The
// earlier history stays, and a hole tells that what was added is not exact.

// catchUp is what a group does about deletes that it has missed.
type catchUp int

const (
	catchUpNone catchUp = iota // the group continues with entries
	// catchUpDue means that the group's leader has said that deletes are missing. The group waits until all of its new
	// entries are in the bucket. If another leader, which has the deletes, answers first, the group continues with
	// entries.
	catchUpDue
	catchUpRuns // a copy was requested, and no new entries are taken
)

// copyAgainPause is how long the archiver waits after a failed attempt, because each attempt reads the group's archive.
const copyAgainPause = 5 * time.Minute

// position is where the archive of a group ends.
type position struct {
	index uint64
	floor uint64 // history floor of the archive
}

// copyAgain is the outcome of a further copy of a group.
type copyAgain struct {
	id     uuid.UUID
	failed bool                // the other fields are not set
	refs   []object.SegmentRef // segments with the entries above the position, and with the missing deletes
	index  uint64              // with these segments, the group is complete up to this index
	after  uint64              // the position
	exact  uint64              // reads as of the indexes above the position and below this one are not exact
}

// awaitsOwnCatalogue reports whether a group needs a catalogue of this archiver before it may be copied again. A
// predecessor may still create the catalogue after its own newest one (takeover.go). If it did so while the copy runs,
// or later, the archive would show records that were put behind the end with which the copy was compared, and of which
// neither the archive nor the copy has the delete. Once this archiver has created a catalogue, no predecessor can.
func (a *Archiver) awaitsOwnCatalogue(g *group) bool {
	return g.catchUp == catchUpDue && a.isEarlier(&g.catalogue)
}

// wantAgain requests further copies of the groups that need one, and of which all new entries are in the bucket.
func (a *Archiver) wantAgain(now time.Time) {
	for _, g := range a.sorted() {
		isStored := g.news == nil && len(g.fresh) == 0 && len(g.newHoles) == 0 && g.next == g.covered()
		if g.catchUp != catchUpDue || g.gone || !isStored || a.awaitsOwnCatalogue(g) || now.Before(g.copyAfter) {
			continue
		}
		g.catchUp = catchUpRuns
		a.opts.Log.Warn("deletes that are not archived yet may be missing in the store, or it has lost entries: the group "+
			"is copied again, and its archive gets a hole", "group", g.name, "archived", g.next)
		a.copies.want(wanted{id: g.id, again: &position{index: g.next, floor: g.catalogue.Floor}})
	}
}

// adoptAgain adds a further copy to its group. A log object records the hole before a catalogue lists the segments, so
// an archiver that was superseded adds nothing to the archive.
func (a *Archiver) adoptAgain(c *copyAgain) {
	g := a.groups[c.id]
	g.catchUp = catchUpNone
	switch {
	case c.failed:
		g.copyAfter = time.Now().Add(copyAgainPause)
		return
	case g.gone:
		return
	}
	if len(c.refs) > 0 {
		g.fresh, g.freshThrough = c.refs, c.index
	}
	g.next = c.index
	g.addHole(c.after, c.exact)
}

// copyGroupAgain archives the entries of a group above the position, and the deletes that the archive has missed. It
// creates only segments and blobs. No reader finds them before adoptAgain. If it fails, it also returns a result.
func (r *copyRunner) copyGroupAgain(ctx context.Context, w wanted) (_ *copyAgain, err error) {
	failed := &copyAgain{id: w.id, failed: true}
	end, err := r.archivedEnd(ctx, w)
	if err != nil {
		return failed, err
	}
	files, d, m, err := r.openCopy(ctx, w.id)
	if err != nil {
		return failed, err
	}
	defer r.closeCopy(files, w.id)
	// From this floor on, the files have the exact state of the group, and no delete is missing that is not superseded.
	floor := max(w.again.index, m.TombstoneFloor, m.LossEnd(), d.Floor)
	if !d.FloorKnown {
		floor = max(floor, d.Index)
	}
	if floor > d.Index {
		return failed, sourceError{fmt.Errorf("copy group %s again: the replica has index %d, and its history begins at %d: "+
			"this is tried again", m.Identity.Name, d.Index, floor)}
	}
	isLoss := m.LossEnd() > w.again.index
	c := copier{runner: r, files: files, identity: m.Identity, index: d.Index, floor: w.again.floor,
		after: w.again.index, diff: newDifference(end, w.again.index, floor, isLoss)}
	defer c.abandon()
	if err := c.all(ctx, m.Segments); err != nil {
		return failed, err
	}
	if isLoss {
		if err := c.compareAll(ctx, m.Segments); err != nil {
			return failed, err
		}
	}
	last, err := c.addMissed(ctx, m.Segments)
	if err == nil {
		err = c.uploaded()
	}
	if err != nil {
		return failed, err
	}
	// The commit time of a delete at the floor is too early. So a time at which the record still existed stands for the
	// floor. Reads as of that time are refused if the hole ends behind the floor.
	return &copyAgain{id: w.id, refs: c.refs, index: d.Index, after: w.again.index, exact: max(floor, last+1)}, nil
}

// archivedEnd reads from the bucket which records a group has at the end of its archive.
func (r *copyRunner) archivedEnd(ctx context.Context, w wanted) (end reader.End, err error) {
	err = r.objects.again(ctx, ReasonRead, "read the archived records of group "+w.id.String(), func() error {
		all, err := reader.Open(ctx, r.archive, r.objects.store, r.objects.keys)
		if err != nil {
			return err
		}
		g, err := all.Group(ctx, w.id)
		if err != nil {
			return err
		}
		if g.Through != w.again.index {
			return sourceError{fmt.Errorf("group %s is archived up to index %d, and can be read up to %d: %s", g.Name,
				w.again.index, g.Through, g.Missing)}
		}
		end, err = g.End(ctx)
		return err
	})
	if err != nil && (reader.IsBroken(err) || !isFinal(err)) {
		err = sourceError{err} // the next attempt may read it
	}
	return end, err
}

// addMissed archives the deletes that neither the archive nor the copy has, and the versions that came back by a loss.
// It returns the index of the last one, or 0 if there is none.
func (c *copier) addMissed(ctx context.Context, segments []format.ManifestSegment) (last uint64, err error) {
	last, ok := c.diff.close(c.commit())
	if !ok {
		return 0, sourceError{fmt.Errorf("copy group %s again: the archive has more records than can have been deleted "+
			"since index %d", c.identity.Name, c.after)}
	}
	if last > 0 && last == c.index {
		return 0, sourceError{fmt.Errorf("copy group %s again: its last entry, %d, is a delete that the store has dropped, "+
			"and when it was made is not known: this is tried again, and works when the group has another entry",
			c.identity.Name, last)}
	}
	for e := range c.diff.deletes() {
		if err := c.append(ctx, e); err != nil {
			return 0, err
		}
	}
	if err := c.addBack(ctx, segments); err != nil {
		return 0, err
	}
	return last, c.flush(ctx)
}

// append archives an entry that the copy does not have.
func (c *copier) append(ctx context.Context, e *format.Entry) error {
	if c.b != nil && c.b.Bytes() >= c.runner.limits.segmentBytes {
		if err := c.flush(ctx); err != nil {
			return err
		}
	}
	if c.b == nil {
		c.begin()
	}
	err := c.b.Append(e)
	if errors.Is(err, pieces.ErrSpan) {
		if err := c.flush(ctx); err != nil {
			return err
		}
		c.begin()
		err = c.b.Append(e)
	}
	if err != nil {
		return sourceError{err}
	}
	return nil
}
