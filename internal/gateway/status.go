package gateway

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/status/page"
)

// Status is a gateway's status: its data from etcd, and the age of that data. It is served as JSON at /status. It
// contains no reports from shards, which have their own status.
type Status struct {
	Summary *recordv1.StatusSummary `json:"summary"` // the state in one sentence, and the next step
	Store   string                  `json:"store"`
	Address string                  `json:"address"`
	Version string                  `json:"version"`
	// StoreUUID, Routing and Copies are known once etcd has been read.
	StoreUUID string             `json:"storeUuid,omitempty"`
	Routing   *placement.Routing `json:"routing,omitempty"`
	Copies    int                `json:"copies,omitempty"`
	Epoch     uint64             `json:"routingEpoch"` // 0 if etcd has not been read yet
	// GroupsRestoring is the number of groups that wait for their restore from an archive. It is nil while the number is
	// unknown: etcd has not been read yet, Restore.Listing is true, or the key of a group is lost or cannot be read.
	GroupsRestoring *int           `json:"groupsRestoring,omitempty"`
	Restore         *RestoreStatus `json:"restore,omitempty"` // nil if the store was not created from an archive
	// EtcdSilentSeconds is the time since etcd last answered. It is nil if etcd has never answered.
	EtcdSilentSeconds *float64      `json:"etcdSilentSeconds,omitempty"`
	Calls             int64         `json:"calls"` // calls in progress
	Stopping          bool          `json:"stopping"`
	Shards            []ShardStatus `json:"shards"`
	Groups            []GroupStatus `json:"groups"`
	// Moves are the groups whose target differs from their current shards, including moves that the planner would
	// start.
	Moves []MoveStatus `json:"moves,omitempty"`
	// Problems are messages that describe a problem and its remedy. The list is empty if there are no problems.
	Problems []string `json:"problems,omitempty"`
	// Findings lists the same findings as sheaf doctor, the worst first.
	Findings []finding.Finding `json:"findings,omitempty"`
	// LeftOut holds, for each list above, the number of rows that were left out. It is nil if the lists are complete.
	LeftOut *LeftOut `json:"leftOut,omitempty"`
}

// These constants limit the lists in a Status, so that the size of a response does not grow with the store. A longer
// list keeps the most important rows, and LeftOut has the number of the others.
const (
	groupsListed   = 4000 // as many as the web page shows
	shardsListed   = 1000
	movesListed    = 1000
	findingsListed = 500 // limit on the list of findings, and on the list of problems
)

// LeftOut holds, for each list in a Status, the number of rows that were left out.
type LeftOut struct {
	Groups      int            `json:"groups,omitempty"`
	GroupStates map[string]int `json:"groupStates,omitempty"` // number of omitted groups in each state
	Records     int64          `json:"records,omitempty"`     // number of records in the omitted groups
	StoredBytes int64          `json:"storedBytes,omitempty"` // total size of the omitted groups, with one copy of each
	Shards      int            `json:"shards,omitempty"`
	Moves       int            `json:"moves,omitempty"`
	Findings    int            `json:"findings,omitempty"`
	Problems    int            `json:"problems,omitempty"`
	Text        string         `json:"text"` // names the commands that show all rows
}

// ShardStatus describes a shard that is registered or holds groups.
type ShardStatus struct {
	Name          string `json:"name"`
	Address       string `json:"address,omitempty"`
	State         string `json:"state"` // Active, Cordoned, Draining, or Silent if the shard is not registered
	Node          string `json:"node,omitempty"`
	Zone          string `json:"zone,omitempty"`
	Domain        string `json:"domain,omitempty"`
	CapacityBytes int64  `json:"capacityBytes,omitempty"`
	GroupCount    int    `json:"groupCount"` // number of voting copies on the shard
	Leaders       int    `json:"leaders"`
	StoredBytes   int64  `json:"storedBytes"` // size of the voting copies, as last reported
}

