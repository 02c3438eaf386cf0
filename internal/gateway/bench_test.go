package gateway_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

// echoBytes holds the bytes of a message. Forwarding the bytes unchanged is the least work that a hop can do.
type echoBytes struct{ bufs mem.BufferSlice }

type echoCodec struct{ proto encoding.CodecV2 }

func (c echoCodec) Marshal(v any) (mem.BufferSlice, error) {
	if e, ok := v.(*echoBytes); ok {
		return e.bufs, nil
	}
	return c.proto.Marshal(v)
}

func (c echoCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if e, ok := v.(*echoBytes); ok {
		data.Ref()
		e.bufs = data
		return nil
	}
	return c.proto.Unmarshal(data, v)
}

func (c echoCodec) Name() string { return "proto" }

// echoShard returns the same response for every Get.
type echoShard struct {
	recordv1.UnimplementedRecordServiceServer
	answer *recordv1.GetResponse
}

func (e *echoShard) Get(context.Context, *recordv1.GetRequest) (*recordv1.GetResponse, error) {
	return e.answer, nil
}

func listen(b *testing.B) net.Listener {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(b, err)
	return l
}

// bareHop forwards Get to one shard without decoding it, and does no other work.
func bareHop(b *testing.B, shard string) string {
	b.Helper()
	codec := echoCodec{encoding.GetCodecV2("proto")}
	to, err := grpc.NewClient(shard, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec)))
	must.OK(b, err)
	b.Cleanup(func() { _ = to.Close() })
	server := grpc.NewServer(grpc.ForceServerCodecV2(codec))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: recordv1.RecordService_ServiceDesc.ServiceName, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Get", Handler: func(_ any, ctx context.Context, decode func(any) error,
			_ grpc.UnaryServerInterceptor) (any, error) {
			in, out := &echoBytes{}, &echoBytes{}
			if err := decode(in); err != nil {
				return nil, err
			}
			return out, to.Invoke(ctx, recordv1.RecordService_Get_FullMethodName, in, out)
		}}},
	}, nil)
	l := listen(b)
	go func() { _ = server.Serve(l) }()
	b.Cleanup(server.Stop)
	return l.Addr().String()
}

// startEcho runs an echo shard and a gateway in front of it.
func startEcho(b *testing.B, size int) (shard, viaGateway string) {
	b.Helper()
	server := grpc.NewServer()
	recordv1.RegisterRecordServiceServer(server, &echoShard{answer: &recordv1.GetResponse{Record: &recordv1.Record{
		Key: &recordv1.RecordKey{Id: 1, Group: "0"}, Version: "abc", SizeBytes: int64(size), Data: make([]byte, size),
	}}})
	l := listen(b)
	go func() { _ = server.Serve(l) }()
	b.Cleanup(server.Stop)
	store, err := registry.NewStore(memetcdtest.New(b).Client(b), "bench", nil)
	must.OK(b, err)
	ctx := context.Background()
	meta := hash(16)
	if _, err := store.InitMeta(ctx, meta); err != nil {
		b.Fatal(err)
	}
	volume := uuid.New()
	stop, err := store.RegisterShard(ctx, placement.Shard{Name: "a", Address: l.Addr().String(), VolumeUUID: volume})
	must.OK(b, err)
	b.Cleanup(stop)
	for n := range meta.Routing.Groups {
		g := placement.NewGroup(meta.Routing, placement.GroupName(n), n)
		g.Leader, g.Members = "a", []placement.Member{{Shard: "a", VolumeUUID: volume}}
		if _, err := store.PutGroup(ctx, g); err != nil {
			b.Fatal(err)
		}
	}
	g, err := gateway.Start(ctx, gateway.Config{Listen: "127.0.0.1:0", Store: store})
	must.OK(b, err)
	b.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = g.Stop(ctx)
	})
	return l.Addr().String(), g.Addr()
}

// BenchmarkGet compares the gateway with bareHop, a proxy that only forwards bytes. Both have the same callers and the
// same shard. Choose -cpu and -count as you like, because only the ratio of the two results matters.
func BenchmarkGet(b *testing.B) {
	for _, size := range []int{1 << 10, 10 << 10} {
		shard, via := startEcho(b, size)
		bare := bareHop(b, shard)
		for _, callers := range []int{16, 64} {
			for _, way := range []struct{ name, address string }{{"direct", shard}, {"bare", bare}, {"gateway", via}} {
				b.Run(fmt.Sprintf("%dKiB/%d/%s", size>>10, callers, way.name), func(b *testing.B) { get(b, way.address, callers) })
			}
		}
	}
}

func get(b *testing.B, address string, callers int) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.OK(b, err)
	defer func() { _ = conn.Close() }()
	client := recordv1.NewRecordServiceClient(conn)
	b.ReportAllocs()
	var all sync.WaitGroup
	next := make(chan int64, callers)
	go func() {
		for n := range int64(b.N) {
			next <- n
		}
		close(next)
	}()
	b.ResetTimer()
	for range callers {
		all.Go(func() {
			for id := range next {
				if _, err := client.Get(context.Background(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Id: id}}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}
