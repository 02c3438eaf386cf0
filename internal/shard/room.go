package shard

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"sheaf.dev/sheaf/internal/shard/trash"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// Room on the volume. What is there for convenience goes before anything is refused: the files of replicas that moved
// away, superseded records, and what only scans see. It goes as soon as little is left, and whoever finds no room wakes
// the compactor and waits.

const (
	// barrenTime is how long nobody waits for room after a pass that made none.
	barrenTime = time.Second
	// roomPasses is for how many passes one waits for room: others may take what was made.
	roomPasses = 4
	// lowSegments: little room is left where it is not enough for two segments above the reserve; on a small volume,
	// where it is less than a sixteenth (lowPart) of it.
	lowSegments = 2
	lowPart     = 16
)

// withRoom tries something that needs room, and tries it again as long as room is being made for it.
func (c *compactor) withRoom(ctx context.Context, try func() error) error {
	err := try()
	last := uint64(0)
	for errors.Is(err, volume.ErrFull) || errors.Is(err, format.ErrNoSpace) {
		progress, passes, ok := c.ask(missing(err))
		if last == 0 {
			last = passes + roomPasses
		}
		if !ok || passes >= last {
			return err
		}
		select {
		case <-progress:
		case <-ctx.Done():
			return err
		case <-c.ctx.Done():
			return err
		}
		err = try()
	}
	return err
}

// missing is how much room an error says is needed; 0: it does not say.
func missing(err error) int64 {
	var full *volume.FullError
	var none *transfer.RoomError
	switch {
	case errors.As(err, &full):
		return full.Bytes
	case errors.As(err, &none):
		return none.NeedBytes
	}
	return 0
}

// ask wakes the compactor, as so many bytes above the reserve are needed. It does not wait: progress is closed when
// some room was made, or a pass for room is over. passes is how many were before. Not ok: there is nothing that can be
// freed now.
func (c *compactor) ask(bytes int64) (progress <-chan struct{}, passes uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.barren) < barrenTime {
		return nil, c.passes, false
	}
	c.short, c.asked = true, max(c.asked, bytes)
	if c.hurry != nil {
		c.hurry()
	}
	c.notify()
	return c.progress, c.passes, true
}

// noRoom is ask for those who try again by themselves.
func (c *compactor) noRoom(bytes int64) { _, _, _ = c.ask(bytes) }

func (c *compactor) isShort() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.short
}

// hasRoom tells whether there is room for a few segments above the reserve, and for so many bytes.
func (c *compactor) hasRoom(bytes int64) bool {
	space, reserve, err := c.volume.Space()
	if err != nil {
		return true // what is broken does not get better by deleting
	}
	return space.FreeBytes-reserve >= max(bytes, lowRoom(space.TotalBytes, c.cfg.SegmentBytes))
}

// lowRoom is how much room is little.
func lowRoom(volumeBytes, segmentBytes int64) int64 {
	if segmentBytes <= 0 {
		segmentBytes = group.SegmentBytesDefault
	}
	return min(lowSegments*segmentBytes, volumeBytes/lowPart)
}

// makeRoom gives up one thing after another until there is room, what is missed least first: what lies in the trash,
// superseded records, scans that nobody reads. Where somebody would be refused, also scans that are read, the older
// half of them at a time.
func (c *compactor) makeRoom(ctx context.Context) {
	c.mu.Lock()
	refused, asked := c.short, c.asked
	c.mu.Unlock()
	done := func() bool { return ctx.Err() != nil || c.hasRoom(asked) }
	made := c.freeTrash(done)
	if !done() {
		made = c.compactAll(ctx) || made
	}
	if !done() && c.giveUpScans(scansCutOff) {
		made = c.compactAll(ctx) || made
	}
	for refused && !done() && c.giveUpScans(scansOldest) {
		made = c.compactAll(ctx) || made
	}
	made = c.hasRoom(asked) || made
	c.lookAtVolume()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.short, c.asked = false, 0
	c.passes++
	switch {
	case made:
		c.barren = time.Time{}
		c.follower.Nudge() // groups that waited for room to join
	case refused:
		c.barren = time.Now()
	}
	c.wakeWaiters()
}

// freeTrash deletes from the trash until there is room.
func (c *compactor) freeTrash(done func() bool) (made bool) {
	err := c.trash().Drop(func(*trash.Folder) bool {
		may := !done()
		made = made || may
		return may
	})
	c.problems.Note("emptying the trash", err)
	if made {
		c.roomMade()
	}
	return made
}

// compactAll frees what is superseded and may go, the most of it first.
func (c *compactor) compactAll(ctx context.Context) (made bool) {
	if c.cfg.Compaction.Off {
		return false
	}
	garbage := func(g servedGroup) int64 { return g.stats.Reclaim.Free + g.stats.Reclaim.Newest }
	groups := slices.DeleteFunc(c.servedGroups(nil), func(g servedGroup) bool {
		return garbage(g) <= 0 || garbage(g) < g.stats.StoredBytes/garbagePart
	})
	slices.SortFunc(groups, func(a, b servedGroup) int { return cmp.Compare(garbage(b), garbage(a)) })
	for _, g := range groups {
		if ctx.Err() != nil {
			break
		}
		made = c.compact(ctx, &g, group.CompactOptions{Room: true}) > 0 || made
	}
	return made
}

// lookAtVolume has the volume see room that was made: it admits writes by its last look.
func (c *compactor) lookAtVolume() {
	if _, _, err := c.volume.Space(); err != nil {
		c.logger.Warn("the room of the volume cannot be told", "error", err)
	}
}

// roomMade lets those go on that wait for room.
func (c *compactor) roomMade() {
	c.lookAtVolume()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.barren = time.Time{}
	c.wakeWaiters()
}

// moreToFree tells that something can be freed that could not before.
func (c *compactor) moreToFree() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.barren = time.Time{}
}

// wakeWaiters is called with mu held.
func (c *compactor) wakeWaiters() {
	close(c.progress)
	c.progress = make(chan struct{})
}

// admitWithRoom asks for room for what is not in memory: a blob, or a part of one.
func (c *compactor) admitWithRoom(ctx context.Context, bytes int64) error {
	return c.withRoom(ctx, func() error { return c.volume.Admit(bytes, false) })
}

// admitSoon asks for room, and has some made where there is none; the caller tries again.
func (c *compactor) admitSoon(bytes int64) error {
	err := c.volume.Admit(bytes, false)
	if errors.Is(err, volume.ErrFull) {
		c.noRoom(missing(err))
	}
	return err
}
