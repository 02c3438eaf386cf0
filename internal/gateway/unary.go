package gateway

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/security/access"
)

// method describes an RPC of RecordService whose requests are routed by the key in their bytes.
type method struct {
	full    string
	fields  fields
	write   bool
	creates bool // whether a call creates a missing group, with Named routing
	verb    access.Verb
	metrics methodMetrics
}

func (g *Gateway) method(full string, f fields, write, creates bool) *method {
	return &method{full: full, fields: f, write: write, creates: creates, verb: access.RuleOf(full).Verb,
		metrics: g.metrics.method(full)}
}

// recordService returns the service with handlers that pass bytes through.
func (g *Gateway) recordService() *grpc.ServiceDesc {
	keyed := fields{key: 1}
	written := fields{key: 1, requestID: 3}
	uploaded := fields{header: 1, key: 1, requestID: 3}
	unary := func(name, full string, f fields, write, creates bool,
		handle func(context.Context, *method, *frame) (any, error)) grpc.MethodDesc {
		m := g.method(full, f, write, creates)
		handler := unaryHandler(full, func(ctx context.Context, in *frame) (any, error) { return handle(ctx, m, in) })
		return grpc.MethodDesc{MethodName: name, Handler: handler}
	}
	stream := func(name string, client, server bool, handle grpc.StreamHandler) grpc.StreamDesc {
		return grpc.StreamDesc{StreamName: name, Handler: handle, ClientStreams: client, ServerStreams: server}
	}
	return &grpc.ServiceDesc{
		ServiceName: recordv1.RecordService_ServiceDesc.ServiceName,
		Metadata:    recordv1.RecordService_ServiceDesc.Metadata,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			unary("Put", recordv1.RecordService_Put_FullMethodName, written, true, true, g.unary),
			unary("Get", recordv1.RecordService_Get_FullMethodName, keyed, false, false, g.unary),
			unary("Delete", recordv1.RecordService_Delete_FullMethodName, written, true, false, g.unary),
			unary("ListVersions", recordv1.RecordService_ListVersions_FullMethodName, keyed, false, false, g.listVersions),
			unary("Find", recordv1.RecordService_Find_FullMethodName, fields{id: 1}, false, false, g.find),
			unary("PlanScan", recordv1.RecordService_PlanScan_FullMethodName, fields{}, false, false, g.planScan),
		},
		Streams: []grpc.StreamDesc{
			stream("BatchPut", true, true, g.counted(recordv1.RecordService_BatchPut_FullMethodName, g.batchPut)),
			stream("BatchGet", false, true, g.counted(recordv1.RecordService_BatchGet_FullMethodName, g.batchGet)),
			stream("Upload", true, false, g.upload(g.method(recordv1.RecordService_Upload_FullMethodName, uploaded, true,
				true))),
			stream("Download", false, true, g.download(g.method(recordv1.RecordService_Download_FullMethodName, keyed, false,
				false))),
			stream("Scan", false, true, g.counted(recordv1.RecordService_Scan_FullMethodName, g.scan)),
			stream("Watch", false, true, g.counted(recordv1.RecordService_Watch_FullMethodName, g.watch)),
		},
	}
}

// unaryHandler receives the request as a frame. Interceptors see a message.Undecoded.
func unaryHandler(full string, handle func(ctx context.Context, in *frame) (any, error)) grpc.MethodHandler {
	return func(service any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any,
		error) {
		in := &frame{keep: true}
		if err := decode(in); err != nil {
			return nil, err
		}
		defer in.free()
		return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: service, FullMethod: full},
			func(ctx context.Context, _ any) (any, error) {
				if err := tooLarge(full, in); err != nil {
					return nil, err
				}
				return handle(ctx, in)
			})
	}
}

