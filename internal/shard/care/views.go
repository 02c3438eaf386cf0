package care

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// viewsPart is a divisor: all views together keep at most the size of the volume divided by viewsPart (10 %), unless
// Compaction.ViewsHeldMax is set.
const viewsPart = 10

// Views is the part of the shard's views that a Compactor needs (package views).
type Views interface {
	HoldOf(group uuid.UUID) (at uint64, on, known bool)
	All() []placement.DataView
	Lose(ctx context.Context, v *placement.DataView, group, why string) error
}

// byViews reports whether the history of a group is kept for its views, rather than for its archive.
func (h *Holds) byViews(id uuid.UUID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	viewed, needed, _ := h.views(id)
	archived, on := h.of(id).index()
	return needed && (!on || viewed <= archived)
}

// viewsHeldMax returns how many bytes views may keep. It returns false if there is no limit, because the size of the
// volume is not known.
func (c *Compactor) viewsHeldMax() (int64, bool) {
	total := c.Disk.TotalBytes()
	return cmp.Or(c.ViewsHeldMax, total/viewsPart), c.ViewsHeldMax > 0 || total > 0
}

// loseTime limits the time for which the Compactor waits until etcd has recorded that a view has lost a group.
const loseTime = 5 * time.Second

// limitViews gives up views if they keep more bytes than allowed, the oldest first. A view loses the group in etcd
// first, so that all its copies end in the same way. While etcd does not respond, no view is given up.
func (c *Compactor) limitViews(ctx context.Context) {
	most, limited := c.viewsHeldMax()
	groups, held := c.heldGroups()
	groups = slices.DeleteFunc(groups, func(g servedGroup) bool {
		if c.History.byViews(g.UUID()) {
			return false
		}
		held -= g.stats.HeldBytes
		return true
	})
	for limited && held > most && ctx.Err() == nil {
		these := map[uuid.UUID]bool{}
		for _, g := range groups {
			these[g.UUID()] = true
		}
		oldest, lost, found := placement.OldestOf(c.Views.All(), these)
		if !found {
			return
		}
		why := fmt.Sprintf("views kept %d bytes of superseded records on a shard, of at most %d", held, most)
		c.Logger.Warn("gave up a view of a group, because views keep too many bytes: close views that are no longer read, "+
			"or raise spec.views.maxHeld", "view", oldest.ID, "group", lost.Name, "held_bytes", held, "limit", most)
		if err := c.lose(ctx, &oldest, lost.Name, why); err != nil {
			c.Logger.Warn("the view is kept for now, because etcd has not recorded its end", "view", oldest.ID, "error", err)
			return
		}
		i := slices.IndexFunc(groups, func(g servedGroup) bool { return g.UUID() == lost.UUID })
		held -= c.release(ctx, &groups[i])
		if !c.History.byViews(lost.UUID) {
			held -= groups[i].stats.HeldBytes
			groups = slices.Delete(groups, i, i+1)
		}
	}
}

func (c *Compactor) lose(ctx context.Context, v *placement.DataView, group, why string) error {
	ctx, cancel := context.WithTimeout(ctx, loseTime)
	defer cancel()
	return c.Views.Lose(ctx, v, group, why)
}

// release compacts a group whose hold has risen, and returns by how many bytes the held history has become smaller.
func (c *Compactor) release(ctx context.Context, g *servedGroup) int64 {
	c.compact(ctx, g, compactAtRate(c.RateBytesPerSecond))
	before := g.stats.HeldBytes
	g.stats = g.Log().Stats()
	return before - g.stats.HeldBytes
}