// GroupStatus says which shards hold a group, and which state the group is in.
type GroupStatus struct {
	Group string `json:"group"`
	// State is one of six words. Restoring means that the group waits for its restore. Degraded means that a shard with
	// a copy is silent. Unavailable means that so many of these shards are silent that the rest are not a majority.
	// Pending means that the group is not yet created. Unknown means that the group's key in etcd cannot be used. Routed
	// means that none of the above applies.
	State       string   `json:"state"`
	Leader      string   `json:"leader,omitempty"`
	Shards      []string `json:"shards"` // the shards with the voting copies
	Records     int64    `json:"records"`
	StoredBytes int64    `json:"storedBytes"`
}

// MoveStatus is a group whose target differs from its current shards.
type MoveStatus struct {
	Group   string   `json:"group"`
	From    []string `json:"from"`
	To      []string `json:"to"`
	Bytes   int64    `json:"bytesTotal"`
	Reason  string   `json:"reason,omitempty"`
	Running bool     `json:"running"` // true if the move has started, false if the planner would start it
}

// Status returns the current status.
func (g *Gateway) Status() Status {
	last, held := g.cfg.Store.LastAnswer()
	st := Status{
		Store: g.cfg.Store.Name(), Address: g.Addr(), Version: g.cfg.Version, Calls: g.calls.Load(),
		Shards: []ShardStatus{}, Groups: []GroupStatus{},
	}
	if !last.IsZero() {
		st.EtcdSilentSeconds = new(time.Since(last).Seconds())
	}
	select {
	case <-g.stopping:
		st.Stopping = true
	default:
	}
	t, p := g.router.table.Load(), places{}
	if t != nil {
		meta := t.view.Meta
		st.StoreUUID, st.Routing, st.Copies, st.Epoch = meta.StoreUUID.String(), &meta.Routing, meta.Copies, t.view.Epoch
		p = t.places()
		st.Restore, st.GroupsRestoring = g.restore(t)
		if st.Restore != nil {
			p.add(st.Restore.Problem)
		}
		p.add(g.etcdProblem())
		st.Shards, st.Groups, st.Moves, st.Findings, st.LeftOut = p.shards, p.groups, p.moves, p.findings, p.left
	}
	st.Problems, _ = shorten(p.problems, findingsListed)
	if err := g.taken.Refused(); err != nil {
		st.Problems, p.problems = append(st.Problems, err.Error()), append(slices.Clip(p.problems), err.Error())
	}
	st.summarize(&p, t != nil, held)
	return st
}

const silent = "Silent"

// These are the possible states of a group.
const (
	groupRouted      = "Routed"
	groupDegraded    = "Degraded"
	groupUnavailable = "Unavailable"
	groupPending     = "Pending"
	groupRestoring   = "Restoring"
	groupUnknown     = "Unknown"
)

// find derives findings from etcd's data, as sheaf doctor does from the shards' reports. etcd does not know which
// groups are served. A group therefore counts as served while a majority of its copies is on registered shards.
func (p *places) find(t *table) {
	seen := finding.Facts{Store: t.view.Problems(), Warnings: t.warnings(), Whole: true}
	isSilent, placed := map[string]bool{}, t.placedShards()
	for i := range p.shards {
		s := &p.shards[i]
		isSilent[s.Name] = s.State == silent
		row := &recordv1.Shard{Name: s.Name, Address: s.Address, Alive: s.State != silent, Groups: int32(s.GroupCount)}
		placed[s.Name].fill(row)
		seen.Shards = append(seen.Shards, row)
	}
	for i := range p.groups {
		g := &p.groups[i]
		add := func(shard string, state recordv1.GroupState, message string) {
			seen.Groups = append(seen.Groups, &recordv1.Group{Group: g.Group, Shard: shard, State: state, Message: message,
				Leader: state == recordv1.GroupState_GROUP_STATE_SERVING})
		}
		if g.State == groupUnavailable {
			p.failed = append(p.failed, g.Group)
		}
		away := 0
		for _, shard := range g.Shards {
			if shard == "" || isSilent[shard] {
				add(shard, recordv1.GroupState_GROUP_STATE_UNAVAILABLE, "one of its copies is on no shard that is registered")
				away++
			}
		}
		switch {
		case g.State == groupPending, g.State == groupRestoring:
			p.waiting++
			why := t.unplaced()[g.Group]
			if g.State == groupRestoring {
				why = t.named[g.Group].waits
			}
			p.waits = cmp.Or(p.waits, why)
			add("", recordv1.GroupState_GROUP_STATE_PENDING, why)
		case g.State != groupUnavailable:
			add("", recordv1.GroupState_GROUP_STATE_SERVING, "")
		case 2*away < len(g.Shards): // the shards of these copies have come back with other volumes, so the copies are lost
			add("", recordv1.GroupState_GROUP_STATE_UNAVAILABLE,
				"a majority of its copies is not on the shards that are registered: it cannot be read or written")
		}
	}
	p.findings = finding.Of(seen)
	p.problems = finding.Problems(p.findings, "")
}

