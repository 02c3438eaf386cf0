package shard

import (
	"errors"
	"slices"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/consensus/move"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/shard/serve"
	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// groupStatuses implements serve.Admin.Groups. It sorts groups by name, and numeric names by their value.
func (s *Shard) groupStatuses(only, behind string, most int) (out []*recordv1.Group, more bool) {
	var groups []namedReplica
	for _, g := range s.replicas.Groups() {
		if name := g.State().Name; (only == "" || name == only) && placement.CompareGroups(name, behind) > 0 {
			groups = append(groups, namedReplica{name, g})
		}
	}
	slices.SortFunc(groups, func(a, b namedReplica) int { return placement.CompareGroups(a.name, b.name) })
	groups, more = firstNames(groups, most)
	for _, g := range groups {
		known := g.State()
		p := &recordv1.Group{Group: g.name, Uuid: g.UUID.String(), Shard: s.cfg.Name, State: stateOf(known.Phase),
			Lost: known.Phase == member.Lost}
		p.Outcome, p.TruncatedBytes = outcomes[known.Report.Outcome], known.Report.TornTailBytes
		p.RaftId, p.Copy = known.RaftID, copyTo(s.cfg.Name, g.Replica, known.Phase)
		if known.Err != nil {
			p.Message = known.Err.Error()
		}
		if sv := g.Served(); sv != nil {
			describe(p, sv)
		}
		out = append(out, p)
	}
	return out, more
}

// namedReplica is a replica together with its current name, which may change later.
type namedReplica struct {
	name string
	*replicas.Replica
}

// firstNames returns those replicas in groups whose names come first. The slice groups must be sorted by name. The
// argument most is the maximum number of different names; 0 means that there is no limit. If several replicas have the
// same name, either all of them are returned or none. The result more is true if some replicas were left out.
func firstNames(groups []namedReplica, most int) (first []namedReplica, more bool) {
	names := 0
	for i, g := range groups {
		if i == 0 || g.name != groups[i-1].name {
			if names++; most > 0 && names > most {
				return groups[:i], true
			}
		}
	}
	return groups, false
}

// describe fills in the facts that are known only while a group is being served.
func describe(p *recordv1.Group, sv *replicas.Served) {
	stats, node := sv.Log().Stats(), sv.Replica().Status()
	p.Leader = node.Leader
	describeMembers(p, sv, node)
	p.AppliedIndex = node.AppliedIndex
	p.Records, p.StoredBytes, p.SupersededBytes = stats.Records, stats.StoredBytes, stats.SupersededBytes
	p.Segments, p.MemoryBytes = int32(stats.Segments), stats.MemoryBytes
	p.Damages = serve.DamagesOf(stats.Damages, serve.RowDamageBytesMax)
	p.DamagesTotal = int32(len(stats.Damages))
	if len(stats.Damages) > 0 {
		p.State = recordv1.GroupState_GROUP_STATE_DAMAGED
		p.Message = "some stored bytes are bad and answer DATA_LOSS: restore these records, or accept the loss"
	}
	switch err := node.Err; {
	case err == nil:
	case format.Passes(err), errors.Is(err, group.ErrMemory):
		p.Message = finding.WritesWait + err.Error()
	default:
		p.Message = "reads are served, writes are not: " + err.Error()
	}
	if err := sv.Writable(); err != nil && p.GetMessage() == "" {
		p.Message = finding.WritesAwait + err.Error()
	}
}

// stateOf converts the phase of a replica to the state that the API reports.
func stateOf(phase member.Phase) recordv1.GroupState {
	switch {
	case phase.Broken():
		return recordv1.GroupState_GROUP_STATE_FAILED
	case phase == member.Pending:
		return recordv1.GroupState_GROUP_STATE_PENDING
	case phase == member.Serving:
		return recordv1.GroupState_GROUP_STATE_SERVING
	}
	return recordv1.GroupState_GROUP_STATE_LOADING
}

var outcomes = map[group.Outcome]recordv1.LoadOutcome{
	group.Loaded:    recordv1.LoadOutcome_LOAD_OUTCOME_LOADED,
	group.Truncated: recordv1.LoadOutcome_LOAD_OUTCOME_TRUNCATED,
	group.Damaged:   recordv1.LoadOutcome_LOAD_OUTCOME_DAMAGED,
}

// describeFacts fills in the facts that are newer in memory than in the manifest.
func describeFacts(p *recordv1.GroupFacts, sv *replicas.Served) {
	p.RaftId, p.ConfIndex = sv.RaftID, sv.Log().ConfIndex()
	stats := sv.Log().Stats()
	p.Leader, p.Records, p.StoredBytes = sv.Replica().Status().Leader, stats.Records, stats.StoredBytes
	hard, conf, err := sv.Log().InitialState()
	if err != nil {
		p.Message = err.Error()
		return
	}
	p.Voters, p.Learners, p.Term, p.CommittedIndex = conf.GetVoters(), format.LearnersOf(conf),
		hard.GetTerm(), hard.GetCommit()
	p.VotersOutgoing, p.Ended = conf.GetVotersOutgoing(), format.IsEnded(conf)
}

// roleOf returns the role that a replica has in its group, as far as the replica itself knows.
func roleOf(node replica.Status, raftID uint64) recordv1.MemberRole {
	switch {
	case node.Removed:
		return recordv1.MemberRole_MEMBER_ROLE_REMOVED
	case node.Learner:
		return recordv1.MemberRole_MEMBER_ROLE_LEARNER
	case node.LeaderID == raftID:
		return recordv1.MemberRole_MEMBER_ROLE_LEADER
	default:
		return recordv1.MemberRole_MEMBER_ROLE_VOTER
	}
}

// describeMembers fills in the replica's role. If the replica leads its group, describeMembers also fills in the
// state of the group's members.
func describeMembers(p *recordv1.Group, sv *replicas.Served, node replica.Status) {
	p.RaftId, p.Role = sv.RaftID, roleOf(node, sv.RaftID)
	if !node.Leader {
		return
	}
	m := sv.Replica().Members()
	for _, one := range m.Progress {
		member := &recordv1.Member{RaftId: one.ID, MatchIndex: one.Match, Role: recordv1.MemberRole_MEMBER_ROLE_VOTER}
		member.Shard, _ = sv.Group.Route(one.ID)
		switch {
		case one.ID == sv.RaftID:
			member.Role, member.MatchIndex, member.Shard = recordv1.MemberRole_MEMBER_ROLE_LEADER, m.LastIndex, p.GetShard()
			member.Active, member.CaughtUp = true, true
			lag := uint64(0)
			p.MatchIndex, p.LagEntries = &member.MatchIndex, &lag
		case one.Learner:
			member.Role = recordv1.MemberRole_MEMBER_ROLE_LEARNER
		}
		if one.ID != sv.RaftID {
			member.LagEntries = m.LastIndex - min(one.Match, m.LastIndex)
			// RecentActive is reset at each election timeout, and set again by the member's next response. For a moment, it
			// may therefore be false although the member is alive.
			member.Active = !one.Down && (one.RecentActive || one.State == replica.StateReplicate)
			member.NeedsFiles = one.State == replica.StateSnapshot
			member.CaughtUp = member.GetActive() && one.State == replica.StateReplicate &&
				member.GetLagEntries() <= move.CaughtUpEntries
		}
		p.Members = append(p.Members, member)
	}
}

// copyTo describes how far a replica has been copied to the named shard. If the copy is complete, it returns nil.
func copyTo(shard string, g *replicas.Replica, phase member.Phase) *recordv1.Copy {
	p := &recordv1.Copy{Shard: shard}
	if c := g.Copying(); c != nil {
		c.Describe(p)
		return p
	}
	if phase == member.Joining {
		p.Phase = recordv1.CopyPhase_COPY_PHASE_WAITING
		return p
	}
	return nil
}

// copies describes the copies that this shard is receiving, sorted by group.
func (s *Shard) copies() []*recordv1.Move {
	var out []*recordv1.Move
	add := func(group string, c *recordv1.Copy) {
		out = append(out, &recordv1.Move{
			Group: group, To: []string{s.cfg.Name}, Running: true, Bytes: c.GetBytesTotal(), BytesDone: c.GetBytesDone(),
			BytesPerSecond: c.GetBytesPerSecond(), EtaSeconds: c.EtaSeconds, Phase: movePhases[c.GetPhase()],
			Copies: []*recordv1.Copy{c},
		})
	}
	for _, g := range s.replicas.All() {
		known := g.State()
		if known.Name == "" {
			continue
		}
		if c := copyTo(s.cfg.Name, g, known.Phase); c != nil {
			add(known.Name, c)
		} else if sv := g.Served(); sv != nil && sv.Replica().Status().Learner {
			bytes := sv.Log().Stats().StoredBytes
			add(known.Name, &recordv1.Copy{Shard: s.cfg.Name, Phase: recordv1.CopyPhase_COPY_PHASE_ENTRIES, BytesTotal: bytes,
				BytesDone: bytes})
		}
	}
	slices.SortFunc(out, func(a, b *recordv1.Move) int { return placement.CompareGroups(a.GetGroup(), b.GetGroup()) })
	return out
}

// movePhases maps the phase of a copy to the phase of a move that consists only of this copy.
var movePhases = map[recordv1.CopyPhase]recordv1.MovePhase{
	recordv1.CopyPhase_COPY_PHASE_WAITING: recordv1.MovePhase_MOVE_PHASE_WAITING,
	recordv1.CopyPhase_COPY_PHASE_FILES:   recordv1.MovePhase_MOVE_PHASE_COPYING,
	recordv1.CopyPhase_COPY_PHASE_ENTRIES: recordv1.MovePhase_MOVE_PHASE_CATCHING_UP,
}
