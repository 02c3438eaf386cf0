package gateway

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/placement"
)

const (
	adminTimeout = 5 * time.Second        // time limit for one shard's response to a listing
	loadInterval = 500 * time.Millisecond // pause between two messages of WatchLoad
)

// adminServer implements AdminService over all shards.
type adminServer struct {
	recordv1.UnimplementedAdminServiceServer
	g *Gateway
}

// askAll calls ask(i) for each of n shards, concurrently, with at most adminTimeout for each. It returns an error only
// if the caller's own context is done.
func askAll(ctx context.Context, n int, ask func(ctx context.Context, i int)) error {
	parallel.Times(n, fanOut, func(i int) {
		ctx, cancel := context.WithTimeout(ctx, adminTimeout)
		defer cancel()
		ask(ctx, i)
	})
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}

// loads collects the loading progress that shards report.
type loads struct {
	mu      sync.Mutex
	newest  map[string]*recordv1.Load
	changed bool
}

// sum returns the sum of all shards' progress as the next message, or nil if nothing has changed.
func (l *loads) sum(ended bool) *recordv1.WatchLoadResponse {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.changed && !ended {
		return nil
	}
	l.changed = false
	out := &recordv1.WatchLoadResponse{Load: &recordv1.Load{Done: true}, Shards: maps.Clone(l.newest)}
	for _, load := range l.newest {
		out.Load.Add(load)
		out.Load.BytesPerSecond += load.GetBytesPerSecond()
		out.Load.DeviceBytesPerSecond += load.GetDeviceBytesPerSecond()
	}
	out.Load.DevicePercent = out.Load.PercentOfDevice()
	return out
}

// WatchLoad merges the progress of all shards that are known when it begins.
func (a *adminServer) WatchLoad(request *recordv1.WatchLoadRequest,
	stream grpc.ServerStreamingServer[recordv1.WatchLoadResponse]) error {
	t, err := a.g.router.wait(stream.Context())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	l := &loads{newest: map[string]*recordv1.Load{}}
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for _, s := range t.sortedShards() {
		all.Go(func() { l.follow(ctx, s, request) })
	}
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	tick := time.NewTicker(loadInterval)
	defer tick.Stop()
	for last := false; !last; {
		select {
		case <-ended:
			last = true
		case <-tick.C:
		case <-ctx.Done():
			return fromContext(ctx)
		case <-a.g.stopping:
			return fail(codes.Unavailable, reason.Stopping, "the gateway is stopping")
		}
		if message := l.sum(last); message != nil {
			if err := stream.Send(message); err != nil {
				return err
			}
		}
	}
	return nil
}

// follow receives the progress of one shard until the shard has loaded everything or no longer responds.
func (l *loads) follow(ctx context.Context, s *shard, request *recordv1.WatchLoadRequest) {
	from, err := recordv1.NewAdminServiceClient(s.conn()).WatchLoad(ctx, request)
	for err == nil {
		var message *recordv1.WatchLoadResponse
		if message, err = from.Recv(); err == nil {
			l.mu.Lock()
			l.newest[s.name], l.changed = message.GetLoad(), true
			l.mu.Unlock()
		}
	}
}

// CreateGroup creates a group in a store with Named routing.
func (a *adminServer) CreateGroup(ctx context.Context, request *recordv1.CreateGroupRequest) (
	*recordv1.CreateGroupResponse, error) {
	t, err := a.g.router.wait(ctx)
	if err != nil {
		return nil, err
	}
	if t.view.Meta.Routing.Mode == placement.Hash {
		return nil, fail(codes.FailedPrecondition, reason.HashRouting, "this store routes by hash: its groups are fixed")
	}
	if err := placement.ValidateGroupName(request.GetGroup()); err != nil {
		return nil, invalid("group", "%v", err)
	}
	if t.view.Meta.Listing() {
		return nil, t.unlisted(request.GetGroup()).noShardError()
	}
	ctx, cancel := etcdTime(ctx)
	defer cancel()
	g, created, err := a.g.create(ctx, t, request.GetGroup(), false)
	switch {
	case err != nil:
		return nil, createError(request.GetGroup(), err, true)
	case !created:
		return nil, fail(codes.AlreadyExists, reason.GroupExists, "group %q exists, UUID %s", g.Name, g.UUID)
	}
	return &recordv1.CreateGroupResponse{Group: g.Name, Uuid: g.UUID.String()}, nil
}