// unary forwards a call with a key.
func (g *Gateway) unary(ctx context.Context, m *method, in *frame) (any, error) {
	began := time.Now()
	size := int64(in.bufs.Len())
	if err := g.admit(size); err != nil {
		m.metrics.done(codes.ResourceExhausted, began)
		return nil, err
	}
	defer g.release(size)
	out, err := g.forward(ctx, m, in)
	m.metrics.done(status.Code(err), began)
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (g *Gateway) forward(ctx context.Context, m *method, in *frame) (*frame, error) {
	var k key
	if err := m.readKey(in, &k); err != nil {
		return nil, err
	}
	if err := g.may(ctx, m.verb, &k); err != nil {
		return nil, err
	}
	out, effect := &frame{}, routing.Effect{Write: m.write, Once: !k.requestID}
	// The first attempt takes the fast path, which sets no timer even if the caller has no deadline, because shards
	// set one themselves.
	if t := g.router.table.Load(); t != nil {
		r := t.route(&k)
		if s := r.leader(); s != nil {
			sent, err := g.invoke(ctx, r.place(s), m, in, out)
			if err == nil {
				return out, nil
			}
			call := g.repeated(effect)
			v := call.failed.judge(r, s, status.Convert(err), sent)
			if v.Fate == routing.Final {
				return nil, ofEveryCopy(err, v)
			}
			return out, g.again(ctx, m, &k, in, out, call, &failedAttempt{err, sent, v, s, r, t})
		}
	}
	return out, g.again(ctx, m, &k, in, out, g.repeated(effect), nil)
}

// again takes the slow path: it waits for routes, creates groups, and retries. The argument first is the failure of
// the fast path, or nil if no attempt was made yet.
func (g *Gateway) again(ctx context.Context, m *method, k *key, in, out *frame, call repeated,
	first *failedAttempt) error {
	ctx, cancel := g.bounded(ctx)
	defer cancel()
	if first != nil {
		if done, err := call.goOn(ctx, first); done {
			return err
		}
	}
	return call.route(ctx, k, m.creates, func(ctx context.Context, s place) (bool, error) {
		return g.invoke(ctx, s, m, in, out)
	})
}

// listVersions forwards a ListVersions call. If the store identifies callers, the page token is signed for the caller.
func (g *Gateway) listVersions(ctx context.Context, m *method, in *frame) (any, error) {
	call := access.CallOf(ctx)
	if call == nil || !call.Signs() {
		return g.unary(ctx, m, in)
	}
	var request recordv1.ListVersionsRequest
	if err := decode(in, &request); err != nil {
		return nil, err
	}
	t, err := g.router.wait(ctx)
	if err != nil {
		return nil, err
	}
	k := key{id: request.GetKey().GetId(), group: []byte(request.GetKey().GetGroup())}
	group := t.groupOf(&k)
	if request.GetPageToken() != "" {
		if err := call.May(m.verb, group); err != nil {
			return nil, err
		}
		token, err := access.OpenPage(ctx, group, request.GetPageToken())
		if err != nil {
			return nil, notOpened("page_token", err)
		}
		replaceBytes(in, pageTokenField, []byte(token))
	}
	answer, err := g.unary(ctx, m, in)
	if err != nil {
		return nil, err
	}
	out, ok := answer.(*frame)
	if !ok {
		return answer, nil
	}
	token, err := bytesOf(out, nextPageTokenField)
	if err != nil {
		out.free()
		return nil, err
	}
	if len(token) > 0 {
		signed, err := access.SignPage(ctx, group, string(token))
		if err != nil {
			out.free()
			return nil, err
		}
		replaceBytes(out, nextPageTokenField, []byte(signed))
	}
	return out, nil
}

// These are field numbers of ListVersions.
const (
	pageTokenField     = 4
	nextPageTokenField = 2
)

// readKey reads the key of a request, which must have one.
func (m *method) readKey(in *frame, k *key) error {
	if err := m.fields.readKey(scan(in.bufs), k); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if !k.present && m.fields.key != 0 {
		return invalid("key", "required")
	}
	return nil
}

// invoke makes one unary call to a shard. The result sent is true if the request may have left this process.
func (g *Gateway) invoke(ctx context.Context, s place, m *method, in, out *frame) (sent bool, err error) {
	defer s.tenure.End(s.tenure.Begin())
	var trailer metadata.MD
	if !m.write {
		err = s.conn().Invoke(ctx, m.full, in, out, grpc.Trailer(&trailer))
		sent = true
	} else {
		// gRPC sets the peer once the call has a stream on a connection; before that nothing was sent.
		var to peer.Peer
		err = s.conn().Invoke(ctx, m.full, in, out, grpc.Trailer(&trailer), grpc.Peer(&to))
		sent = to.Addr != nil
	}
	if trailer = own(trailer); len(trailer) > 0 && (err == nil || routing.Judge(status.Convert(err), sent).
		Fate == routing.Final) {
		_ = grpc.SetTrailer(ctx, trailer) // fails only if the call has already ended
	}
	return sent, err
}

// own removes the status details from a trailer, and returns it. The status itself already carries them, and details
// of an earlier attempt must not remain in the trailer.
func own(trailer metadata.MD) metadata.MD {
	delete(trailer, "grpc-status-details-bin")
	return trailer
}
