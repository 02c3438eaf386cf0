package shard

import (
	"cmp"
	"context"
	"slices"
	"time"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/group"
)

// verifyRateDefault is the byte rate of Verify where none is given.
const verifyRateDefault = 64 << 20

// adminServer serves AdminService about this shard.
type adminServer struct {
	recordv1.UnimplementedAdminServiceServer
	*Shard
}

// CreateGroup implements AdminService.
func (s *adminServer) CreateGroup(context.Context, *recordv1.CreateGroupRequest) (*recordv1.CreateGroupResponse, error) {
	return nil, notHere("CreateGroup")
}

// PlanMoves implements AdminService: the copies that are being made here.
func (s *adminServer) PlanMoves(context.Context, *recordv1.PlanMovesRequest) (*recordv1.PlanMovesResponse, error) {
	return &recordv1.PlanMovesResponse{Moves: s.copies()}, nil
}

// ListGroups implements AdminService: the replicas of this shard.
func (s *adminServer) ListGroups(_ context.Context, in *recordv1.ListGroupsRequest) (*recordv1.ListGroupsResponse, error) {
	if in.GetGroup() != "" {
		if err := s.validGroup(in.GetGroup(), "group"); err != nil {
			return nil, err
		}
	}
	out := &recordv1.ListGroupsResponse{}
	for _, g := range s.groupStatuses() {
		if in.GetGroup() == "" || in.GetGroup() == g.Group {
			out.Groups = append(out.Groups, g)
		}
	}
	if in.GetGroup() != "" && len(out.Groups) == 0 {
		return nil, groupNotFoundError(in.GetGroup())
	}
	return out, nil
}

// groupStatuses describes the groups of this shard by name.
func (s *Shard) groupStatuses() []*recordv1.Group {
	s.mu.Lock()
	groups := make([]*groupReplica, 0, len(s.groups))
	out := make([]*recordv1.Group, 0, len(s.groups))
	for _, g := range s.groups {
		if g.stray != "" && g.stray != unconfirmed {
			continue
		}
		p := &recordv1.Group{Group: g.name, Uuid: g.uuid.String(), Shard: s.cfg.Name, State: g.state, Lost: g.lost}
		p.Outcome = outcomeOf(g.report.Outcome)
		p.RaftId, p.Copy = g.raftID, s.copyOf(g)
		if g.err != nil {
			p.Message = g.err.Error()
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
	p.Damages = damagesOf(stats.Damages)
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

func damagesOf(damages []group.Damage) []*recordv1.Damage {
	out := make([]*recordv1.Damage, 0, len(damages))
	for _, d := range damages {
		out = append(out, &recordv1.Damage{
			Group: d.Group, File: d.File, OffsetBytes: d.Offset, LengthBytes: d.Length, What: d.What,
			Ids: d.IDs, IdsUnknown: d.IDsUnknown,
		})
	}
	return out
}

// ListShards implements AdminService: this shard.
func (s *adminServer) ListShards(context.Context, *recordv1.ListShardsRequest) (*recordv1.ListShardsResponse, error) {
	return &recordv1.ListShardsResponse{Shards: []*recordv1.Shard{shardOf(s.Status())}}, nil
}

func loadOf(st LoadStatus) *recordv1.Load {
	return &recordv1.Load{
		GroupsTotal: int32(st.GroupsTotal), GroupsLoaded: int32(st.GroupsLoaded), GroupsDamaged: int32(st.GroupsDamaged),
		BytesTotal: st.BytesTotal, BytesDone: st.BytesDone, BytesPerSecond: st.BytesPerSecond,
		DeviceBytesPerSecond: st.DeviceBytesPerSecond, EtaSeconds: st.ETASeconds, ElapsedSeconds: st.ElapsedSeconds,
		Done: st.Done,
	}
}

// WatchLoad implements AdminService.
func (s *adminServer) WatchLoad(_ *recordv1.WatchLoadRequest, stream recordv1.AdminService_WatchLoadServer) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	loaded := s.loaded
	for {
		load := loadOf(s.loadStatus())
		if err := stream.Send(&recordv1.WatchLoadResponse{
			Load: load, Shards: map[string]*recordv1.Load{s.cfg.Name: load},
		}); err != nil || load.GetDone() {
			return err
		}
		select {
		case <-tick.C:
		case <-loaded:
			loaded = nil // the next turn says that it is done
		case <-s.stopped:
			return stoppingError()
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// asked is the group that a person named.
func (s *Shard) asked(name string) (*groupReplica, *served, error) {
	if err := s.validGroup(name, "group"); err != nil {
		return nil, nil, err
	}
	return s.findGroup(s.routes.Load(), name, 0)
}

// Verify implements AdminService.
func (s *adminServer) Verify(ctx context.Context, in *recordv1.VerifyRequest) (*recordv1.VerifyResponse, error) {
	rate := in.GetRateBytesPerSecond()
	if rate < 0 {
		return nil, invalid("rate_bytes_per_second", "is negative: %d", rate)
	}
	if rate == 0 {
		rate = verifyRateDefault
	}
	g, sv, err := s.asked(in.GetGroup())
	if err != nil {
		return nil, err
	}
	report, err := sv.log.Verify(ctx, rate)
	if err != nil {
		return nil, answerError(err, where{group: g.name})
	}
	out := &recordv1.VerifyResponse{
		Bytes: report.Bytes, Entries: report.Entries, Damages: damagesOf(report.Damages),
		Copies: []*recordv1.VerifiedCopy{{Shard: s.cfg.Name, Bytes: report.Bytes, Entries: report.Entries, Damages: int32(len(report.Damages))}},
	}
	for _, d := range out.Damages {
		d.Shard = s.cfg.Name
	}
	return out, nil
}

// Compact implements AdminService.
func (s *adminServer) Compact(ctx context.Context, in *recordv1.CompactRequest) (*recordv1.CompactResponse, error) {
	if rate := in.GetRateBytesPerSecond(); rate < 0 {
		return nil, invalid("rate_bytes_per_second", "is negative: %d", rate)
	}
	g, sv, err := s.asked(in.GetGroup())
	if err != nil {
		return nil, err
	}
	if in.GetExplain() {
		holds, err := s.explain(g, sv)
		if err != nil {
			return nil, answerError(err, where{group: g.name})
		}
		return &recordv1.CompactResponse{Holds: holds}, nil
	}
	report, err := s.compactLog(ctx, sv, group.CompactOptions{All: in.GetAll(), RateBytesPerSecond: in.GetRateBytesPerSecond()})
	if err != nil {
		return nil, answerError(err, where{group: g.name})
	}
	return &recordv1.CompactResponse{
		SegmentsRewritten: int32(report.SegmentsRewritten), EntriesDropped: report.EntriesDropped,
		BytesBefore: report.BytesBefore, BytesAfter: report.BytesAfter,
	}, nil
}

// AcceptLoss implements AdminService.
func (s *adminServer) AcceptLoss(ctx context.Context, in *recordv1.AcceptLossRequest) (*recordv1.AcceptLossResponse, error) {
	g, _, err := s.asked(in.GetGroup())
	if err != nil {
		return nil, err
	}
	damages, err := s.acceptLoss(ctx, g)
	if err != nil {
		return nil, answerError(err, where{group: g.name})
	}
	s.logger.Warn("loss accepted", "group", in.GetGroup(), "damages", len(damages))
	return &recordv1.AcceptLossResponse{Damages: damagesOf(damages)}, nil
}