// places holds the contents of a view for a Status: shards, groups and moves.
type places struct {
	shards   []ShardStatus
	groups   []GroupStatus
	moves    []MoveStatus
	findings []finding.Finding
	left     *LeftOut // number of rows that the lists above leave out; nil if the lists are complete

	// The following fields cover all shards and groups, including those that the lists leave out.
	problems               []string
	shardCount, groupCount int
	failed                 []string // the groups that are not served
	waiting                int      // number of groups that no shard has created yet
	waits                  string   // why groups have no shards; empty if all have shards, or if the reason is not known
}

// add adds a store problem that is not in the table. If the problem is empty, add does nothing.
func (p *places) add(problem string) {
	if problem == "" {
		return
	}
	found := finding.Of(finding.Facts{Store: []string{problem}})
	p.findings = slices.Concat(found, p.findings)
	p.problems = slices.Concat(finding.Problems(found, ""), p.problems)
}

// groupRanks lists the states of groups, the most important first. Rows of the last state are left out first.
var groupRanks = []string{groupUnavailable, groupUnknown, groupDegraded, groupPending, groupRestoring, groupRouted}

// leaveOut shortens the lists to their limits.
func (p *places) leaveOut() {
	if len(p.groups) > groupsListed {
		slices.SortStableFunc(p.groups, func(a, b GroupStatus) int {
			return cmp.Compare(slices.Index(groupRanks, a.State), slices.Index(groupRanks, b.State))
		})
	}
	if len(p.shards) > shardsListed {
		slices.SortStableFunc(p.shards, func(a, b ShardStatus) int {
			return cmp.Compare(shardRank(a.State), shardRank(b.State))
		})
	}
	left := LeftOut{GroupStates: map[string]int{}, Text: "sheaf status, sheaf moves and sheaf doctor show all of it"}
	for _, g := range p.groups[min(len(p.groups), groupsListed):] {
		left.GroupStates[g.State]++
		left.Records += g.Records
		left.StoredBytes += g.StoredBytes
	}
	p.groups, left.Groups = shorten(p.groups, groupsListed)
	p.shards, left.Shards = shorten(p.shards, shardsListed)
	p.moves, left.Moves = shorten(p.moves, movesListed)
	p.findings, left.Findings = shorten(p.findings, findingsListed)
	_, left.Problems = shorten(p.problems, findingsListed)
	if left.Groups+left.Shards+left.Moves+left.Findings+left.Problems > 0 {
		p.left = &left
	}
}

// shardRank returns the rank by which shards are sorted. It returns 0 for the state "not registered", and 1 for any
// other state.
func shardRank(state string) int {
	if state == silent {
		return 0
	}
	return 1
}

// shorten returns the first rows of a list, at most the given number, and how many it leaves out.
func shorten[T any](list []T, most int) ([]T, int) {
	n := min(len(list), most)
	return slices.Clip(list[:n]), len(list) - n
}

