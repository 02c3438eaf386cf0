package care

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
)

// An archive holds the history of a group: compaction keeps the versions that were superseded above the index up to
// which the group is archived. The archiver tells this index to the leader, the leader reports it to etcd, and the
// other members read it there. A hold bounds nothing but compaction. It gives way when it keeps too many bytes, or when
// space is short: no write is refused or delayed for an archive. What is dropped in spite of a hold shows in the
// history floor of the log.

// holdPart is a divisor: the holds of all groups together keep at most the size of the volume divided by holdPart
// (5 %), unless Compaction.HoldBytesMax says otherwise.
const holdPart = 20

// Holds knows the holds of the groups on this shard. It keeps them in memory. Safe for concurrent use.
type Holds struct {
	reported *reportedWeights

	mu     sync.Mutex
	groups map[uuid.UUID]*hold
}

// hold is what is known of the hold of one group.
type hold struct {
	// callers are the positions of the archivers that follow the group now, by call. While there are several, the lowest
	// position counts.
	callers map[any]uint64
	// last is the hold while no archiver follows the group here: the position that was heard last, or that the leader
	// reported last. It is valid if known is true.
	last  uint64
	known bool
	// term is the last term of this replica as the leader in which the reports of all members were read.
	term uint64
}

// index returns the hold, if there is one.
func (h *hold) index() (at uint64, on bool) {
	at, on = h.last, h.known
	first := true
	for _, position := range h.callers {
		if first || position < at {
			at, on, first = position, true, false
		}
	}
	return at, on
}

func newHolds(reported *reportedWeights) *Holds {
	return &Holds{reported: reported, groups: map[uuid.UUID]*hold{}}
}

// of returns the hold of a group. The caller holds mu.
func (h *Holds) of(id uuid.UUID) *hold {
	if h.groups[id] == nil {
		h.groups[id] = &hold{callers: map[any]uint64{}}
	}
	return h.groups[id]
}

// Take notes that an archiver, identified by its call, has archived a group up to an index. This shard leads the group.
// The log obeys the hold from now on.
func (h *Holds) Take(call any, sv *replicas.Served, index uint64) {
	h.change(sv, func(one *hold) { one.callers[call] = index })
}

// Begin notes that an archiver is about to copy a group for the first time, which has this index now. It changes
// nothing if the group has a hold.
func (h *Holds) Begin(sv *replicas.Served, index uint64) {
	h.change(sv, func(one *hold) {
		if _, on := one.index(); !on {
			one.last, one.known = index, true
		}
	})
}

// change changes the hold of a group, and makes the log obey it.
func (h *Holds) change(sv *replicas.Served, do func(*hold)) {
	h.mu.Lock()
	one := h.of(sv.UUID())
	do(one)
	at, on := one.index()
	sv.Log().SetHold(group.Hold{Index: at, On: on})
	h.mu.Unlock()
	// Without space for it, the history floor is not known yet, as HistoryFloor says. The archive goes on without it.
	_ = sv.Log().BeginHistory()
}

// Leave notes that the call of an archiver has ended. The position that it gave last remains the hold of each group
// that no other call follows.
func (h *Holds) Leave(call any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, one := range h.groups {
		at, follows := one.callers[call]
		if !follows {
			continue
		}
		if delete(one.callers, call); len(one.callers) == 0 {
			one.last, one.known = at, true
		}
	}
}

// forget drops what is known of groups that are not on this shard any more.
func (h *Holds) forget(r *replicas.Routes) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.groups {
		if r.ByUUID[id] == nil {
			delete(h.groups, id)
		}
	}
}

// Of returns the hold of a group that is served here, and false if it has none. It may read the reports of leaders from
// etcd.
func (h *Holds) Of(ctx context.Context, sv *replicas.Served, state placement.Group) (at uint64, on bool) {
	if m := sv.Replica().Members(); m.LeaderID == sv.RaftID {
		return h.ofLeader(ctx, sv, m.Term, state)
	}
	told := h.reported.weightOf(ctx, state)
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.of(sv.UUID())
	if told.Holds {
		one.last, one.known = told.Hold, true
	}
	if one.known {
		return one.last, true
	}
	return ofLog(sv.Log())
}

