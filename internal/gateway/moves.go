package gateway

import (
	"cmp"
	"context"
	"slices"
	"sort"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/paging"
	"sheaf.dev/sheaf/internal/placement"
)

// fillMembers copies the leader's report about each member of a group into the member's own row.
func fillMembers(answers []*recordv1.ListGroupsResponse) {
	type replica struct {
		group string
		id    uint64
	}
	said := map[replica]*recordv1.Member{}
	for _, answer := range answers {
		for _, row := range answer.GetGroups() {
			for _, m := range row.GetMembers() {
				said[replica{row.GetGroup(), m.GetRaftId()}] = m
			}
		}
	}
	for _, answer := range answers {
		for _, row := range answer.GetGroups() {
			m := said[replica{row.GetGroup(), row.GetRaftId()}]
			if m == nil || row.MatchIndex != nil || row.GetRaftId() == 0 {
				continue
			}
			row.MatchIndex, row.LagEntries = new(m.GetMatchIndex()), new(m.GetLagEntries())
		}
	}
}

// PlanMoves returns the running moves with their progress, and the moves that the planner would start.
func (a *adminServer) PlanMoves(ctx context.Context, request *recordv1.PlanMovesRequest) (*recordv1.PlanMovesResponse,
	error) {
	page, field, err := paging.Asked(paging.Moves, request)
	if err != nil {
		return nil, invalid(field, "%v", err)
	}
	t, err := a.g.router.wait(ctx)
	if err != nil {
		return nil, err
	}
	copies, err := a.copies(ctx, t)
	if err != nil {
		return nil, err
	}
	var moves []*recordv1.Move
	planned := map[string]bool{}
	for _, m := range placement.Moves(t.view, t.view.Meta.Policy()) {
		planned[m.Group] = true
		move := &recordv1.Move{
			Group: m.Group, From: m.From, To: m.To, Bytes: m.Bytes, Reason: string(m.Reason), Running: m.Running,
			SharedDomains: m.SharedDomains,
		}
		if m.Running {
			follow(move, t.view.Groups[m.Group], copies[m.Group])
		}
		moves = append(moves, move)
	}
	for group, made := range copies {
		if !planned[group] { // the group does not move between shards; a shard rebuilds its copy on another volume
			moves = append(moves, t.creation(group, made))
		}
	}
	slices.SortFunc(moves, func(a, b *recordv1.Move) int {
		return placement.CompareGroups(a.GetGroup(), b.GetGroup())
	})
	begin := sort.Search(len(moves), func(i int) bool {
		return placement.CompareGroups(moves[i].GetGroup(), page.After) > 0
	})
	out := &recordv1.PlanMovesResponse{}
	out.Moves, out.NextPageToken = paging.Cut(page, moves[begin:], (*recordv1.Move).GetGroup, false)
	return out, nil
}

// copies asks all shards which copies they are building, and returns the copies by group. A shard that does not
// respond, or is too old for the request, contributes none.
func (a *adminServer) copies(ctx context.Context, t *table) (map[string][]*recordv1.Copy, error) {
	shards := t.sortedShards()
	answers := make([]*recordv1.PlanMovesResponse, len(shards))
	// A shard's response is nil if the call failed.
	err := askAll(ctx, len(shards), func(ctx context.Context, i int) {
		answers[i], _ = recordv1.AllMoves(ctx, recordv1.NewAdminServiceClient(shards[i].conn()))
	})
	if err != nil {
		return nil, err
	}
	out := map[string][]*recordv1.Copy{}
	for _, answer := range answers {
		for _, m := range answer.GetMoves() {
			if _, known := t.view.Groups[m.GetGroup()]; known {
				out[m.GetGroup()] = append(out[m.GetGroup()], m.GetCopies()...)
			}
		}
	}
	return out, nil
}

