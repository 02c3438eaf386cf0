package gateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/status/page"
)

// Status is the status of a gateway: what it knows from etcd, and the age of that knowledge. Its JSON is served at
// /status. Shards are not asked: their own status reports what they hold, load and need.
type Status struct {
	Summary page.Summary `json:"summary"` // the state in a sentence, and what to do
	Store   string       `json:"store"`
	Address string       `json:"address"`
	Version string       `json:"version"`
	// StoreUUID, Routing and Copies are known once etcd has been read.
	StoreUUID string             `json:"storeUUID,omitempty"`
	Routing   *placement.Routing `json:"routing,omitempty"`
	Copies    int                `json:"copies,omitempty"`
	Epoch     uint64             `json:"routingEpoch"` // 0: etcd has not been read yet
	// EtcdSilentSeconds is the time since etcd last answered; -1: it never has.
	EtcdSilentSeconds float64       `json:"etcdSilentSeconds"`
	Calls             int64         `json:"calls"` // calls in progress
	Stopping          bool          `json:"stopping"`
	Shards            []ShardStatus `json:"shards"`
	Groups            []GroupStatus `json:"groups"`
	// Moves are the groups whose target differs from their place, according to the planner.
	Moves []MoveStatus `json:"moves,omitempty"`
	// Problems say what is wrong and what to do; empty: all is well.
	Problems []string `json:"problems,omitempty"`
	// Findings are the same as those of sheaf doctor, the worst first.
	Findings []finding.Finding `json:"findings,omitempty"`
	waits    string            // why groups have no place; empty: all have one, or it is not known
}

// ShardStatus is a shard that is registered, or that holds groups.
type ShardStatus struct {
	Name          string `json:"name"`
	Address       string `json:"address,omitempty"`
	State         string `json:"state"` // Active, Cordoned, Draining; Silent: it is not registered
	Node          string `json:"node,omitempty"`
	Zone          string `json:"zone,omitempty"`
	Domain        string `json:"domain,omitempty"`
	CapacityBytes int64  `json:"capacityBytes,omitempty"`
	GroupCount    int    `json:"groupCount"` // voting copies
	Leaders       int    `json:"leaders"`
	StoredBytes   int64  `json:"storedBytes"` // size of the voting copies, as last reported
}

// GroupStatus says where a group is, and in which state.
type GroupStatus struct {
	Group string `json:"group"`
	// Routed; Degraded: a shard with a copy is silent; Unavailable: so many of these shards are silent that the rest
	// are no majority; Pending: not yet created; Unknown: its key in etcd cannot be used
	State       string   `json:"state"`
	Leader      string   `json:"leader,omitempty"`
	Shards      []string `json:"shards"` // the shards with the voting copies
	Records     int64    `json:"records"`
	StoredBytes int64    `json:"storedBytes"`
}

// MoveStatus is a group whose target differs from its place.
type MoveStatus struct {
	Group   string   `json:"group"`
	From    []string `json:"from"`
	To      []string `json:"to"`
	Bytes   int64    `json:"bytesTotal"`
	Reason  string   `json:"reason,omitempty"`
	Running bool     `json:"running"` // the move is decided; else the planner would start it
}

// Status returns the present state.
func (g *Gateway) Status() Status {
	last, held := g.cfg.Store.LastAnswer()
	st := Status{
		Store: g.cfg.Store.Name(), Address: g.Addr(), Version: g.cfg.Version, EtcdSilentSeconds: -1, Calls: g.calls.Load(),
		Shards: []ShardStatus{}, Groups: []GroupStatus{},
	}
	if !last.IsZero() {
		st.EtcdSilentSeconds = time.Since(last).Seconds()
	}
	select {
	case <-g.stopping:
		st.Stopping = true
	default:
	}
	t := g.router.table.Load()
	if t != nil {
		meta := t.view.Meta
		st.StoreUUID, st.Routing, st.Copies, st.Epoch = meta.StoreUUID.String(), &meta.Routing, meta.Copies, t.view.Epoch
		places := t.places()
		st.Shards, st.Groups, st.Moves = places.shards, places.groups, places.moves
		st.find(t, g.storeProblems(t))
	}
	if err := g.taken.Refused(); err != nil {
		st.Problems = append(st.Problems, err.Error())
	}
	st.summarize(t != nil, held)
	return st
}

const silent = "Silent"

// States of a group.
const (
	groupRouted      = "Routed"
	groupDegraded    = "Degraded"
	groupUnavailable = "Unavailable"
	groupPending     = "Pending"
)