// ofLeader does what Of does, for the leader. A leader that has heard no archiver goes on with the hold that the
// previous leader reported last. It looks for that report once in a term, because most stores have no archive.
func (h *Holds) ofLeader(ctx context.Context, sv *replicas.Served, term uint64,
	state placement.Group) (at uint64, on bool) {
	h.mu.Lock()
	one := h.of(sv.UUID())
	at, on = one.index()
	asked := one.term == term
	h.mu.Unlock()
	if on || asked {
		if !on {
			return ofLog(sv.Log())
		}
		return at, true
	}
	found, complete := registry.Weight{}, true
	for _, member := range state.Members {
		weights, known := h.reported.weightsOf(ctx, member.Shard)
		complete = complete && known
		if w := weights[state.Name]; w.UUID == state.UUID && w.Holds && w.Hold >= found.Hold {
			found = w
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if complete {
		one.term = term
	}
	if !one.known && found.Holds {
		one.last, one.known = found.Hold, true
	}
	if at, on = one.index(); on {
		return at, true
	}
	return ofLog(sv.Log())
}

// ofLog returns the hold of a log about whose archive nothing is known, for example after a start while etcd is silent.
// If the log ever had a hold, everything that it still has is held, until something is known.
func ofLog(log *group.Log) (at uint64, on bool) { return log.HistoryFloor() }

// hold makes the log of a group obey the group's hold.
func (c *Compactor) hold(sv *replicas.Served) {
	state, ok := c.Replicas.GroupOf(sv.Group)
	if !ok {
		return // nothing is known of the group: the log goes on with the hold that it has
	}
	at, on := c.History.Of(c.Context, sv, state.Group)
	sv.Log().SetHold(group.Hold{Index: at, On: on})
}

// holdBytesMax returns how many bytes the holds of all groups may keep. It returns false if there is no limit, because
// the size of the volume is not known.
func (c *Compactor) holdBytesMax() (int64, bool) {
	total := c.Disk.TotalBytes()
	return cmp.Or(c.HoldBytesMax, total/holdPart), c.HoldBytesMax > 0 || total > 0
}

// limitHistory compacts groups without their holds, if the holds keep more bytes than they may: the group with most
// held bytes first, until the rest is within the limit.
func (c *Compactor) limitHistory(ctx context.Context) {
	most, limited := c.holdBytesMax()
	if !limited {
		return
	}
	groups, held := c.heldGroups()
	for _, g := range groups {
		if held <= most || ctx.Err() != nil {
			return
		}
		c.Logger.Warn("gave up history that an archive holds, because holds keep too many bytes: is the archiver running?",
			"group", g.Name(), "held_bytes", g.stats.HeldBytes, "of_all_groups", held, "limit", most)
		c.compact(ctx, &g, group.CompactOptions{RateBytesPerSecond: max(c.RateBytesPerSecond, 0), IgnoreHold: true})
		held -= g.stats.HeldBytes - g.Log().Stats().HeldBytes
	}
}

// giveUpHistory compacts all groups that keep bytes only for an archive without their holds, because the volume needs
// the space.
func (c *Compactor) giveUpHistory(ctx context.Context) (made bool) {
	if c.Off {
		return false
	}
	groups, _ := c.heldGroups()
	for _, g := range groups {
		if ctx.Err() != nil {
			break
		}
		c.Logger.Warn("gave up history that an archive holds, because the volume needs the space", "group", g.Name(),
			"held_bytes", g.stats.HeldBytes)
		made = c.compact(ctx, &g, group.CompactOptions{SpaceLow: true, IgnoreHold: true}) > 0 || made
	}
	return made
}

// heldGroups returns the groups that keep bytes only for an archive, those with most of them first, and the sum of
// these bytes.
func (c *Compactor) heldGroups() (groups []servedGroup, held int64) {
	groups = slices.DeleteFunc(c.servedGroups(nil), func(g servedGroup) bool { return g.stats.HeldBytes <= 0 })
	slices.SortFunc(groups, func(a, b servedGroup) int { return cmp.Compare(b.stats.HeldBytes, a.stats.HeldBytes) })
	for _, g := range groups {
		held += g.stats.HeldBytes
	}
	return groups, held
}
