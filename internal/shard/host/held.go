package host

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/status"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// heldAdmin serves AdminService while no volume is served.
type heldAdmin struct {
	recordv1.UnimplementedAdminServiceServer
	host *Host
}

// refuse returns the error for calls that need a volume.
func (h *Host) refuse() error {
	held := h.why()
	return answer.Fail(codes.Unavailable, reason.NotServing, "shard %s does not serve (%s): %v", h.id.Name,
		held.state.Word(), held)
}

// ListShards implements AdminService.
func (a heldAdmin) ListShards(context.Context, *recordv1.ListShardsRequest) (*recordv1.ListShardsResponse, error) {
	return &recordv1.ListShardsResponse{Shards: []*recordv1.Shard{a.host.Status().GetShard()}}, nil
}

// ListGroups implements AdminService. It returns no groups, because nothing is open.
func (heldAdmin) ListGroups(context.Context, *recordv1.ListGroupsRequest) (*recordv1.ListGroupsResponse, error) {
	return &recordv1.ListGroupsResponse{}, nil
}

// WatchLoad implements AdminService. It refuses the call, because no load runs and none has completed.
func (a heldAdmin) WatchLoad(*recordv1.WatchLoadRequest, recordv1.AdminService_WatchLoadServer) error {
	return a.host.refuse()
}

// DescribeVolume implements AdminService.
func (a heldAdmin) DescribeVolume(context.Context, *recordv1.DescribeVolumeRequest) (*recordv1.DescribeVolumeResponse,
	error) {
	id := a.host.identity()
	if blank, err := volume.Blank(id.FS, id.Dir); err == nil && blank {
		none := uuid.Nil.String()
		return &recordv1.DescribeVolumeResponse{Shard: id.Name, Address: id.Address, VolumeUuid: none, StoreUuid: none}, nil
	}
	sb, err := volume.FreshSuperblock(id.FS, id.Dir)
	if err != nil {
		return nil, answer.Fail(codes.FailedPrecondition, reason.NotServing, "shard %s: %v", id.Name, err)
	}
	out, err := id.DescribeVolume(sb)
	if err != nil {
		return nil, answer.Fail(codes.FailedPrecondition, reason.NotServing, "shard %s: %v", id.Name, err)
	}
	return out, nil
}

// why returns the reason why nothing is served.
func (h *Host) why() *heldError {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil {
		return hold(recordv1.ShardState_SHARD_STATE_PENDING, "the shard starts")
	}
	return h.held
}

// Status returns the current status, even while nothing is served.
func (h *Host) Status() *recordv1.ShardStatus {
	h.mu.Lock()
	shard, seen, id := h.shard, h.seen, h.id
	h.mu.Unlock()
	if shard != nil {
		return shard.Status()
	}
	held, row := h.why(), h.opts.Row()
	id.Describe(row, seen.superblock)
	row.State, row.Message, row.Problems = held.state, held.Error(), []string{held.Error()}
	row.FileSystem, row.MountOptions, row.Source, row.Rotational = seen.mount.FileSystem, seen.mount.Options,
		seen.mount.Source, seen.mount.Rotational
	if space, err := id.FS.Space(id.Dir); err == nil {
		row.CapacityBytes, row.FreeBytes = space.TotalBytes, space.FreeBytes
	}
	last, _ := id.Placement.LastAnswer()
	row.EtcdSilentSeconds = status.SilentSeconds(last)
	st := &recordv1.ShardStatus{Shard: row}
	status.Conclude(st)
	return st
}
