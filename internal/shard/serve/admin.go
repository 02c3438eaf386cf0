package serve

import (
	"context"
	"errors"
	"sort"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/paging"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Admin is the part of the shard that AdminService needs. An Admin is safe for concurrent use.
type Admin interface {
	// Shard returns the row of this shard in ListShards.
	Shard() *recordv1.Shard
	// Groups returns the rows of the shard's replicas, sorted by group name. It begins after the name that is passed as
	// behind, and ends when it has the rows of as many names as most allows; 0 means no limit. If only is not empty,
	// Groups returns only the rows of the group with that name. The result more is true if further rows follow.
	Groups(only, behind string, most int) (rows []*recordv1.Group, more bool)
	// Moves returns the copies that are being created on this shard, sorted by group. Groups with numeric names are
	// sorted by number.
	Moves() []*recordv1.Move
	// Load returns the progress of the first load. The channel from Loaded is closed when that load has finished.
	Load() *recordv1.Load
	Loaded() <-chan struct{}
	// DescribeVolume reads the volume and describes its content.
	DescribeVolume() (*recordv1.DescribeVolumeResponse, error)
	// Explain returns the reasons why superseded data of a group is still stored.
	Explain(g Group) ([]*recordv1.CompactionHold, error)
	// Compact frees superseded data of a group.
	Compact(ctx context.Context, g Group, options group.CompactOptions) (group.CompactReport, error)
	// AcceptLoss declares a group's damaged data lost.
	AcceptLoss(ctx context.Context, g Group) ([]format.Damage, error)
	// ResolveGroup returns the UUID of a group that this shard leads, if etcd has the same UUID for the name.
	ResolveGroup(ctx context.Context, g Group) (uuid.UUID, error)
	// DeleteGroup deletes an empty group that this shard leads, and returns its UUID. If want is not the zero UUID,
	// the group must have that UUID.
	DeleteGroup(ctx context.Context, g Group, want uuid.UUID) (uuid.UUID, error)
}

// verifyRateDefault is the default rate of Verify, in bytes per second.
const verifyRateDefault = 64 << 20

// adminServer serves AdminService for this shard.
type adminServer struct {
	recordv1.UnimplementedAdminServiceServer
	*Server
	admin Admin
}

// CreateGroup implements AdminService.
func (s *adminServer) CreateGroup(context.Context, *recordv1.CreateGroupRequest) (*recordv1.CreateGroupResponse,
	error) {
	return nil, answer.NotHere("CreateGroup")
}

// DeleteGroup implements AdminService.
func (s *adminServer) DeleteGroup(ctx context.Context, in *recordv1.DeleteGroupRequest) (*recordv1.DeleteGroupResponse,
	error) {
	var want uuid.UUID
	if asked := in.GetGroupUuid(); asked != "" {
		var err error
		if want, err = uuid.Parse(asked); err != nil || want == uuid.Nil || len(asked) != 36 {
			return nil, answer.Invalid("group_uuid", "%.40q is not a UUID of 36 characters", asked)
		}
	}
	g, err := s.Asked(ctx, access.AdminWrite, in.GetGroup(), "group")
	if err != nil {
		return nil, err
	}
	var id uuid.UUID
	if in.GetResolveOnly() {
		id, err = s.admin.ResolveGroup(ctx, g)
	} else {
		id, err = s.admin.DeleteGroup(ctx, g, want)
	}
	if err != nil {
		return nil, answer.Of(err, answer.Where{Group: g.Name()})
	}
	return &recordv1.DeleteGroupResponse{GroupUuid: id.String()}, nil
}

// SetShardState implements AdminService.
func (s *adminServer) SetShardState(context.Context, *recordv1.SetShardStateRequest) (*recordv1.SetShardStateResponse,
	error) {
	return nil, answer.NotHere("SetShardState")
}

// RemoveShard implements AdminService.
func (s *adminServer) RemoveShard(
	context.Context, *recordv1.RemoveShardRequest,
) (*recordv1.RemoveShardResponse, error) {
	return nil, answer.NotHere("RemoveShard")
}

// PlanMoves implements AdminService. It returns the copies that are being created on this shard.
func (s *adminServer) PlanMoves(_ context.Context, in *recordv1.PlanMovesRequest) (*recordv1.PlanMovesResponse, error) {
	page, field, err := paging.Asked(paging.Moves, in)
	if err != nil {
		return nil, answer.Invalid(field, "%v", err)
	}
	moves := s.admin.Moves()
	begin := sort.Search(len(moves), func(i int) bool {
		return placement.CompareGroups(moves[i].GetGroup(), page.After) > 0
	})
	out := &recordv1.PlanMovesResponse{}
	out.Moves, out.NextPageToken = paging.Cut(page, moves[begin:], (*recordv1.Move).GetGroup, false)
	return out, nil
}

// ListGroups implements AdminService. It returns this shard's replicas.
func (s *adminServer) ListGroups(_ context.Context, in *recordv1.ListGroupsRequest) (*recordv1.ListGroupsResponse,
	error) {
	if in.GetGroup() != "" {
		if err := s.validGroup(in.GetGroup(), "group"); err != nil {
			return nil, err
		}
	}
	page, field, err := paging.Asked(paging.Groups, in)
	if err == nil && in.GetGroup() != "" && page.After != "" {
		field, err = "page_token", errors.New("excludes group, whose rows are one page")
	}
	if err != nil {
		return nil, answer.Invalid(field, "%v", err)
	}
	rows, more := s.admin.Groups(in.GetGroup(), page.After, page.Size)
	if in.GetGroup() != "" && len(rows) == 0 {
		return nil, answer.GroupNotFound(in.GetGroup())
	}
	out := &recordv1.ListGroupsResponse{}
	out.Groups, out.NextPageToken = paging.Cut(page, rows, (*recordv1.Group).GetGroup, more)
	return out, nil
}

// ListShards implements AdminService. It returns this shard.
func (s *adminServer) ListShards(_ context.Context, in *recordv1.ListShardsRequest) (*recordv1.ListShardsResponse,
	error) {
	page, field, err := paging.Asked(paging.Shards, in)
	if err != nil {
		return nil, answer.Invalid(field, "%v", err)
	}
	out := &recordv1.ListShardsResponse{}
	if me := s.admin.Shard(); me.GetName() > page.After {
		out.Shards = []*recordv1.Shard{me}
	}
	return out, nil
}

// WatchLoad implements AdminService.
func (s *adminServer) WatchLoad(_ *recordv1.WatchLoadRequest, stream recordv1.AdminService_WatchLoadServer) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	loaded := s.admin.Loaded()
	for {
		load := s.admin.Load()
		if err := stream.Send(&recordv1.WatchLoadResponse{
			Load: load, Shards: map[string]*recordv1.Load{s.opts.Name: load},
		}); err != nil || load.GetDone() {
			return err
		}
		select {
		case <-tick.C:
		case <-loaded:
			loaded = nil // the next iteration reports that the load is over
		case <-s.stopping.Done():
			return answer.Stopping()
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// DescribeVolume implements AdminService.
func (s *adminServer) DescribeVolume(context.Context, *recordv1.DescribeVolumeRequest) (
	*recordv1.DescribeVolumeResponse, error) {
	return s.admin.DescribeVolume()
}

// Verify implements AdminService.
func (s *adminServer) Verify(ctx context.Context, in *recordv1.VerifyRequest) (*recordv1.VerifyResponse, error) {
	rate := in.GetRateBytesPerSecond()
	if rate < 0 {
		return nil, answer.Invalid("rate_bytes_per_second", "is negative: %d", rate)
	}
	if rate == 0 {
		rate = verifyRateDefault
	}
	g, err := s.Asked(ctx, access.AdminWrite, in.GetGroup(), "group")
	if err != nil {
		return nil, err
	}
	report, err := g.Log().Verify(ctx, rate)
	if err != nil {
		return nil, answer.Of(err, answer.Where{Group: g.Name()})
	}
	out := &recordv1.VerifyResponse{
		Bytes: report.Bytes, Entries: report.Entries, Damages: DamagesOf(report.Damages, copyDamageBytesMax),
		Copies: []*recordv1.VerifiedCopy{{Shard: s.opts.Name, Bytes: report.Bytes, Entries: report.Entries,
			Damages: int32(len(report.Damages))}},
	}
	for _, d := range out.Damages {
		d.Shard = s.opts.Name
	}
	return out, nil
}

// Compact implements AdminService.
func (s *adminServer) Compact(ctx context.Context, in *recordv1.CompactRequest) (*recordv1.CompactResponse, error) {
	if rate := in.GetRateBytesPerSecond(); rate < 0 {
		return nil, answer.Invalid("rate_bytes_per_second", "is negative: %d", rate)
	}
	g, err := s.Asked(ctx, access.AdminWrite, in.GetGroup(), "group")
	if err != nil {
		return nil, err
	}
	if in.GetExplain() {
		holds, err := s.admin.Explain(g)
		if err != nil {
			return nil, answer.Of(err, answer.Where{Group: g.Name()})
		}
		return &recordv1.CompactResponse{Holds: holds}, nil
	}
	report, err := s.admin.Compact(ctx, g, group.CompactOptions{All: in.GetAll(),
		RateBytesPerSecond: in.GetRateBytesPerSecond()})
	if err != nil {
		return nil, answer.Of(err, answer.Where{Group: g.Name()})
	}
	return &recordv1.CompactResponse{
		SegmentsRewritten: int32(report.SegmentsRewritten), EntriesDropped: report.EntriesDropped,
		BytesBefore: report.BytesBefore, BytesAfter: report.BytesAfter,
	}, nil
}

// AcceptLoss implements AdminService.
func (s *adminServer) AcceptLoss(ctx context.Context, in *recordv1.AcceptLossRequest) (*recordv1.AcceptLossResponse,
	error) {
	g, err := s.Asked(ctx, access.AdminWrite, in.GetGroup(), "group")
	if err != nil {
		return nil, err
	}
	damages, err := s.admin.AcceptLoss(ctx, g)
	if err != nil {
		return nil, answer.Of(err, answer.Where{Group: g.Name()})
	}
	s.opts.Logger.Warn("loss accepted", "group", in.GetGroup(), "damages", len(damages))
	return &recordv1.AcceptLossResponse{Damages: DamagesOf(damages, copyDamageBytesMax),
		DamagesTotal: int32(len(damages))}, nil
}

// These constants limit lists of damage in responses. Whole segments may be bad, and a response that exceeds the
// message size limit would not arrive at all. Each response also reports the total number of damaged places, even if
// its list is incomplete.
const (
	RowDamageBytesMax  = 64 << 10  // limit for a row of ListGroups
	copyDamageBytesMax = 512 << 10 // limit for one copy, in the responses of Verify and AcceptLoss
	damageIDsMax       = 1000      // maximum number of ids for one damaged place
)

// DamagesOf converts damage to messages. It stops before the messages take more than bytesMax bytes in total.
func DamagesOf(damages []format.Damage, bytesMax int) []*recordv1.Damage {
	out := make([]*recordv1.Damage, 0, min(len(damages), bytesMax/32))
	for _, d := range damages {
		ids := d.IDs[:min(len(d.IDs), damageIDsMax)]
		m := &recordv1.Damage{
			Group: d.Group, File: d.File, OffsetBytes: d.Offset, LengthBytes: d.Length, What: d.What,
			Ids: ids, IdsUnknown: d.IDsUnknown || len(ids) < len(d.IDs), Records: new(int32(len(d.IDs))),
		}
		if bytesMax -= proto.Size(m); bytesMax < 0 {
			break
		}
		out = append(out, m)
	}
	return out
}
