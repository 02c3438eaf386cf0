package shard

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
)

// Get and Put are most of the calls. They are registered as streams that neither side streams, which is the same on
// the wire as a unary call, because such a handler sends its answer itself: the message and the buffer of the data can
// then be used again, where a unary handler must leave them to the garbage collector.

// recordServiceDesc is RecordService with these two handlers.
func recordServiceDesc() *grpc.ServiceDesc {
	hot := map[string]grpc.StreamHandler{"Get": handleGet, "Put": handlePut}
	d := recordv1.RecordService_ServiceDesc
	d.Methods = nil
	d.Streams = append([]grpc.StreamDesc(nil), d.Streams...)
	for _, m := range recordv1.RecordService_ServiceDesc.Methods {
		if handler, ok := hot[m.MethodName]; ok {
			d.Streams = append(d.Streams, grpc.StreamDesc{StreamName: m.MethodName, Handler: handler})
			continue
		}
		d.Methods = append(d.Methods, m)
	}
	return &d
}

// getCall is what one Get needs; used again for another one.
type getCall struct {
	in     recordv1.GetRequest
	read   read
	record recordv1.Record
	key    recordv1.RecordKey
	crc    uint32
	out    recordv1.GetResponse
	buffer []byte
}

// getBufferBytes holds the data of most records; larger ones are left to the garbage collector.
const getBufferBytes = 32 << 10

var getCalls = sync.Pool{New: func() any { return &getCall{buffer: make([]byte, getBufferBytes)} }}

// deadline gives a call without a deadline ours.
func (s *Shard) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.cfg.Limits.CallTimeout)
}

func handleGet(srv any, ss grpc.ServerStream) (err error) {
	s := srv.(*recordServer)
	if err := s.begin(); err != nil {
		s.metrics.get.observe(err, 0)
		return err
	}
	call := running{method: s.metrics.get, began: time.Now()}
	defer s.endCall(&call, &err)
	c := getCalls.Get().(*getCall)
	if err := ss.RecvMsg(&c.in); err != nil {
		return err
	}
	err = s.answerGet(ss, c)
	call.group = c.read.where.group
	if err != nil {
		return err // what an error may refer to is not used again
	}
	// The answer was encoded: nothing refers to the call any more.
	c.in.Reset()
	c.record.Reset()
	c.out.Reset()
	c.read = read{}
	getCalls.Put(c)
	return nil
}

func (s *recordServer) answerGet(ss grpc.ServerStream, c *getCall) error {
	if err := s.prepareGet(&c.in, &c.read); err != nil {
		return err
	}
	c.read.options.Buffer = c.buffer
	ctx, cancel := s.deadline(ss.Context())
	err := s.barrier(ctx, c.read.served)
	cancel()
	if err != nil {
		return answerError(err, c.read.where)
	}
	rec, err := c.read.get()
	if err != nil {
		return err
	}
	size := int64(len(rec.Data))
	if err := s.answers.take(size); err != nil {
		return err
	}
	defer s.answers.give(size)
	c.record.Key = &c.key
	if err := fillRecord(&c.record, c.read.where, &rec, dataOf(&rec, c.read.options.MetadataOnly, &c.crc)); err != nil {
		return err
	}
	c.out.Record = &c.record
	s.metrics.get.moved(1, int64(len(c.record.Data)))
	return ss.SendMsg(&c.out)
}

func handlePut(srv any, ss grpc.ServerStream) (err error) {
	s := srv.(*recordServer)
	if err := s.begin(); err != nil {
		s.metrics.put.observe(err, 0)
		return err
	}
	var in recordv1.PutRequest
	call := running{method: s.metrics.put, began: time.Now(), request: &in}
	defer s.endCall(&call, &err)
	bounded := s.bounded(&in)
	if err := ss.RecvMsg(bounded); err != nil {
		return err
	}
	if bounded.TooLarge() {
		return putTooLargeError(bounded)
	}
	ctx, cancel := s.deadline(ss.Context())
	out, err := s.Put(ctx, &in)
	cancel()
	if err != nil {
		return err
	}
	return ss.SendMsg(out)
}
