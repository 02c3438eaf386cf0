package care

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
)

// The archive of a group needs the group's history, which consists of the versions that were superseded after the
// index up to which the group is archived. A hold makes compaction keep these versions. The archiver reports that
// index to the group's leader, the leader reports it to etcd, and the other members read it there. A hold restricts
// nothing but compaction. It is ignored when it keeps too many bytes, or when space is short, so no write is refused
// or delayed for the sake of an archive. If history is dropped despite a hold, the history floor of the log shows
// that.
//
// Views need history, too (sheaf.batch.v1.ViewService). Each shard reads them from etcd itself. The hold of a group's
// log is the lowest one of its archive and its views.

// holdPart is a divisor: all holds together keep at most the size of the volume divided by holdPart (5 %), unless
// Compaction.HoldBytesMax is set.
const holdPart = 20

// Copy is the copy of a group that a shard serves, as far as its hold is concerned. It is a *replicas.Served, or a
// replica of the simulation.
type Copy interface {
	UUID() uuid.UUID // of the group
	Log() *group.Log
	// Leads returns the present term of the group's consensus, and whether the copy is the leader in it.
	Leads() (term uint64, leads bool)
}

// Holds records the holds of the groups on this shard, in memory only. It is safe for concurrent use.
type Holds struct {
	reported *reportedWeights
	// views returns the hold of a group's views. If on is false, no view needs the group; if known is false, nothing was
	// heard of views yet.
	views func(id uuid.UUID) (at uint64, on, known bool)

	mu     longlock.Mutex // guards groups, and the order in which logs are told of holds; held while End writes
	groups map[uuid.UUID]*hold
}

// hold describes what this shard knows about the hold of one group.
type hold struct {
	// callers holds the positions of the archivers that currently follow the group, by call. If there are several, the
	// lowest position is the hold.
	callers map[any]uint64
	// last is the hold while no archiver follows the group on this shard. It is the last position that an archiver
	// reported to this shard, or that the group's leader reported to etcd. It is valid only if known is true.
	last  uint64
	known bool
	// term is the last term in which this replica, as the group's leader, looked up the holds that were last reported
	// by all members.
	term uint64
	// ledTerm is the last term in which this replica was seen to lead, and ledSince is when that was noticed. An answer
	// of etcd from before that time may lack the last report of the leader before.
	ledTerm  uint64
	ledSince time.Time
	// none means that the group has no archive in the term noneIn, as far as known: a leader's report says so, or the log
	// had no hold then. Without it, a log with a history floor counts as archived, because unknown is not none. It says
	// nothing of later terms, because an archive may have begun while another member led.
	none   bool
	noneIn uint64
}

// index returns the index of the hold. It returns false if the group has no hold.
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

// NewHolds creates a Holds, which knows nothing yet. It uses what leaders have reported to etcd for the time fresh.
func NewHolds(etcd Etcd, fresh time.Duration, views Views) *Holds {
	return newHolds(newReportedWeights(etcd, fresh), views)
}

func newHolds(reported *reportedWeights, views Views) *Holds {
	return &Holds{reported: reported, groups: map[uuid.UUID]*hold{}, views: views.HoldOf}
}

// of returns the hold of a group. The caller holds mu.
func (h *Holds) of(id uuid.UUID) *hold {
	if h.groups[id] == nil {
		h.groups[id] = &hold{callers: map[any]uint64{}}
	}
	return h.groups[id]
}

// Take records that an archiver has archived a group that this shard leads, up to an index, and makes the log obey the
// resulting hold. The value of call identifies the archiver's call.
func (h *Holds) Take(call any, sv Copy, index uint64) {
	h.change(sv, func(one *hold) { one.callers[call] = index })
}

// Begin records that an archiver is about to make its first copy of a group, as of an index. If the group has no hold
// yet, that index becomes its hold.
func (h *Holds) Begin(sv Copy, index uint64) {
	h.change(sv, func(one *hold) {
		if _, on := one.index(); !on {
			one.last, one.known = index, true
		}
	})
}

