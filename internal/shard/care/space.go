package care

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

// The code in this file frees space on the volume. Before it refuses a write, it deletes expendable data: files of
// replicas that have left their groups, superseded records, data that only scans need, and history that is not archived
// yet. The deletion begins as soon as free space is low. A caller that finds no space wakes the compactor and waits.

const (
	// barrenTime is how long callers are refused immediately after a pass has freed no space.
	barrenTime = time.Second
	// spacePasses is the number of passes for which a caller waits. More than one is needed, because other callers
	// may take the space that a pass has freed.
	spacePasses = 4
	// Free space is low if the space above the reserve is smaller than lowSegments segments. On a small volume this
	// threshold would be too high, so it is at most the volume's size divided by lowPart (a sixteenth).
	lowSegments = 2
	lowPart     = 16
)

// WithSpace calls try, which needs space. If there is not enough, WithSpace calls try again while space is being
// freed.
func (c *Compactor) WithSpace(ctx context.Context, try func() error) error {
	err := try()
	last := uint64(0)
	for errors.Is(err, volume.ErrFull) || errors.Is(err, format.ErrNoSpace) {
		progress, passes, ok := c.ask(missing(err))
		if last == 0 {
			last = passes + spacePasses
		}
		if !ok || passes >= last {
			return err
		}
		select {
		case <-progress:
		case <-ctx.Done():
			return err
		case <-c.Context.Done():
			return err
		}
		err = try()
	}
	return err
}

// missing returns how many bytes the failed operation needs according to its error, or 0 if the error does not say.
func missing(err error) int64 {
	var full *volume.FullError
	var none *transfer.SpaceError
	switch {
	case errors.As(err, &full):
		return full.Bytes
	case errors.As(err, &none):
		return none.NeedBytes
	}
	return 0
}

// ask wakes the compactor, because a caller needs the given number of bytes above the reserve. It does not wait.
// progress is closed when some space was freed, or when a pass to free space has finished. passes is how many passes
// had finished before the call. If ok is false, nothing can be freed at the moment.
func (c *Compactor) ask(bytes int64) (progress <-chan struct{}, passes uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.barren) < barrenTime {
		return nil, c.passes, false
	}
	c.short, c.asked = true, max(c.asked, bytes)
	if c.hurry != nil {
		c.hurry()
	}
	select {
	case c.woken <- struct{}{}:
	default:
	}
	return c.progress, c.passes, true
}

// AskForSpace asks the Compactor to free the given number of bytes above the reserve. It does not wait, so the caller
// must retry.
func (c *Compactor) AskForSpace(bytes int64) { _, _, _ = c.ask(bytes) }

func (c *Compactor) isShort() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.short
}

// hasSpace reports whether free space is not low, and the space above the reserve is enough for the given number of
// bytes.
func (c *Compactor) hasSpace(bytes int64) bool {
	space, reserve, err := c.Disk.Space()
	if err != nil {
		return true // the volume is broken, so deleting files does not help
	}
	return space.FreeBytes-reserve >= max(bytes, lowSpaceBytes(space.TotalBytes, c.Disk.Log.SegmentBytes))
}

// lowSpaceBytes returns the threshold for the free space above the reserve. Below it, the shard starts to free space.
func lowSpaceBytes(volumeBytes, segmentBytes int64) int64 {
	if segmentBytes <= 0 {
		segmentBytes = group.SegmentBytesDefault
	}
	return min(lowSegments*segmentBytes, volumeBytes/lowPart)
}

// freeSpace deletes one kind of data after another until there is enough space. The order is the trash, superseded
// records, data kept for scans that nobody reads, and history that archives hold. If a caller would otherwise be
// refused, freeSpace also closes scans that are being read, the older half of them at a time.
func (c *Compactor) freeSpace(ctx context.Context) {
	c.mu.Lock()
	refused, asked := c.short, c.asked
	c.mu.Unlock()
	done := func() bool { return ctx.Err() != nil || c.hasSpace(asked) }
	made := c.freeTrash(done)
	if !done() {
		made = c.compactAll(ctx) || made
	}
	if !done() && c.giveUpScans(scansAbandoned) {
		made = c.compactAll(ctx) || made
	}
	if !done() {
		made = c.giveUpHistory(ctx) || made
	}
	for refused && !done() && c.giveUpScans(scansOldest) {
		made = c.compactAll(ctx) || made
	}
	made = c.hasSpace(asked) || made
	c.lookAtVolume()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.short, c.asked = false, 0
	c.passes++
	switch {
	case made:
		c.barren = time.Time{}
		c.Replicas.Wake() // replicas that must join may wait for space
	case refused:
		c.barren = time.Now()
	}
	c.wakeWaiters()
}

// freeTrash deletes folders from the trash until done returns true.
func (c *Compactor) freeTrash(done func() bool) (made bool) {
	err := c.Trash.Drop(func(*trash.Folder) bool {
		may := !done()
		made = made || may
		return may
	})
	c.Problems.Note("emptying the trash", err)
	if made {
		c.spaceFreed()
	}
	return made
}

// compactAll compacts all groups that have enough superseded data. Groups with more of it come first.
func (c *Compactor) compactAll(ctx context.Context) (made bool) {
	if c.Off {
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
		made = c.compact(ctx, &g, group.CompactOptions{SpaceLow: true}) > 0 || made
	}
	return made
}

// lookAtVolume measures the volume's free space again. This is necessary because the volume decides from its last
// measurement whether to admit a write.
func (c *Compactor) lookAtVolume() {
	if _, _, err := c.Disk.Space(); err != nil {
		c.Logger.Warn("the free space of the volume is unknown", "error", err)
	}
}

// spaceFreed wakes the callers that wait for space.
func (c *Compactor) spaceFreed() {
	c.lookAtVolume()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.barren = time.Time{}
	c.wakeWaiters()
}

// moreToFree records that more data can be freed than before, so that the next caller without space starts a pass.
func (c *Compactor) moreToFree() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.barren = time.Time{}
}

// wakeWaiters wakes the callers that wait for progress. Called with mu held.
func (c *Compactor) wakeWaiters() {
	close(c.progress)
	c.progress = make(chan struct{})
}

// AdmitWithSpace reserves space on the volume for a blob or for a part of one. If necessary, it waits until there is
// enough space. It reserves no memory.
func (c *Compactor) AdmitWithSpace(ctx context.Context, bytes int64) error {
	return c.WithSpace(ctx, func() error { return c.Disk.Admit(bytes, false) })
}

// AdmitSoon checks whether there is space for the given number of bytes. If there is not, it asks the Compactor to
// free space and returns an error. It does not wait, so the caller must retry.
func (c *Compactor) AdmitSoon(bytes int64) error {
	err := c.Disk.Admit(bytes, false)
	if errors.Is(err, volume.ErrFull) {
		c.AskForSpace(missing(err))
	}
	return err
}
