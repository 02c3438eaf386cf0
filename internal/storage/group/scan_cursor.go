package group

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sheaf.dev/sheaf/internal/base/rules"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
	"sheaf.dev/sheaf/internal/storage/index"
)

// scanCursor is one run of Scan. It reads segments, using the locations in the snapshot. The only state that it
// changes is the time at which the snapshot was last used. A scanCursor belongs to one goroutine, which holds
// state.mu only briefly.
type scanCursor struct {
	group   string
	gate    *gate
	state   *state
	places  *places
	reader  *reader
	damages *damages
	now     func() time.Time
	off     rules.Off

	id           ScanID
	next         uint64 // the next index to yield
	through      uint64
	metadataOnly bool
	yield        func(Record, error) bool
	stopped      bool
	again        bool // compaction has swapped the segment during the read, so the scan must look up the segment again
	given        map[damagePlace]bool
	seen         sight // result of the last call to the method sees
	seenAt       int64 // offset of the frame for which sees was called, or 0 if there is no result
}

type damagePlace struct {
	file   string // name of the file in the group's folder
	offset int64
}

// scanUseSteps is the number of frames after which a scan records that the snapshot is in use.
const scanUseSteps = 4096

// run reads one segment after another. It pins each segment while it reads it, so that a slow reader delays only the
// removal of files.
func (c *scanCursor) run(ctx context.Context) {
	first := c.next
	for !c.stopped && c.next <= c.through {
		if !c.step(ctx) {
			break
		}
	}
	if !c.stopped {
		c.rest(first)
	}
}

// rest yields damage that the walk over the frames has not found, for example the missing end of a segment. It leaves
// out damage that cannot have hit any record of the scan.
func (c *scanCursor) rest(first uint64) {
	if !c.damages.any() || !c.off.Keeps(rules.DamagedScan) {
		return
	}
	for _, d := range c.damages.list() {
		if d.IDsUnknown && d.IndexFirst <= c.through && first <= d.IndexLast && !c.tell(&format.DamageError{Damage: *d}) {
			return
		}
	}
}

// step looks up the segment that holds the next index, and reads it up to its end. It returns false if there is no
// such segment, or if the scan has ended.
func (c *scanCursor) step(ctx context.Context) bool {
	if err := c.gate.enter(); err != nil {
		c.fail(err)
		return false
	}
	views := c.reader.views(c.next, c.through)
	c.gate.leave()
	if len(views) == 0 {
		return false
	}
	unpinAll(views[1:])
	v := views[0]
	defer v.unpin()
	v.scan, c.again, c.seenAt = true, false, 0
	steps := 0
	var pass func(*segio.FrameStep) bool
	if v.image != nil && !c.damages.any() {
		// All bytes in memory were checked when they were loaded, so superseded versions need not be checked again.
		pass = func(step *segio.FrameStep) bool { return c.unwanted(v, step) }
	}
	err := v.framesOf(c.reader.startOf(v, max(c.next, v.first)), c.reader.boundOf(v, c.through), pass,
		func(step *segio.FrameStep) bool {
			if steps++; steps%scanUseSteps == 0 {
				if !c.use(ctx) {
					return false
				}
			}
			return c.frame(v, step)
		})
	switch {
	case err != nil:
		c.fail(fmt.Errorf("group %s: scan: %w", c.group, err))
		return false
	case c.stopped:
		return false
	case c.again:
		c.places.awaitSwap()
		return true
	}
	c.next = max(c.next, v.through+1)
	return c.next != 0 && c.use(ctx)
}

// use records that the snapshot is in use, and reports whether the scan may continue.
func (c *scanCursor) use(ctx context.Context) bool {
	err := ctx.Err()
	if err == nil {
		err = c.gate.usable()
	}
	if err == nil {
		err = c.state.useSnapshot(c.id, c.now(), func(*snapshot) {})
	}
	if err != nil {
		c.fail(err)
	}
	return err == nil
}

func (c *scanCursor) fail(err error) {
	if !c.stopped {
		c.stopped = true
		c.yield(Record{}, err)
	}
}

