package serve

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/shard/answer"
)

// Most calls are Get and Put, for which this file has handlers in place of the generated ones. The response of a Get
// is in memory that is reused, and the message of a Put is not decoded if it is too large. Interceptors see both like
// any other unary call.

// RecordService describes the gRPC service with these two handlers. The implementation must be one that
// Server.Records returned.
func RecordService() *grpc.ServiceDesc {
	own := map[string]grpc.MethodHandler{"Get": handleGet, "Put": handlePut}
	d := recordv1.RecordService_ServiceDesc
	d.Methods = slices.Clone(d.Methods)
	for i := range d.Methods {
		if handler, ok := own[d.Methods[i].MethodName]; ok {
			d.Methods[i].Handler = handler
		}
	}
	return &d
}

// getCall is the state of a Get call, which is reused for later Get calls.
type getCall struct {
	server *recordServer
	in     recordv1.GetRequest
	read   read
	record recordv1.Record
	key    recordv1.RecordKey
	crc    uint32
	out    recordv1.GetResponse
	buffer []byte
	taken  int64             // amount reserved from Server.answers
	handle grpc.UnaryHandler // the method answer as a function value, created once
}

// getBufferBytes is enough for the data of most records; larger buffers are left to the garbage collector.
const getBufferBytes = 32 << 10

var getCalls = sync.Pool{New: func() any {
	c := &getCall{buffer: make([]byte, getBufferBytes)}
	c.handle = c.answer
	return c
}}

// handleGet returns the getCall itself as the response. After gRPC has encoded it, the getCall can be reused. If the
// call fails, or if an interceptor returns a different response, the getCall is left to the garbage collector,
// because the error or that response may refer to it. Interceptors must wait for their handler, and must not retain
// the request or the response.
func handleGet(srv any, ctx context.Context, //nolint:revive // the parameters are gRPC's
	decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	s := srv.(*recordServer)
	c := getCalls.Get().(*getCall)
	c.server = s
	if err := decode(&c.in); err != nil {
		return nil, err
	}
	out, err := interceptor(ctx, &c.in, s.get, c.handle)
	if err != nil {
		c.giveBack()
		return nil, err
	}
	if out != any(&c.out) {
		c.giveBack()
		return out, nil
	}
	return c, nil
}

// answer is the handler that interceptors call.
func (c *getCall) answer(ctx context.Context, request any) (any, error) {
	s := c.server
	if err := s.prepareGet(ctx, request.(*recordv1.GetRequest), &c.read); err != nil {
		return nil, err
	}
	tenant, err := enter(ctx, c.read.tenant(), c.read.where, getBufferBytes)
	if err != nil {
		return nil, err
	}
	moved := int64(0)
	if tenant != nil {
		defer func() { leave(tenant, moved) }()
	}
	c.read.options.Buffer = c.buffer
	if err := c.read.barrier(ctx); err != nil {
		return nil, answer.Of(err, c.read.where)
	}
	rec, err := c.read.get(ctx)
	if err != nil {
		return nil, err
	}
	moved = movedOf(&rec)
	size := int64(len(rec.Data))
	if err := s.answers.Take(size, 0); err != nil {
		return nil, err
	}
	c.taken = size
	c.record.Key = &c.key
	if err := fillRecord(&c.record, c.read.where, &rec, dataOf(&rec, c.read.options.MetadataOnly, &c.crc)); err != nil {
		return nil, err
	}
	c.out.Record = &c.record
	s.metrics.get.moved(1, int64(len(c.record.Data)))
	return &c.out, nil
}

// giveBack releases the response memory that the call has reserved.
func (c *getCall) giveBack() {
	c.server.answers.Add(-c.taken)
	c.taken = 0
}

// Encode implements message.Encoder. gRPC encodes a response once, and nothing refers to the call afterwards.
func (c *getCall) Encode() (mem.BufferSlice, error) {
	encoded, err := message.Codec{}.Marshal(&c.out)
	c.giveBack()
	if err != nil {
		return nil, err
	}
	c.in.Reset()
	c.record.Reset()
	c.out.Reset()
	c.read, c.server = read{}, nil
	getCalls.Put(c)
	return encoded, nil
}

// handlePut does not decode the data of a message that is too large. Interceptors see the fields before the data.
func handlePut(srv any, ctx context.Context, //nolint:revive // the parameters are gRPC's
	decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	s := srv.(*recordServer)
	in := putIn{put: &recordv1.PutRequest{}}
	defer in.free() // the log has copied the data when this function returns
	bounded := s.bounded(in.put)
	bounded.Decoder = &in
	if err := decode(bounded); err != nil {
		return nil, err
	}
	return interceptor(ctx, in.put, s.put, func(ctx context.Context, in any) (any, error) {
		if bounded.TooLarge() {
			return nil, answer.PutTooLarge(bounded)
		}
		return s.Put(ctx, in.(*recordv1.PutRequest))
	})
}