// change updates the hold of a group by calling do, and makes the log obey it.
func (h *Holds) change(sv Copy, do func(*hold)) {
	h.mu.Lock()
	one := h.of(sv.UUID())
	do(one)
	at, on := one.index()
	h.set(sv, at, on)
	h.mu.Unlock()
	// If there is no space to store the history floor, the floor remains unknown, and HistoryFloor reports that. The
	// archive works nevertheless.
	_ = sv.Log().BeginHistory()
}

// set makes a log obey its hold. The arguments are the hold of the group's archive. The caller holds mu, so that no
// older knowledge replaces a newer one.
func (h *Holds) set(sv Copy, at uint64, on bool) {
	viewed, needed, known := h.views(sv.UUID())
	if !known { // the log keeps what it has: it is not known how much of it a view needs
		viewed, needed = ofLog(sv.Log())
	}
	if needed && (!on || viewed < at) {
		at, on = viewed, true
	}
	sv.Log().SetHold(group.Hold{Index: at, On: on})
}

// View makes the log of a group obey its views, and returns the history floor. When it returns, no compaction raises
// the floor above the hold, unless it ignores holds.
func (h *Holds) View(ctx context.Context, sv Copy, state placement.Group) (floor uint64, err error) {
	h.Obey(ctx, sv, state)
	return sv.Log().SettleHistory()
}

// Obey makes the log of a group obey the hold that is known now. Each compaction is preceded by it. To learn of the
// hold, Obey may read from etcd what leaders have reported.
func (h *Holds) Obey(ctx context.Context, sv Copy, state placement.Group) {
	at, on := h.Of(ctx, sv, state)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.set(sv, at, on)
}

// Leave records that an archiver's call has ended. If no other call follows a group, the last position that this call
// reported for the group remains its hold.
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

// ErrFollowed means that an archiver follows a group whose hold is to end.
var ErrFollowed = errors.New("an archiver follows the group: stop the archiver first")

// ErrLeaderHolds means that the hold of a group cannot end here yet, because its leader may still report it to etcd.
var ErrLeaderHolds = errors.New("the group's leader has not reported yet that the hold has ended")

// End ends the hold of a group, because nobody archives the store any more. It reports whether there was a hold. The
// leader ends its hold first. Another member waits until etcd shows that the leader has no hold, because it would
// otherwise learn the hold again. End returns ErrFollowed, ErrLeaderHolds, or the error of the log.
func (h *Holds) End(ctx context.Context, sv Copy, state placement.Group) (ended bool, err error) {
	term, leads := sv.Leads()
	if !leads {
		weights, known := h.reported.again(ctx, state.Leader)
		if w := weights[state.Name]; !known || w.UUID != state.UUID || w.Holds {
			return false, ErrLeaderHolds
		}
	}
	// The lock is held until the floor is gone. Otherwise a view that is opened meanwhile would lose its hold.
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.of(sv.UUID())
	if len(one.callers) > 0 {
		return false, ErrFollowed
	}
	_, ended = sv.Log().HistoryFloor()
	ended = ended || one.known
	// A leader must not learn from etcd what it has reported itself.
	one.last, one.known, one.term = 0, false, term
	one.none, one.noneIn = true, term
	if _, viewed, known := h.views(sv.UUID()); viewed || !known {
		h.set(sv, 0, false)
		return ended, nil // views need the history; the log keeps no more of it than they do
	}
	return ended, sv.Log().EndHistory()
}

// forget removes the holds of groups that are no longer on this shard.
func (h *Holds) forget(r *replicas.Routes) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.groups {
		if r.ByUUID[id] == nil {
			delete(h.groups, id)
		}
	}
}

