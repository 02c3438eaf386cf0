package fleet

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/step"
)

// LeaderGrace is how long a group may be without a leader before it counts as not serving. An election, or a transfer
// of the leadership to another shard, normally takes less time.
const LeaderGrace = 3 * time.Second

// GroupBook keeps what the shards of each store last reported about their groups. The ShardPool controller writes it
// after querying the shards, and the RecordStore controller reads it. It is kept in memory only, so a restarted
// operator has to query the shards again. The zero value is ready for use. Safe for concurrent use.
type GroupBook struct {
	mu     sync.Mutex
	stores map[types.NamespacedName]*storeBook
}

// storeBook holds the reports for one store.
type storeBook struct {
	pools map[string]*poolPage
	// leaders counts, for each group, the shards that claim to lead it.
	leaders map[string]int
	// lostAt is when a group was first observed without a leader.
	lostAt map[string]time.Time
}

// poolPage holds what the shards of one pool reported at one moment.
type poolPage struct {
	at     time.Time
	shards map[string]shardPage
}

// shardPage holds the last report of one shard. answers is true if the report is current.
type shardPage struct {
	answers bool
	groups  []*recordv1.Group
}

// GroupSum summarizes what a GroupBook contains about the groups of one store.
type GroupSum struct {
	// Known is true if every pool has been asked since the operator started.
	Known bool
	// ElectionPending is true if a group has no leader and it is too early to say whether one will be elected.
	ElectionPending bool
	Groups          map[string]BookedGroup
	Records         int64
	// CopyingBytes is the number of bytes that are still missing in the copies that are being created.
	CopyingBytes int64
}

// BookedGroup is what the shards report about one group.
type BookedGroup struct {
	Serving    int  // copies that their shards serve
	Leaderless bool // no shard leads the group, and at least LeaderGrace has passed since the group lost its leader
}

// Note replaces the earlier reports of the shards of a pool. For a shard that does not answer now, Note keeps the last
// report.
func (b *GroupBook) Note(store types.NamespacedName, pool string, reports map[string]*recordv1.ShardStatus,
	now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stores == nil {
		b.stores = map[types.NamespacedName]*storeBook{}
	}
	s := b.stores[store]
	if s == nil {
		s = &storeBook{pools: map[string]*poolPage{}, leaders: map[string]int{}, lostAt: map[string]time.Time{}}
		b.stores[store] = s
	}
	page := &poolPage{at: now, shards: map[string]shardPage{}}
	before := s.pools[pool]
	for shard, report := range reports {
		if report.GetShard().GetState().Serves() {
			page.shards[shard] = shardPage{answers: true, groups: summed(report.GetGroups())}
		} else if before != nil {
			page.shards[shard] = shardPage{groups: before.shards[shard].groups}
		}
	}
	s.replace(pool, page, now)
}

// summed returns copies of the rows with only those fields that the book reads. The complete rows of a large store
// also contain the damages and members of each group, and would take up too much of the operator's memory.
func summed(rows []*recordv1.Group) []*recordv1.Group {
	out := make([]*recordv1.Group, len(rows))
	for i, g := range rows {
		out[i] = &recordv1.Group{Group: g.GetGroup(), State: g.GetState(), Leader: g.GetLeader(), Records: g.GetRecords(),
			AppliedIndex: g.GetAppliedIndex(), Copy: g.GetCopy()}
	}
	return out
}

// Forget removes the entries of a deleted pool.
func (b *GroupBook) Forget(store types.NamespacedName, pool string, now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.stores[store]; s != nil {
		s.replace(pool, nil, now)
		if len(s.pools) == 0 {
			delete(b.stores, store)
		}
	}
}

// ElectionPending reports whether a group of a store has lost its leader and does not count as leaderless yet. The
// shards of the store should then be asked again soon.
func (b *GroupBook) ElectionPending(store types.NamespacedName) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stores[store]
	if s == nil {
		return false
	}
	asked := s.asked()
	for group := range s.lostAt {
		if !s.leaderless(group, asked) {
			return true
		}
	}
	return false
}

// asked returns the time since which every pool has been queried, which is the time of the oldest report.
func (s *storeBook) asked() (oldest time.Time) {
	for _, page := range s.pools {
		if oldest.IsZero() || page.at.Before(oldest) {
			oldest = page.at
		}
	}
	return oldest
}

// leaderless reports whether a group lost its leader and has had none for long enough: all pools must have been asked
// at least LeaderGrace after the loss, without a shard that reported that it leads the group.
func (s *storeBook) leaderless(group string, asked time.Time) bool {
	at, lost := s.lostAt[group]
	return lost && asked.Sub(at) >= LeaderGrace
}