// find derives findings from etcd's data, as sheaf doctor does from the shards' reports. etcd does not know which
// groups are served. A group therefore counts as served while a majority of its copies is on registered shards.
func (st *Status) find(t *table, problems []string) {
	seen := finding.Facts{Store: problems, Warnings: t.warnings(), Whole: true}
	isSilent, placed := map[string]bool{}, t.placedShards()
	for i := range st.Shards {
		s := &st.Shards[i]
		isSilent[s.Name] = s.State == silent
		row := &recordv1.Shard{Name: s.Name, Address: s.Address, Alive: s.State != silent, Groups: int32(s.GroupCount)}
		placed[s.Name].fill(row)
		seen.Shards = append(seen.Shards, row)
	}
	for i := range st.Groups {
		g := &st.Groups[i]
		add := func(shard string, state recordv1.GroupState, message string) {
			seen.Groups = append(seen.Groups, &recordv1.Group{Group: g.Group, Shard: shard, State: state, Message: message,
				Leader: state == recordv1.GroupState_GROUP_STATE_SERVING})
		}
		away := 0
		for _, shard := range g.Shards {
			if isSilent[shard] {
				add(shard, recordv1.GroupState_GROUP_STATE_UNAVAILABLE, "")
				away++
			}
		}
		switch {
		case g.State == groupPending:
			why := t.unplaced()[g.Group]
			st.waits = cmp.Or(st.waits, why)
			add("", recordv1.GroupState_GROUP_STATE_PENDING, why)
		case g.State != groupUnavailable:
			add("", recordv1.GroupState_GROUP_STATE_SERVING, "")
		case 2*away < len(g.Shards): // shards came back with other volumes
			add("", recordv1.GroupState_GROUP_STATE_UNAVAILABLE,
				"a majority of its copies is not on the shards that are registered: it cannot be read or written")
		}
	}
	st.Findings = finding.Of(seen)
	st.Problems = finding.Problems(st.Findings, "")
}

// places holds a view's data on shards, groups and moves.
type places struct {
	shards []ShardStatus
	groups []GroupStatus
	moves  []MoveStatus
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
		for _, m := range g.Members {
			if m.Role == placement.Learner {
				continue
			}
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
		row.State = groupState(t.voters(&g))
		out.groups = append(out.groups, row)
	}
	for name, r := range t.named {
		if r.unknown != "" {
			out.groups = append(out.groups, GroupStatus{Group: name, State: "Unknown", Shards: []string{}})
		}
	}
	for _, s := range shards {
		out.shards = append(out.shards, *s)
	}
	slices.SortFunc(out.shards, func(a, b ShardStatus) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(out.groups, func(a, b GroupStatus) int { return placement.CompareGroups(a.Group, b.Group) })
	for _, m := range placement.Moves(t.view, t.view.Meta.Policy()) {
		out.moves = append(out.moves, MoveStatus{Group: m.Group, From: m.From, To: m.To, Bytes: m.Bytes,
			Reason: string(m.Reason), Running: m.Running})
	}
	return out
}

// voters returns the number of a group's voting copies, and of those that are on shards registered with their volume.
func (t *table) voters(g *placement.Group) (copies, there int) {
	for _, m := range g.Members {
		if m.Role == placement.Learner {
			continue
		}
		copies++
		if registered, ok := t.view.Shards[m.Shard]; ok && registered.VolumeUUID == m.VolumeUUID {
			there++
		}
	}
	return copies, there
}

// groupState returns the state of a group. copies is the number of its voting copies, and there is the number of those
// that are on shards registered with their volume.
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

// summarize sets the summary sentence.
func (st *Status) summarize(known bool, held string) {
	f := page.Facts{
		EtcdSilent: time.Duration(max(0, st.EtcdSilentSeconds) * float64(time.Second)), EtcdHeld: held, Problems: st.Problems,
		Groups: len(st.Groups), Shards: len(st.Shards), Routes: true,
	}
	waiting := 0
	for i := range st.Groups {
		switch st.Groups[i].State {
		case groupUnavailable:
			f.Fail(st.Groups[i].Group, "")
		case groupPending:
			waiting++
		}
	}
	switch {
	case st.Stopping:
		f.Waits = "the gateway is stopping"
	case !known && held != "":
		f.Waits = "etcd is not followed: " + held
	case !known:
		f.Waits = "etcd has not answered yet: start it, or see that --etcd and --store are right"
	case len(st.Shards) == 0 && f.EtcdSilent < page.EtcdSilentMin:
		f.Waits = "no shard runs, so that nothing is served: start shards"
		if st.waits != "" {
			f.Waits += " (" + st.waits + ")"
		}
	case waiting > 0:
		f.Waits = fmt.Sprintf("%d of %d groups are not made yet: %s", waiting, len(st.Groups),
			cmp.Or(st.waits, "shards make them when they start"))
	case f.EtcdSilent >= page.EtcdSilentMin:
		f.Failed = nil // registrations expire while etcd is unavailable, so it is unknown which shards are silent
	}
	st.Summary = page.Summarize(&f)
}

// HandleStatus serves a web page at /, and /status (JSON of Status).
func (g *Gateway) HandleStatus(mux *http.ServeMux) {
	page.Handle(mux)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(g.Status()); err != nil {
			g.cfg.Logger.Debug("answering /status", "error", err)
		}
	})
}