// unwanted reports whether a frame's header already shows that the scan will not yield the entry. The content of such a
// frame is not checked.
func (c *scanCursor) unwanted(v view, step *segio.FrameStep) bool {
	e := &step.Entry
	if e.Kind != format.KindPut || e.Index < c.next || e.Index > c.through {
		return true
	}
	c.seenAt, c.seen = step.Offset, c.sees(v.segment, e.ID, v.place(step.Offset, step.Bytes, false))
	return c.seen == sightNo
}

// frame yields one frame if the snapshot sees it. It returns false if the rest of this segment must not be read.
func (c *scanCursor) frame(v view, step *segio.FrameStep) bool {
	e := &step.Entry
	switch step.Status {
	case segio.FrameWhole:
	case segio.FramePassed:
		return true
	case segio.FrameContent:
		if e.Index < c.next || e.Index > c.through || !e.Kind.IsVersion() {
			return true
		}
		return c.damaged(v, step)
	default:
		return c.damaged(v, step)
	}
	if e.Kind != format.KindPut || e.Index < c.next || e.Index > c.through {
		return true
	}
	loc := v.place(step.Offset, step.Bytes, false)
	seen := c.seen
	if c.seenAt != step.Offset {
		seen = c.sees(v.segment, e.ID, loc)
	}
	switch seen {
	case sightGone:
		c.fail(ErrCursorExpired)
		return false
	case sightMoved:
		c.again = true
		return false
	case sightNo:
		return true
	}
	if c.damages.any() && c.off.Keeps(rules.DamagedScan) {
		// Get refuses to return this record, because bad bytes may hold a newer version. Therefore the scan yields the
		// damage instead.
		if doubt, ok := errors.AsType[*format.DamageError](c.damages.newer(e.ID, e.Index)); ok {
			c.next = e.Index + 1
			return c.tell(doubt)
		}
	}
	r := recordOf(v.segment, loc, e)
	if err := r.finish(e, c.metadataOnly); err != nil {
		return c.damaged(v, step)
	}
	c.next = e.Index + 1
	if !c.yield(r, nil) {
		c.stopped = true
	}
	return !c.stopped
}

// damaged records the damage for bad bytes and yields it. It returns false if the caller has stopped the scan.
func (c *scanCursor) damaged(v view, step *segio.FrameStep) bool {
	d := v.damage(c.group, step)
	c.damages.note(d)
	damage := &format.DamageError{Damage: d}
	if len(d.IDs) == 1 {
		damage.ID = d.IDs[0]
	}
	return c.tell(damage)
}

// tell yields damage, but only once for each range of bytes. It returns false if the caller has stopped the scan.
func (c *scanCursor) tell(damage *format.DamageError) bool {
	place := damagePlace{damage.Damage.File, damage.Damage.Offset}
	if c.given[place] {
		return true
	}
	if c.given == nil {
		c.given = make(map[damagePlace]bool)
	}
	c.given[place] = true
	if !c.yield(Record{}, damage) {
		c.stopped = true
	}
	return !c.stopped
}

// sight says whether a snapshot sees an entry.
type sight int

const (
	sightNo    sight = iota // the entry was superseded before the snapshot, or is void
	sightYes                // the entry is in the snapshot
	sightMoved              // the segment was swapped, so the given location in it is no longer valid
	sightGone               // the snapshot has expired
)

// sees determines whether the snapshot sees the put at the location loc in segment s. The put's index must not be
// above the snapshot's index.
func (c *scanCursor) sees(s *segment, record int64, loc index.Loc) sight {
	c.state.mu.RLock()
	defer c.state.mu.RUnlock()
	snap := c.state.snapshots[c.id]
	if snap == nil || snap.gone {
		return sightGone
	}
	switch newest, moved := c.places.isNewest(s, record, loc); {
	case moved:
		return sightMoved
	case newest:
		return sightYes
	}
	if snap.held[record] == loc {
		return sightYes
	}
	return sightNo
}