// replace sets the page of a pool and updates the counts of leaders.
func (s *storeBook) replace(pool string, page *poolPage, now time.Time) {
	if before := s.pools[pool]; before != nil {
		before.leads(func(group string) { s.leaders[group]-- })
	}
	delete(s.pools, pool)
	if page != nil {
		s.pools[pool] = page
		page.leads(func(group string) { s.leaders[group]++ })
	}
	there := map[string]bool{}
	for _, p := range s.pools {
		for _, shard := range p.shards {
			for _, g := range shard.groups {
				there[g.GetGroup()] = true
			}
		}
	}
	for group := range there {
		if s.leaders[group] > 0 {
			delete(s.lostAt, group)
		} else if _, known := s.lostAt[group]; !known {
			s.lostAt[group] = now
		}
	}
	for group := range s.leaders {
		if !there[group] {
			delete(s.leaders, group)
			delete(s.lostAt, group)
		}
	}
}

// leads calls f for each group that a shard of the pool currently leads.
func (p *poolPage) leads(f func(group string)) {
	for _, shard := range p.shards {
		for _, g := range shard.groups {
			if shard.answers && g.GetLeader() && g.GetState().Serves() {
				f(g.GetGroup())
			}
		}
	}
}

// Sum summarizes the reports of a store that has these pools.
func (b *GroupBook) Sum(store types.NamespacedName, pools []v1alpha1.ShardPool) GroupSum {
	out := GroupSum{Groups: map[string]BookedGroup{}}
	if b == nil {
		return out
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stores[store]
	if s == nil {
		return out
	}
	out.Known = len(pools) > 0
	for n := range pools {
		out.Known = out.Known && s.pools[pools[n].Name] != nil
	}
	best := map[string]bookedReport{}
	for _, page := range s.pools {
		for _, shard := range page.shards {
			for _, g := range shard.groups {
				name, now := g.GetGroup(), bookedReport{answers: shard.answers, Group: g}
				if was, there := best[name]; !there || now.compare(was) > 0 {
					best[name] = now
				}
				group := out.Groups[name]
				if shard.answers {
					out.CopyingBytes += max(0, g.GetCopy().GetBytesTotal()-g.GetCopy().GetBytesDone())
					if g.GetState().Serves() {
						group.Serving++
					}
				}
				out.Groups[name] = group
			}
		}
	}
	for _, g := range best {
		out.Records += g.GetRecords()
	}
	asked := s.asked()
	for name := range s.lostAt {
		group := out.Groups[name]
		group.Leaderless = out.Known && s.leaderless(name, asked)
		out.Groups[name] = group
		out.ElectionPending = out.ElectionPending || !group.Leaderless
	}
	return out
}

// bookedReport is a report about one copy of a group.
type bookedReport struct {
	answers bool
	*recordv1.Group
}

// compare orders reports about a group by their reliability. The report of a leader that answers is the most reliable.
// If several shards claim to lead, the one that has applied the most entries is preferred, because a former leader
// applies no more. Without a leader, a copy that serves is preferred, and among equals the one that has applied the
// most entries.
func (r bookedReport) compare(other bookedReport) int {
	return cmp.Or(compareTruth(r.answers && r.GetLeader(), other.answers && other.GetLeader()),
		compareTruth(r.GetState().Serves(), other.GetState().Serves()),
		cmp.Compare(r.GetAppliedIndex(), other.GetAppliedIndex()), compareTruth(r.GetLeader(), other.GetLeader()))
}

// compareTruth compares two booleans. It orders false before true.
func compareTruth(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// Led counts the groups that have a leader, including groups that have lost their leader only just now.
func (s GroupSum) Led() (n int32) {
	for _, g := range s.Groups {
		if !g.Leaderless {
			n++
		}
	}
	return n
}

// Troubles returns the groups that have no leader, or have fewer serving copies than wanted.
func (s GroupSum) Troubles(copies int32) (list []v1alpha1.GroupTrouble) {
	for name, g := range s.Groups {
		switch {
		case g.Leaderless:
			list = append(list, g.NoLeader(name))
		case g.Serving < int(copies):
			list = append(list, v1alpha1.GroupTrouble{Group: name, State: GroupDegraded,
				Message: step.CountOf(g.Serving, int(copies), "copy serves", "copies serve")})
		}
	}
	return list
}

// NoLeader describes the problem of a group that has no leader.
func (g BookedGroup) NoLeader(name string) v1alpha1.GroupTrouble {
	return v1alpha1.GroupTrouble{Group: name, State: GroupNoLeader,
		Message: fmt.Sprintf("no shard leads it, so that calls of it fail; %s loaded on shards that answer",
			step.Count(g.Serving, "of its copies is", "of its copies are"))}
}
