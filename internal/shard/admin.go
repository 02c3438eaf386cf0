package shard

import (
	"cmp"
	"slices"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/shard/serve"
)

// groupStatuses describes the groups of this shard by name.
func (s *Shard) groupStatuses() []*recordv1.Group {
	s.mu.Lock()
	groups := make([]*groupReplica, 0, len(s.groups))
	out := make([]*recordv1.Group, 0, len(s.groups))
	for _, g := range s.groups {
		if g.Standing.Apart() {
			continue
		}
		p := &recordv1.Group{Group: g.Name, Uuid: g.UUID.String(), Shard: s.cfg.Name, State: g.state(), Lost: g.lost()}
		p.Outcome = outcomeOf(g.report.Outcome)
		p.RaftId, p.Copy = g.RaftID, g.copyTo(s.cfg.Name)
		if g.Err != nil {
			p.Message = g.Err.Error()
		}
		groups, out = append(groups, g), append(out, p)
	}
	s.mu.Unlock()
	for i, g := range groups {
		if sv := g.served.Load(); sv != nil {
			describe(out[i], sv)
		}
	}
	slices.SortFunc(out, func(a, b *recordv1.Group) int { return cmp.Compare(a.GetGroup(), b.GetGroup()) })
	return out
}

// describe fills in what only a serving group can tell.
func describe(p *recordv1.Group, sv *served) {
	stats, node := sv.log.Stats(), sv.replica.Status()
	p.Leader = node.Leader
	describeMembers(p, sv, node)
	p.AppliedIndex = node.AppliedIndex
	p.Records, p.StoredBytes, p.SupersededBytes = stats.Records, stats.StoredBytes, stats.SupersededBytes
	p.Segments, p.MemoryBytes = int32(stats.Segments), stats.MemoryBytes
	p.Damages = serve.DamagesOf(stats.Damages)
	if len(stats.Damages) > 0 {
		p.State = recordv1.GroupState_GROUP_STATE_DAMAGED
		p.Message = "some stored bytes are bad and answer DATA_LOSS: restore these records, or accept the loss"
	}
	if node.Err != nil {
		p.Message = "reads are served, writes are not: " + node.Err.Error()
	}
}

func outcomeOf(o group.Outcome) recordv1.LoadOutcome {
	switch o {
	case group.Loaded:
		return recordv1.LoadOutcome_LOAD_OUTCOME_LOADED
	case group.Truncated:
		return recordv1.LoadOutcome_LOAD_OUTCOME_TRUNCATED
	case group.Damaged:
		return recordv1.LoadOutcome_LOAD_OUTCOME_DAMAGED
	default:
		return recordv1.LoadOutcome_LOAD_OUTCOME_UNSPECIFIED
	}
}