// creation returns a move that represents the rebuilding of copies in a group that stays on the same shards.
func (t *table) creation(group string, copies []*recordv1.Copy) *recordv1.Move {
	g := t.view.Groups[group]
	m := &recordv1.Move{Group: group, Running: true, Reason: string(placement.ForRepair)}
	for _, voter := range g.Voters() {
		m.From = append(m.From, voter.Shard)
	}
	m.To = slices.Clone(m.From)
	for _, c := range copies {
		if !slices.Contains(m.To, c.GetShard()) {
			m.To = append(m.To, c.GetShard())
		}
		m.Bytes += g.Bytes
	}
	follow(m, g, copies)
	return m
}

// follow sets the progress of a move. The argument g is etcd's record of the group. The argument copies holds the
// reports of the receiving shards.
func follow(m *recordv1.Move, g placement.Group, copies []*recordv1.Copy) {
	for _, shard := range m.GetTo() {
		i := slices.IndexFunc(copies, func(c *recordv1.Copy) bool { return c.GetShard() == shard })
		j := slices.IndexFunc(g.Members, func(one placement.Member) bool { return one.Shard == shard })
		switch {
		case i >= 0:
			m.Copies = append(m.Copies, copies[i])
		case slices.Contains(m.GetFrom(), shard): // this shard keeps its copy
		case j >= 0 && g.Members[j].Role == placement.Voter:
			m.Copies = append(m.Copies, &recordv1.Copy{
				Shard: shard, Phase: recordv1.CopyPhase_COPY_PHASE_DONE, BytesTotal: g.Bytes, BytesDone: g.Bytes,
			})
		default:
			m.Copies = append(m.Copies, &recordv1.Copy{Shard: shard, Phase: recordv1.CopyPhase_COPY_PHASE_WAITING})
		}
	}
	slices.SortFunc(m.GetCopies(), func(a, b *recordv1.Copy) int { return cmp.Compare(a.GetShard(), b.GetShard()) })
	sumUp(m, g.Bytes)
}

// sumUp computes the progress of a move from its copies. For a copy of unknown size, it uses the size that the group
// last reported.
func sumUp(m *recordv1.Move, bytes int64) {
	m.Phase, m.Bytes = recordv1.MovePhase_MOVE_PHASE_SWITCHING, 0
	var eta float64
	known := true
	for _, c := range m.GetCopies() {
		total := c.GetBytesTotal()
		if total == 0 {
			total = bytes
		}
		m.Bytes += total
		m.BytesDone += min(c.GetBytesDone(), total)
		m.BytesPerSecond += c.GetBytesPerSecond()
		phase := movePhases[c.GetPhase()]
		m.Phase = behind(m.GetPhase(), phase)
		switch {
		case phase > recordv1.MovePhase_MOVE_PHASE_COPYING:
		case c.EtaSeconds != nil:
			eta = max(eta, c.GetEtaSeconds()) // copies are built in parallel
		default:
			known = false
		}
	}
	if known {
		m.EtaSeconds = &eta
	}
}

// behind returns the phase of a move that has two copies in the phases a and b. If one of the copies is being copied,
// the move is in the copying phase; otherwise it is in the earlier of the two phases.
func behind(a, b recordv1.MovePhase) recordv1.MovePhase {
	if a == recordv1.MovePhase_MOVE_PHASE_COPYING || b == recordv1.MovePhase_MOVE_PHASE_COPYING {
		return recordv1.MovePhase_MOVE_PHASE_COPYING
	}
	return min(a, b)
}

var movePhases = map[recordv1.CopyPhase]recordv1.MovePhase{
	recordv1.CopyPhase_COPY_PHASE_WAITING: recordv1.MovePhase_MOVE_PHASE_WAITING,
	recordv1.CopyPhase_COPY_PHASE_FILES:   recordv1.MovePhase_MOVE_PHASE_COPYING,
	recordv1.CopyPhase_COPY_PHASE_ENTRIES: recordv1.MovePhase_MOVE_PHASE_CATCHING_UP,
	recordv1.CopyPhase_COPY_PHASE_DONE:    recordv1.MovePhase_MOVE_PHASE_SWITCHING,
}