// DeleteGroup implements AdminService.
func (a *adminServer) DeleteGroup(ctx context.Context, request *recordv1.DeleteGroupRequest) (
	*recordv1.DeleteGroupResponse, error) {
	return atLeader(ctx, a, request, recordv1.AdminServiceClient.DeleteGroup)
}

// atLeader calls the shard that leads the group in the request. It does not retry a call that may have started.
func atLeader[Q interface{ GetGroup() string }, A any](ctx context.Context, a *adminServer, request Q,
	method func(recordv1.AdminServiceClient, context.Context, Q, ...grpc.CallOption) (A, error)) (out A, err error) {
	if request.GetGroup() == "" {
		return out, invalid("group", "required")
	}
	call := a.g.repeated(routing.Effect{Write: true, Once: true})
	err = call.named(ctx, request.GetGroup(), func(ctx context.Context, s place) (_ bool, err error) {
		out, err = method(recordv1.NewAdminServiceClient(s.conn()), ctx, request)
		return true, err
	})
	return out, err
}

// Verify implements AdminService. It verifies every voting copy.
func (a *adminServer) Verify(ctx context.Context, request *recordv1.VerifyRequest) (*recordv1.VerifyResponse, error) {
	if request.GetGroup() == "" {
		return nil, invalid("group", "required")
	}
	t, err := a.g.tableWith(ctx, request.GetGroup())
	if err != nil {
		return nil, err
	}
	if voters := t.view.Groups[request.GetGroup()].Voters(); len(voters) > 1 {
		return a.verifyCopies(ctx, t, voters, request)
	}
	return atLeader(ctx, a, request, recordv1.AdminServiceClient.Verify)
}

// verifyCopies asks the shards of all copies concurrently. It returns the first error if no shard checked its copy.
func (a *adminServer) verifyCopies(ctx context.Context, t *table, voters []placement.Member,
	request *recordv1.VerifyRequest) (*recordv1.VerifyResponse, error) {
	slices.SortFunc(voters, func(a, b placement.Member) int { return cmp.Compare(a.Shard, b.Shard) })
	answers, errs := make([]*recordv1.VerifyResponse, len(voters)), make([]error, len(voters))
	var all sync.WaitGroup
	for i, m := range voters {
		s, known := t.shards[m.Shard]
		if !known {
			errs[i] = fail(codes.Unavailable, reason.NoLeader, "shard %s is not registered", m.Shard)
			continue
		}
		all.Go(func() { answers[i], errs[i] = recordv1.NewAdminServiceClient(s.conn()).Verify(ctx, request) })
	}
	all.Wait()
	out := &recordv1.VerifyResponse{}
	checked := false
	for i, m := range voters {
		verified := &recordv1.VerifiedCopy{Shard: m.Shard}
		out.Copies = append(out.Copies, verified)
		if errs[i] != nil {
			verified.Error = status.Convert(errs[i]).Message()
			continue
		}
		checked = true
		verified.Bytes, verified.Entries, verified.Damages = answers[i].GetBytes(), answers[i].GetEntries(),
			int32(len(answers[i].GetDamages()))
		// The list of damages may be incomplete, but the shard's own row has the total number.
		for _, c := range answers[i].GetCopies() {
			verified.Damages = max(verified.GetDamages(), c.GetDamages())
		}
		out.Bytes, out.Entries = out.GetBytes()+verified.GetBytes(), out.GetEntries()+verified.GetEntries()
		for _, d := range answers[i].GetDamages() {
			d.Shard = m.Shard
			out.Damages = append(out.Damages, d)
		}
	}
	if !checked {
		return nil, errs[0]
	}
	return out, nil
}

// Compact implements AdminService.
func (a *adminServer) Compact(ctx context.Context, request *recordv1.CompactRequest) (*recordv1.CompactResponse,
	error) {
	return atLeader(ctx, a, request, recordv1.AdminServiceClient.Compact)
}

// AcceptLoss implements AdminService.
func (a *adminServer) AcceptLoss(ctx context.Context, request *recordv1.AcceptLossRequest) (
	*recordv1.AcceptLossResponse, error) {
	return atLeader(ctx, a, request, recordv1.AdminServiceClient.AcceptLoss)
}
