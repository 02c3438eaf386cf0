package shard

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/volume"
)

// heldServer answers while nothing is served: health says NOT_SERVING, AdminService says why.
type heldServer struct {
	recordv1.UnimplementedAdminServiceServer
	host *Host
	grpc *grpc.Server
}

// reasonNotServing is why a shard without a volume refuses a call.
const reasonNotServing = "NOT_SERVING"

// answer begins to answer without a shard.
func (h *Host) answer() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.server != nil || h.ctx.Err() != nil {
		return
	}
	s := &heldServer{host: h}
	options := append([]grpc.ServerOption{
		grpc.MaxHeaderListSize(16 << 10),
		grpc.MaxConcurrentStreams(h.cfg.Limits.StreamsPerConnectionMax),
		grpc.UnknownServiceHandler(s.refuse),
	}, h.cfg.ServerOptions...)
	s.grpc = grpc.NewServer(options...)
	recordv1.RegisterAdminServiceServer(s.grpc, s)
	health := health.NewServer()
	grpc_health_v1.RegisterHealthServer(s.grpc, health)
	for _, service := range []string{"", recordv1.RecordService_ServiceDesc.ServiceName} {
		health.SetServingStatus(service, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	}
	health.SetServingStatus(recordv1.AdminService_ServiceDesc.ServiceName, grpc_health_v1.HealthCheckResponse_SERVING)
	reflection.Register(s.grpc)
	h.server = s
	turn := h.shared.turn(nil)
	go func() { _ = s.grpc.Serve(turn) }() // it ends when it is stopped
}

// quiet ends what answer began: a shard is about to accept connections.
func (h *Host) quiet() {
	h.mu.Lock()
	server := h.server
	h.server = nil
	h.mu.Unlock()
	if server != nil {
		go server.stop()
	}
}

func (s *heldServer) stop() { s.grpc.Stop() }

// refuse answers all other calls.
func (s *heldServer) refuse(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	if !strings.HasPrefix(method, ourServices) {
		return status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	held := s.host.why()
	return fail(codes.Unavailable, reasonNotServing, "shard %s does not serve (%s): %v", s.host.cfg.Name, held.state.Word(), held)
}

// ListShards implements AdminService.
func (s *heldServer) ListShards(context.Context, *recordv1.ListShardsRequest) (*recordv1.ListShardsResponse, error) {
	return &recordv1.ListShardsResponse{Shards: []*recordv1.Shard{shardOf(s.host.Status())}}, nil
}

// ListGroups implements AdminService: nothing is open.
func (s *heldServer) ListGroups(context.Context, *recordv1.ListGroupsRequest) (*recordv1.ListGroupsResponse, error) {
	return &recordv1.ListGroupsResponse{}, nil
}

// WatchLoad implements AdminService: nothing loads, and that is not done either.
func (s *heldServer) WatchLoad(_ *recordv1.WatchLoadRequest, stream recordv1.AdminService_WatchLoadServer) error {
	return s.refuse(nil, stream)
}

// DescribeVolume implements AdminService.
func (s *heldServer) DescribeVolume(context.Context, *recordv1.DescribeVolumeRequest) (*recordv1.DescribeVolumeResponse, error) {
	h := s.host
	if blank, err := volume.Blank(h.cfg.FS, h.cfg.Dir); err == nil && blank {
		none := uuid.Nil.String()
		return &recordv1.DescribeVolumeResponse{Shard: h.cfg.Name, Address: h.address(), VolumeUuid: none, StoreUuid: none}, nil
	}
	sb, err := volume.FreshSuperblock(h.cfg.FS, h.cfg.Dir)
	if err != nil {
		return nil, fail(codes.FailedPrecondition, reasonNotServing, "shard %s: %v", h.cfg.Name, err)
	}
	out, err := describeVolume(&h.cfg, sb)
	if err != nil {
		return nil, fail(codes.FailedPrecondition, reasonNotServing, "shard %s: %v", h.cfg.Name, err)
	}
	out.Address = h.address()
	return out, nil
}

// address as advertised.
func (h *Host) address() string {
	if h.cfg.Advertise != "" {
		return h.cfg.Advertise
	}
	return h.Addr()
}

// why nothing is served.
func (h *Host) why() *heldError {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil {
		return hold(recordv1.ShardState_SHARD_STATE_PENDING, "the shard starts")
	}
	return h.held
}

// Status tells the present state, also while nothing is served.
func (h *Host) Status() Status {
	h.mu.Lock()
	shard, seen, wanted := h.shard, h.seen, h.cfg.Wanted
	h.mu.Unlock()
	if shard != nil {
		return shard.Status()
	}
	held := h.why()
	st := Status{
		Name: h.cfg.Name, Address: h.address(), Version: h.cfg.Version, Path: h.cfg.Dir, Residency: residencyName(h.cfg.Residency),
		MemoryLimitBytes: h.cfg.MemoryLimitBytes, Groups: []GroupStatus{}, state: held.state, Message: held.Error(),
		FileSystem: seen.mount.FileSystem, MountOptions: seen.mount.Options, Source: seen.mount.Source, Rotational: seen.mount.Rotational,
		Problems: []string{held.Error()},
	}
	st.describe(&h.cfg, wanted, seen.superblock)
	if space, err := h.cfg.FS.Space(h.cfg.Dir); err == nil {
		st.CapacityBytes, st.FreeBytes = space.TotalBytes, space.FreeBytes
	}
	last, _ := h.cfg.Placement.Heard()
	st.EtcdSilentSeconds = silentSeconds(last)
	st.find(nil)
	st.summarize()
	return st
}