// Of returns the hold of a group's archive, on a shard that serves the group. It returns false if there is none. To
// learn of it, Of may read from etcd what leaders have reported.
func (h *Holds) Of(ctx context.Context, sv Copy, state placement.Group) (at uint64, on bool) {
	if term, leads := sv.Leads(); leads {
		return h.ofLeader(ctx, sv, term, state)
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
	term, _ := sv.Leads() // the term may be newer by now
	return one.unknown(sv, term, told.Term > 0 && told.Term == term)
}

// unknown returns the hold of an archive of which no position is known. If reported is true, the newest report of a
// leader says that there is no archive. The argument term is the present term.
func (h *hold) unknown(sv Copy, term uint64, reported bool) (at uint64, on bool) {
	at, on = ofLog(sv.Log())
	if h.none = h.none && h.noneIn == term || reported || !on; h.none {
		h.noneIn = term
		return 0, false
	}
	return at, on
}

// Led notes that a copy leads its group, if it does. A caller that asks for the holds of many groups calls Led for all
// of them first. One answer of etcd then serves all groups that have a new leader.
func (h *Holds) Led(sv Copy) {
	term, leads := sv.Leads()
	if !leads {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.of(sv.UUID()).led(term)
}

// led notes that this replica leads in a term.
func (h *hold) led(term uint64) {
	if h.ledTerm != term {
		h.ledTerm, h.ledSince = term, time.Now()
	}
}

// ofLeader does the same as Of on the group's leader. A leader to which no archiver has given a position uses the
// hold that the previous leader last reported. It looks for that report only once in each term, because most stores
// have no archive.
func (h *Holds) ofLeader(ctx context.Context, sv Copy, term uint64,
	state placement.Group) (at uint64, on bool) {
	h.mu.Lock()
	one := h.of(sv.UUID())
	one.led(term)
	at, on = one.index()
	since, asked := one.ledSince, one.term == term
	if !on && asked {
		at, on = one.unknown(sv, term, false)
	}
	h.mu.Unlock()
	if on || asked {
		return at, on
	}
	newest, complete := registry.Weight{}, true
	for _, member := range state.Members {
		weights, known := h.reported.weightsOf(ctx, member.Shard, since)
		complete = complete && known
		if w := weights[state.Name]; w.UUID == state.UUID && isNewer(w, newest) {
			newest = w
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if complete {
		one.term = term
	}
	if !one.known && newest.Holds {
		one.last, one.known = newest.Hold, true
	}
	if at, on = one.index(); on {
		return at, true
	}
	return one.unknown(sv, term, complete && newest.Term > 0)
}

// isNewer reports whether a report about a group was made later than another one, as far as that can be told. Of two
// reports of one term, or if an older version of Sheaf made one of them, the one with a hold counts as the later one.
func isNewer(w, other registry.Weight) bool {
	if w.Term == other.Term || w.Term == 0 || other.Term == 0 && other.Holds {
		return w.Holds && (!other.Holds || w.Hold > other.Hold)
	}
	return w.Term > other.Term
}

// Report returns what the leader of a group reports to etcd about the hold, with the term that the report is of. The
// argument last is what etcd has of this shard. A leader that knows no position, and that could not read what the
// members have reported, does not know the hold. It repeats the hold and the term of last, because a report of its own
// term would replace what earlier leaders have reported.
func (h *Holds) Report(ctx context.Context, sv Copy, state placement.Group,
	last registry.Weight) (at uint64, on bool, term uint64) {
	at, on = h.Of(ctx, sv, state)
	term, leads := sv.Leads()
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.of(sv.UUID())
	if _, told := one.index(); leads && (told || one.term == term) {
		return at, on, term
	}
	if last.UUID != sv.UUID() {
		return 0, false, 0
	}
	return last.Hold, last.Holds, last.Term
}

// Remains reports whether a shard must repeat its last report about a group that it no longer leads. The next leader
// may not have read that report yet, and no other one tells it whether the group has an archive. If this copy keeps no
// history, for example because the floor could not be written to a full disk, a hold is repeated until a later leader
// has reported: that leader has read this report.
func (h *Holds) Remains(ctx context.Context, sv Copy, state placement.Group, last registry.Weight) bool {
	if last.UUID != sv.UUID() || last.Term == 0 {
		return false
	}
	_, held := sv.Log().HistoryFloor()
	return held || last.Holds && h.reported.weightOf(ctx, state).Term <= last.Term
}

// ofLog returns the hold of a log while nothing is known about its archive, for example if etcd has not responded
// since the start. If the log ever had a hold, ofLog returns its history floor, so that all remaining history is kept
// until more is known.
func ofLog(log *group.Log) (at uint64, on bool) { return log.HistoryFloor() }

// hold applies a group's hold to the group's log.
func (c *Compactor) hold(sv *replicas.Served) {
	state, ok := c.Replicas.GroupOf(sv.Group)
	if !ok {
		return // nothing is known about the group, so the log keeps its current hold
	}
	c.History.Obey(c.Context, sv, state.Group)
}

// holdBytesMax returns how many bytes the holds of all groups may keep. It returns false if there is no limit, because
// the size of the volume is not known.
func (c *Compactor) holdBytesMax() (int64, bool) {
	total := c.Disk.TotalBytes()
	return cmp.Or(c.HoldBytesMax, total/holdPart), c.HoldBytesMax > 0 || total > 0
}

// limitHistory compacts groups regardless of their holds if the holds keep more bytes than allowed. It begins with
// the group that has the most held bytes, and stops when the rest is within the limit.
func (c *Compactor) limitHistory(ctx context.Context) {
	most, limited := c.holdBytesMax()
	if !limited {
		return
	}
	groups, held := c.heldGroups()
	groups = slices.DeleteFunc(groups, func(g servedGroup) bool {
		if !c.History.byViews(g.UUID()) {
			return false
		}
		held -= g.stats.HeldBytes // limitViews counts these
		return true
	})
	for _, g := range groups {
		if held <= most || ctx.Err() != nil {
			return
		}
		c.Logger.Warn("gave up history that an archive holds, because holds keep too many bytes: is the archiver running?",
			"group", g.Name(), "held_bytes", g.stats.HeldBytes, "of_all_groups", held, "limit", most)
		opts := compactAtRate(c.RateBytesPerSecond)
		opts.IgnoreHold = true
		c.compact(ctx, &g, opts)
		held -= g.stats.HeldBytes - g.Log().Stats().HeldBytes
	}
}

// compactAtRate returns options with a rate limit as Compaction.RateBytesPerSecond has it.
func compactAtRate(bytesPerSecond int64) group.CompactOptions {
	return group.CompactOptions{RateBytesPerSecond: max(bytesPerSecond, 0)}
}

// giveUpHistory frees space for the volume. It compacts, regardless of their holds, all groups that keep bytes only
// for an archive or for views, and then those that may keep deletes for it. Other copies of these groups can still
// answer for the views.
func (c *Compactor) giveUpHistory(ctx context.Context) (made bool) {
	if c.Off {
		return false
	}
	groups, _ := c.heldGroups()
	for _, g := range c.servedGroups(nil) {
		if _, archived := g.Log().HistoryFloor(); archived && g.stats.HeldBytes <= 0 && g.stats.Reclaim.Tombstones > 0 {
			groups = append(groups, g)
		}
	}
	for _, g := range groups {
		if ctx.Err() != nil {
			break
		}
		c.Logger.Warn("gave up history that an archive or views hold, because the volume needs the space", "group", g.Name(),
			"held_bytes", g.stats.HeldBytes)
		made = c.compact(ctx, &g, group.CompactOptions{SpaceLow: true, IgnoreHold: true}) > 0 || made
	}
	return made
}

// heldGroups returns the groups that keep bytes only for an archive, and the sum of these bytes. Groups with more
// such bytes come first.
func (c *Compactor) heldGroups() (groups []servedGroup, held int64) {
	groups = slices.DeleteFunc(c.servedGroups(nil), func(g servedGroup) bool { return g.stats.HeldBytes <= 0 })
	slices.SortFunc(groups, func(a, b servedGroup) int { return cmp.Compare(b.stats.HeldBytes, a.stats.HeldBytes) })
	for _, g := range groups {
		held += g.stats.HeldBytes
	}
	return groups, held
}
