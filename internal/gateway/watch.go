package gateway

import (
	"bytes"
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
)

// watch forwards a group's changes. If the group moves to another shard, watch continues at that shard from the last
// forwarded cursor, and the caller's stream stays open.
func (g *Gateway) watch(stream grpc.ServerStream) error {
	request := &recordv1.WatchRequest{}
	err := receive(stream, request)
	if err != nil {
		return err
	}
	if request.GetGroup() == "" {
		return invalid("group", "required")
	}
	if err := placement.ValidateGroupName(request.GetGroup()); err != nil {
		return invalid("group", "%v", err)
	}
	if err := access.May(stream.Context(), access.Watch, request.GetGroup()); err != nil {
		return err
	}
	if len(request.GetCursor()) > 0 {
		if request.Cursor, err = opened(stream.Context(), "cursor", request.GetCursor()); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	go func() {
		select {
		case <-g.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		moved, err := g.watchOnce(ctx, stream, request)
		select {
		case <-g.stopping:
			return fail(codes.Unavailable, reason.Stopping, "the gateway is stopping: go on from the last cursor")
		default:
		}
		if !moved || stream.Context().Err() != nil || routing.Judge(status.Convert(err), true).Fate == routing.Final {
			return err
		}
	}
}

// watchOnce forwards one stream from a shard. The result moved is true if messages arrived. In that case, the request's
// cursor points after them.
func (g *Gateway) watchOnce(ctx context.Context, stream grpc.ServerStream, request *recordv1.WatchRequest) (moved bool,
	err error) {
	change := func(out *frame) error {
		cursor, err := bytesOf(out, cursorField)
		if err == nil && len(cursor) > 0 {
			request.Cursor, moved = cursor, true
			if access.Identified(ctx) {
				if cursor, err = access.Sign(ctx, cursor, 0); err != nil {
					return err
				}
				replaceBytes(out, cursorField, cursor)
			}
		}
		return err
	}
	err = g.pumpGroup(ctx, stream, request.GetGroup(), recordv1.RecordService_Watch_FullMethodName, request, change)
	return moved, err
}

// bytesOf copies a bytes or string field out of a shard's response. It returns nil if the field is absent.
func bytesOf(out *frame, field protowire.Number) ([]byte, error) {
	value, err := scan(out.bufs).find(field, protowire.BytesType)
	if err != nil {
		return nil, status.Error(codes.Internal, "the shard's answer cannot be read: "+err.Error())
	}
	found, err := value.take(value.left)
	return bytes.Clone(found), err
}