// fill builds the lists of a status. It is called at most once per view.
func (t *table) fill() places {
	shards := make(map[string]*ShardStatus, len(t.view.Shards))
	for name, s := range t.view.Shards {
		shards[name] = &ShardStatus{
			Name: name, Address: s.Address, State: string(cmp.Or(s.State, placement.Active)), Node: s.Node, Zone: s.Zone,
			Domain: s.Domain, CapacityBytes: s.CapacityBytes,
		}
	}
	out := places{groups: make([]GroupStatus, 0, len(t.view.Groups)), shards: make([]ShardStatus, 0, len(shards))}
	for name, g := range t.view.Groups {
		row := GroupStatus{Group: name, Leader: g.Leader, Shards: []string{}, Records: g.Records, StoredBytes: g.Bytes}
		for _, m := range g.Voters() {
			s := shards[m.Shard]
			if s == nil {
				s = &ShardStatus{Name: m.Shard, State: silent}
				shards[m.Shard] = s
			}
			row.Shards = append(row.Shards, m.Shard)
			s.GroupCount++
			s.StoredBytes += g.Bytes
			if m.Shard == g.Leader {
				s.Leaders++
			}
		}
		slices.Sort(row.Shards)
		if row.State = groupState(t.voters(&g)); g.Restoring {
			row.State = groupRestoring
		}
		out.groups = append(out.groups, row)
	}
	for name, r := range t.named {
		_, hasKey := t.view.Groups[name]
		switch {
		case r.unknown != "":
			out.groups = append(out.groups, GroupStatus{Group: name, State: groupUnknown, Shards: []string{}})
		case !hasKey && r.waits != "":
			out.groups = append(out.groups, GroupStatus{Group: name, State: groupRestoring, Shards: []string{}})
		}
	}
	delete(shards, "") // "" stands for the shards that hold copies whose location is unknown
	for _, s := range shards {
		out.shards = append(out.shards, *s)
	}
	slices.SortFunc(out.shards, func(a, b ShardStatus) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(out.groups, func(a, b GroupStatus) int { return placement.CompareGroups(a.Group, b.Group) })
	for _, m := range placement.Moves(t.view, t.view.Meta.Policy()) {
		out.moves = append(out.moves, MoveStatus{Group: m.Group, From: m.From, To: m.To, Bytes: m.Bytes,
			Reason: string(m.Reason), Running: m.Running})
	}
	out.shardCount, out.groupCount = len(out.shards), len(out.groups)
	out.find(t)
	out.leaveOut()
	return out
}

// voters returns the number of a group's voting copies, and the number of those that are on shards which are
// registered with the copy's volume.
func (t *table) voters(g *placement.Group) (copies, there int) {
	for _, m := range g.Voters() {
		copies++
		if registered, ok := t.view.Shards[m.Shard]; ok && registered.VolumeUUID == m.VolumeUUID {
			there++
		}
	}
	return copies, there
}

// groupState returns a group's state. The argument copies is the number of the group's voting copies. The argument
// there is the number of those copies that are on shards which are registered with the copy's volume.
func groupState(copies, there int) string {
	switch {
	case copies == 0:
		return groupPending
	case 2*there <= copies:
		return groupUnavailable
	case there < copies:
		return groupDegraded
	}
	return groupRouted
}

// summarize sets the summary sentence. The argument held says why the gateway does not follow etcd. It is empty if
// the gateway follows etcd.
func (st *Status) summarize(p *places, known bool, held string) {
	f := page.Facts{
		EtcdHeld: held, Problems: p.problems, Groups: p.groupCount, Shards: p.shardCount, Routes: true, Failed: p.failed,
	}
	if st.EtcdSilentSeconds != nil {
		f.EtcdSilent = time.Duration(*st.EtcdSilentSeconds * float64(time.Second))
	}
	switch {
	case st.Stopping:
		f.Waits = "the gateway is stopping"
	case !known && held != "":
		f.Waits = "etcd is not followed: " + held
	case !known:
		f.Waits = "etcd has not answered yet: start it, or see that --etcd and --store are right"
	case p.shardCount == 0 && f.EtcdSilent < page.EtcdSilentMin:
		f.Waits = "no shard runs, so that nothing is served: start shards"
		if p.waits != "" {
			f.Waits += " (" + p.waits + ")"
		}
	case p.waiting > 0:
		f.Waits = fmt.Sprintf("%d of %d groups are not made yet: %s", p.waiting, p.groupCount,
			cmp.Or(p.waits, "shards make them when they start"))
	case f.EtcdSilent >= page.EtcdSilentMin:
		f.Failed = nil // registrations expire while etcd is unavailable, so it is unknown which shards are silent
	}
	st.Summary = page.Summarize(&f)
}

// HandleStatus serves a web page at /, and the Status as JSON at /status.
func (g *Gateway) HandleStatus(mux *http.ServeMux) {
	page.HandleStatus(mux, g.cfg.Logger, func() any { return g.Status() })
}
