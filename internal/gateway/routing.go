package gateway

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/security/access"
)

// Clients always receive complete tables, so large tables are sent less often. The shortest pause between two tables
// is routingPause, plus routingPauseGroup for each group.
const (
	routingPause      = 50 * time.Millisecond
	routingPauseGroup = 10 * time.Microsecond // additional pause for each group
)

// routingServer implements RoutingService.
type routingServer struct {
	recordv1.UnimplementedRoutingServiceServer
	g *Gateway
}

// WatchRouting sends the table immediately, and again whenever routes change.
func (r *routingServer) WatchRouting(request *recordv1.WatchRoutingRequest,
	stream grpc.ServerStreamingServer[recordv1.WatchRoutingResponse]) error {
	ctx := stream.Context()
	t, err := r.g.router.wait(ctx)
	if err != nil {
		return err
	}
	var last *recordv1.WatchRoutingResponse
	known := request.GetKnownEpoch()
	for {
		message := seen(ctx, t.message())
		// A view may differ from the last one only in data that clients do not need, for example in the sizes of
		// groups.
		if message.GetEpoch() != known && (last == nil || !sameRouting(last, message)) {
			if err := send(stream, message, request.GetInParts()); err != nil {
				return err
			}
			last = message
		}
		known = 0
		for _, wait := range []<-chan struct{}{t.changed, after(routingPause +
			time.Duration(len(message.GetGroups()))*routingPauseGroup)} {
			select {
			case <-wait:
			case <-ctx.Done():
				return fromContext(ctx)
			case <-r.g.stopping:
				return fail(codes.Unavailable, reason.Stopping, "the gateway is stopping")
			}
		}
		t = r.g.router.table.Load()
	}
}

// routingPartBytes bounds the routes in each message when a table is sent in parts.
const routingPartBytes = 1 << 20

// send sends a table, in parts if the caller can combine them.
func send(stream grpc.ServerStreamingServer[recordv1.WatchRoutingResponse], all *recordv1.WatchRoutingResponse,
	inParts bool) error {
	for rest := all.GetGroups(); inParts; {
		n, bytes := 0, 0
		for ; n < len(rest) && (n == 0 || bytes <= routingPartBytes); n++ {
			bytes += proto.Size(rest[n])
		}
		part := &recordv1.WatchRoutingResponse{Epoch: all.GetEpoch(), StoreUuid: all.GetStoreUuid(), Mode: all.GetMode(),
			Groups: rest[:n], More: n < len(rest)}
		if err := stream.Send(part); err != nil || !part.GetMore() {
			return err
		}
		rest = rest[n:]
	}
	return stream.Send(all)
}

// seen returns the part of a routing table that the caller may see, which leaves out groups in which the caller has no
// rights. A client calls a gateway for such a group, and the gateway refuses the call.
func seen(ctx context.Context, all *recordv1.WatchRoutingResponse) *recordv1.WatchRoutingResponse {
	call := access.CallOf(ctx)
	if call != nil && (call.Can(access.AdminRead, "") == nil || call.Table() == 0) {
		return all
	}
	out := &recordv1.WatchRoutingResponse{Epoch: all.GetEpoch(), StoreUuid: all.GetStoreUuid(), Mode: all.GetMode()}
	for _, g := range all.GetGroups() {
		if call != nil && call.Sees(g.GetGroup()) {
			out.Groups = append(out.Groups, g)
		}
	}
	return out
}

func after(d time.Duration) <-chan struct{} {
	done := make(chan struct{})
	time.AfterFunc(d, func() { close(done) })
	return done
}
