package group

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/segio"
)

// The methods in this file report changes to the log's followers. An entry is a change while it is its record's newest
// version. A follower that continues from its last position therefore receives the latest state of every record that
// was put or deleted since then.

// ChangesOptions limits what one call to Changes returns. The result ends with the record that reaches one of the
// limits.
type ChangesOptions struct {
	RecordsMax int
	BytesMax   int64 // maximum number of bytes of data and attributes
}

// Changes reads the newest versions of records that were put or deleted after an index, in the order of their
// indexes. It skips superseded versions, and reads nothing above the applied index. It also returns the index up to
// which it has read. The records are copies, so they do not pin a segment.
//
// Changes returns ErrCursorExpired if the changes after the given index cannot be determined exactly. This is the
// case if tombstones above the index may be gone, if a loss above it was accepted, or if it is greater than all
// indexes of this log. Changes returns *DamageError if the next change cannot be read.
func (l *Log) Changes(ctx context.Context, after uint64, opts ChangesOptions) (records []Record, through uint64,
	err error) {
	if err := l.enter(); err != nil {
		return nil, after, err
	}
	defer l.leave()
	c := &changes{
		group: l.opts.Identity.Name, state: &l.state, places: &l.places, reader: &l.reader, floor: &l.folder.changesFloor,
		opts: opts, next: after + 1, through: l.state.applied.Load(),
	}
	if after > c.through {
		return nil, after, fmt.Errorf("group %s: %w: it is at index %d, the cursor at %d", l.opts.Identity.Name,
			ErrCursorExpired, c.through, after)
	}
	for c.next <= c.through && !c.full {
		if err = context.Cause(ctx); err == nil {
			err = c.step()
		}
		if err != nil {
			break
		}
	}
	if len(c.records) > 0 {
		err = nil // the records are returned now, and the next call returns the error
	}
	return c.records, c.next - 1, err
}

// changes is one run of Changes. It reads segments, and changes nothing. It is used by one goroutine, which has entered
// the gate. It locks state.mu only briefly.
type changes struct {
	group  string
	state  *state
	places *places
	reader *reader
	floor  *atomic.Uint64 // points to folder.changesFloor

	opts    ChangesOptions
	next    uint64 // all entries below this index were read
	through uint64
	records []Record
	bytes   int64
	full    bool
	again   bool  // compaction swapped the segment while it was being read, so it must be looked up again
	damage  error // bad bytes that may contain the next change
}

// step reads the rest of the segment that contains the next index.
func (c *changes) step() error {
	views := c.reader.views(c.next, c.through)
	// The floor is read after the list of segments. Therefore, if compaction has removed a tombstone from a listed
	// segment, the floor read here is already above that tombstone.
	if floor := c.floor.Load(); c.next <= floor {
		unpinAll(views)
		return fmt.Errorf("group %s: %w: deletes up to index %d may be forgotten, the cursor is at %d", c.group,
			ErrCursorExpired,
			floor, c.next-1)
	}
	if len(views) == 0 { // no stored entry has this index or a higher one
		c.next = c.through + 1
		return nil
	}
	defer unpinAll(views)
	v := views[0]
	c.again, c.damage = false, nil
	err := v.frames(c.reader.startOf(v, max(c.next, v.first)), func(step *segio.FrameStep) bool {
		return c.frame(v, step)
	})
	switch {
	case err != nil:
		return fmt.Errorf("group %s: changes: %w", c.group, err)
	case c.again:
		c.places.awaitSwap()
	case c.damage != nil:
		return c.damage
	case !c.full:
		c.next = max(c.next, min(v.through, c.through)+1)
	}
	return nil
}

// frame processes one frame. It returns false if the rest of this segment must not be read.
func (c *changes) frame(v view, step *segio.FrameStep) bool {
	e := &step.Entry
	inRange := e.Index >= c.next && e.Index <= c.through
	switch {
	case step.Status == segio.FrameContent && (!inRange || !e.Kind.IsVersion()):
		return true
	case step.Status == segio.FrameContent:
		newest, moved := c.isNewest(v, step)
		if c.again = moved; newest {
			c.damage = &format.DamageError{Damage: v.damage(c.group, step), ID: e.ID}
		}
		return !newest && !moved
	case step.Status != segio.FrameWhole:
		c.damage = &format.DamageError{Damage: v.damage(c.group, step)}
		return true // the damage matters only if the frames that follow it are after the cursor
	case e.Kind == format.KindState || !c.reader.isValid(e):
		return true
	case e.Index <= c.next:
		c.damage = nil // the bad bytes are before the next index, so this run does not need them
	}
	if c.damage != nil && e.Index > c.next {
		return false
	}
	if !inRange || !e.Kind.IsVersion() {
		return true
	}
	newest, moved := c.isNewest(v, step)
	if moved || !newest {
		c.again = moved
		return !moved
	}
	return c.take(v, step)
}

// take adds a copy of a record to the result. It returns false if the rest of this segment must not be read.
func (c *changes) take(v view, step *segio.FrameStep) bool {
	e := &step.Entry
	r := recordOf(v.segment, v.place(step.Offset, step.Bytes, e.Kind == format.KindDelete), e)
	if err := r.finish(e, false); err != nil {
		c.damage = &format.DamageError{Damage: v.damage(c.group, step), ID: e.ID}
		return false
	}
	r.Attributes, r.Data = bytes.Clone(r.Attributes), bytes.Clone(r.Data)
	c.records = append(c.records, r)
	c.bytes += int64(len(r.Attributes) + len(r.Data))
	c.next = e.Index + 1
	c.full = len(c.records) >= c.opts.RecordsMax || c.bytes >= c.opts.BytesMax
	return !c.full && c.next <= c.through
}

// isNewest reports whether the version that a step has reached is the newest version of its record. moved is true if
// the segment was swapped in the meantime, so that locations in it are no longer valid.
func (c *changes) isNewest(v view, step *segio.FrameStep) (newest, moved bool) {
	e := &step.Entry
	c.state.mu.RLock()
	defer c.state.mu.RUnlock()
	return c.places.isNewest(v.segment, e.ID, v.place(step.Offset, step.Bytes, e.Kind == format.KindDelete))
}

// Applied returns the index of the last applied entry, and a channel that is closed when another entry is applied or
// the log is closed.
func (l *Log) Applied() (uint64, <-chan struct{}) {
	changed := l.changed.wait()
	return l.state.applied.Load(), changed
}

// signal wakes all goroutines that wait for it. Its method fire costs almost nothing if no goroutine waits.
type signal struct{ c atomic.Pointer[chan struct{}] }

// wait returns a channel that is closed by the next call of fire.
func (s *signal) wait() <-chan struct{} {
	for {
		if c := s.c.Load(); c != nil {
			return *c
		}
		c := make(chan struct{})
		if s.c.CompareAndSwap(nil, &c) {
			return c
		}
	}
}

func (s *signal) fire() {
	if s.c.Load() == nil {
		return
	}
	if c := s.c.Swap(nil); c != nil {
		close(*c)
	}
}
