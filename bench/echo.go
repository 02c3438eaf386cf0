package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/recordv1"
)

// echoMethod is the gRPC method that the echo server and the hop before it serve.
const echoMethod = "/echo/Echo"

// rawCodec passes bytes through unchanged. Messages have the type *[]byte.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("raw codec: %T", v)
	}
	return *b, nil
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("raw codec: %T", v)
	}
	*b = append([]byte(nil), data...) // copied, because gRPC reuses the buffer
	return nil
}

func (rawCodec) Name() string { return "raw" }

// serveEcho starts a server that returns the raw bytes of each request.
func serveEcho(ctx context.Context, by link) (address string, stop func(), err error) {
	return serveRaw(ctx, by, func(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil })
}

// serveHop starts a server that forwards the bytes of each request to another server. It shows the minimum cost of a
// gateway.
func serveHop(ctx context.Context, by link, to string) (address string, stop func(), err error) {
	cc, err := grpc.NewClient(to, grpc.WithTransportCredentials(by.client))
	if err != nil {
		return "", nil, err
	}
	address, stopServer, err := serveRaw(ctx, by, func(ctx context.Context, in *[]byte) (*[]byte, error) {
		var out []byte
		err := cc.Invoke(ctx, echoMethod, in, &out, grpc.ForceCodec(rawCodec{}))
		return &out, err
	})
	return address, func() {
		_ = cc.Close()
		if err == nil {
			stopServer()
		}
	}, err
}

func serveRaw(ctx context.Context, by link, answer func(context.Context, *[]byte) (*[]byte, error)) (address string,
	stop func(), err error) {
	return serve(ctx, []grpc.ServerOption{grpc.Creds(by.server), grpc.ForceServerCodec(rawCodec{})}, func(s *grpc.Server) {
		s.RegisterService(&grpc.ServiceDesc{
			ServiceName: "echo",
			HandlerType: (*any)(nil),
			Methods: []grpc.MethodDesc{{
				MethodName: "Echo",
				Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
					var in []byte
					if err := decode(&in); err != nil {
						return nil, err
					}
					return answer(ctx, &in)
				},
			}},
		}, nil)
	})
}

func serve(ctx context.Context, options []grpc.ServerOption, register func(*grpc.Server)) (address string, stop func(),
	err error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := grpc.NewServer(options...)
	register(server)
	go func() { _ = server.Serve(listener) }() // the error is ignored, because Serve returns when Stop is called
	return listener.Addr().String(), server.Stop, nil
}

// bareServer responds to the messages of the record API without doing any work. It shows what gRPC and protobuf cost
// without Sheaf.
type bareServer struct {
	recordv1.UnimplementedRecordServiceServer
	data map[int64][]byte // maps each record size to the data that all records of this size have
}

func serveBare(ctx context.Context, by link) (address string, stop func(), err error) {
	b := &bareServer{data: map[int64][]byte{}}
	for _, size := range []int{1 << 10, 10 << 10, 1000, 10000} {
		b.data[int64(size)] = randomBytes(size)
	}
	// These are the same options as those of a shard's server.
	options := []grpc.ServerOption{grpc.Creds(by.server), grpc.MaxRecvMsgSize(8 << 20)}
	return serve(ctx, options, func(s *grpc.Server) { recordv1.RegisterRecordServiceServer(s, b) })
}

func (b *bareServer) Get(_ context.Context, r *recordv1.GetRequest) (*recordv1.GetResponse, error) {
	return &recordv1.GetResponse{Record: b.record(r.GetKey().GetId())}, nil
}

func (b *bareServer) record(id int64) *recordv1.Record {
	size := id >> 32
	data, ok := b.data[size]
	if !ok {
		data = make([]byte, size)
	}
	crc := uint32(1)
	return &recordv1.Record{
		Key: &recordv1.RecordKey{Id: id, Group: "0"}, Version: "12345", TimestampUnixNs: 1, CommitTimeUnixNs: 1,
		SizeBytes: size, DataCrc32C: &crc, Data: data,
	}
}

// bareBatchBytes is the approximate size at which a shard sends a message of a batch.
const bareBatchBytes = 1 << 20

func (b *bareServer) BatchGet(r *recordv1.BatchGetRequest,
	stream grpc.ServerStreamingServer[recordv1.BatchGetResponse]) error {
	out := &recordv1.BatchGetResponse{}
	bytes := 0
	for i, get := range r.GetGets() {
		record := b.record(get.GetKey().GetId())
		out.Results = append(out.Results, &recordv1.BatchGetResult{Position: uint32(i), Record: record})
		if bytes += len(record.GetData()); bytes >= bareBatchBytes || i == len(r.GetGets())-1 {
			if err := stream.Send(out); err != nil {
				return err
			}
			out.Results, bytes = nil, 0
		}
	}
	return nil
}

func (b *bareServer) Put(context.Context, *recordv1.PutRequest) (*recordv1.PutResponse, error) {
	return barePut(), nil
}

func barePut() *recordv1.PutResponse {
	return &recordv1.PutResponse{Version: "12345", CommitTimeUnixNs: 1, DataCrc32C: 1}
}

func (b *bareServer) BatchPut(stream grpc.BidiStreamingServer[recordv1.BatchPutRequest,
	recordv1.BatchPutResponse]) error {
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		out := &recordv1.BatchPutResponse{}
		for range in.GetPuts() {
			out.Results = append(out.Results, &recordv1.BatchPutResult{Put: barePut()})
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}
