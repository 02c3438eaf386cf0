package serve

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/test/must"
)

// counted is a shard that counts how often something is looked up in it. It panics if a call uses a method of
// Replicas that counted does not define.
type counted struct {
	Replicas
	looks atomic.Int64
}

func (*counted) Routing() placement.Routing { return placement.Routing{Mode: placement.Named} }

func (c *counted) Group(context.Context, string, uint64) (Group, error) {
	c.looks.Add(1)
	return nil, status.Error(codes.NotFound, "looked up")
}

func (c *counted) Groups() ([]string, bool) {
	c.looks.Add(1)
	return nil, true
}

func (c *counted) Known(name string) string { return name }

// decided is the access of a caller who may do either everything or nothing.
type decided struct {
	access.Call
	may bool
}

var errRefused = status.Error(codes.PermissionDenied, "refused")

func (d decided) May(access.Verb, string) error {
	if d.may {
		return nil
	}
	return errRefused
}

func (d decided) MayRecord(v access.Verb, group string, _ int64) error { return d.May(v, group) }
func (decided) SignShared(value []byte, _ time.Duration) []byte        { return value }
func (decided) Signs() bool                                            { return false }
func (decided) Sign(value []byte, _ time.Duration) []byte              { return value }
func (decided) Open(sealed []byte) ([]byte, error)                     { return sealed, nil }
func (decided) Wrote(int, func(int) access.Written)                    {}

// under is a stream whose context was replaced by another one.
type under struct {
	grpc.ServerStream
	ctx context.Context
}

func (u under) Context() context.Context { return u.ctx }

// A shard decides whether a caller has access before it looks anything up. A refusal therefore takes the same time
// whether the records and groups exist or not.
func TestNothingIsLookedUpForACallThatIsRefused(t *testing.T) {
	requests := map[string]string{
		recordv1.RecordService_Get_FullMethodName:          `{"key":{"id":"1","group":"a"}}`,
		recordv1.RecordService_BatchGet_FullMethodName:     `{"gets":[{"key":{"id":"1","group":"a"}}]}`,
		recordv1.RecordService_Download_FullMethodName:     `{"key":{"id":"1","group":"a"}}`,
		recordv1.RecordService_ListVersions_FullMethodName: `{"key":{"id":"1","group":"a"}}`,
		recordv1.RecordService_Find_FullMethodName:         `{"id":"1"}`,
		recordv1.RecordService_Put_FullMethodName:          `{"key":{"id":"1","group":"a"},"data":"YQ=="}`,
		recordv1.RecordService_BatchPut_FullMethodName:     `{"puts":[{"key":{"id":"1","group":"a"},"data":"YQ=="}]}`,
		recordv1.RecordService_Upload_FullMethodName:       `{"header":{"key":{"id":"1","group":"a"}}}`,
		recordv1.RecordService_Delete_FullMethodName:       `{"key":{"id":"7","group":"a"}}`,
		recordv1.RecordService_PlanScan_FullMethodName:     `{"groups":["a"]}`,
		recordv1.RecordService_Scan_FullMethodName:         `{"group":"a"}`,
		recordv1.RecordService_Watch_FullMethodName:        `{"group":"a"}`,
	}
	var call decided
	shard := &counted{}
	records := New(Options{CallsMax: 100, BytesInFlightMax: 1 << 20,
		AnswerBytesMax: 1 << 20}, shard)
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(message.Codec{}),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any,
			error) {
			return do(access.WithCall(ctx, call), in)
		}),
		grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo,
			do grpc.StreamHandler) error {
			return do(srv, under{s, access.WithCall(s.Context(), call)})
		}))
	server.RegisterService(RecordService(), records.Records())
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.OK(t, err)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	cc, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.OK(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	methods := recordv1.File_sheaf_record_v1_record_proto.Services().ByName("RecordService").Methods()
	for i := range methods.Len() {
		method := methods.Get(i)
		name := "/sheaf.record.v1.RecordService/" + string(method.Name())
		if requests[name] == "" {
			t.Errorf("%s: say in this test what is asked", name)
			continue
		}
		for _, may := range []bool{false, true} {
			call = decided{may: may}
			before := shard.looks.Load()
			code := askOne(t, cc, method, name, requests[name])
			looks := shard.looks.Load() - before
			if !may && (code != codes.PermissionDenied || looks != 0) {
				t.Errorf("%s, refused: %s after %d looks", name, code, looks)
			}
			if may && looks == 0 {
				t.Errorf("%s, allowed: nothing is looked up, so that this test shows nothing (%s)", name, code)
			}
		}
	}
}

// askOne makes a call, and returns the code of its first response. If that response has a result for each item, askOne
// returns the code of the only result.
func askOne(t *testing.T, cc *grpc.ClientConn, method protoreflect.MethodDescriptor, name, request string) codes.Code {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	empty := func(of protoreflect.MessageDescriptor) protoreflect.ProtoMessage {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(of.FullName())
		must.OK(t, err)
		return kind.New().Interface()
	}
	in, out := empty(method.Input()), empty(method.Output())
	must.OK(t, protojson.Unmarshal([]byte(request), in))
	if !method.IsStreamingClient() && !method.IsStreamingServer() {
		return status.Code(cc.Invoke(ctx, name, in, out))
	}
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, name)
	must.OK(t, err)
	_ = stream.SendMsg(in) // if the stream has failed, RecvMsg returns the reason
	_ = stream.CloseSend()
	if err := stream.RecvMsg(out); err != nil && !errors.Is(err, io.EOF) {
		return status.Code(err)
	}
	switch out := out.(type) {
	case *recordv1.BatchPutResponse:
		return codes.Code(out.GetResults()[0].GetStatus().GetCode()) //nolint:gosec // a code
	case *recordv1.BatchGetResponse:
		return codes.Code(out.GetResults()[0].GetStatus().GetCode()) //nolint:gosec // a code
	}
	return codes.OK
}
