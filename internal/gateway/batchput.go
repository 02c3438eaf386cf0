package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/security/access"
)

// These constants limit a BatchPut message, and the messages in flight on one stream.
const (
	putsMax       = 1024
	putBytesMax   = 4<<20 + 64<<10 // 4 MiB of puts, and 64 KiB for their tags
	batchesFlight = 4
)

// batchPut splits each message by shard and sends the parts over one stream per shard, so that puts to one record keep
// their order. It combines the results in the order of the message. Retried puts use separate streams, so they may be
// applied after puts that arrived later.
func (g *Gateway) batchPut(stream grpc.ServerStream) error {
	if _, err := g.router.wait(stream.Context()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	b := &batchPutStream{g: g, ctx: ctx, lanes: map[*shard]*lane{}}
	under := make(chan *putBatch, batchesFlight)
	answered, freed := make(chan error, 1), make(chan struct{})
	go func() {
		err := b.answer(stream, under)
		if err != nil {
			cancel() // ends the shards' streams, because nobody will read their responses any more
		}
		answered <- err
		for pb := range under { // free the remaining messages
			pb.wait.Wait()
			pb.wrote(ctx, g)
			pb.free(g)
		}
		close(freed)
	}()
	err := b.receive(stream, under)
	close(under)
	answerErr := <-answered
	if err != nil || answerErr != nil {
		cancel()
	}
	<-freed
	for _, l := range b.lanes {
		l.close()
		<-l.ended
	}
	if answerErr != nil {
		return answerErr
	}
	return err
}

// batchPutStream is a BatchPut stream in progress.
type batchPutStream struct {
	g     *Gateway
	ctx   context.Context
	lanes map[*shard]*lane
}

// putBatch is a message of the stream that is being processed.
type putBatch struct {
	*batch
	wait    sync.WaitGroup // waits until all parts have a result
	results []scanner      // the encoded result of each put, as received from a shard
	mu      sync.Mutex
	frames  []*frame // the frames that hold the results
}

func (pb *putBatch) free(g *Gateway) {
	for _, f := range pb.frames {
		f.free()
	}
	g.endBatch(pb.batch)
}

// wrote records a message's puts in the audit log. It is called once they have results or will not be retried.
func (pb *putBatch) wrote(ctx context.Context, g *Gateway) {
	call := access.CallOf(ctx)
	if call == nil {
		return
	}
	t := g.router.table.Load()
	call.Wrote(len(pb.items), func(i int) access.Written {
		it := &pb.items[i]
		w := access.Written{Verb: access.Put, Group: t.groupOf(&it.key), ID: it.key.id, Code: status.Code(it.err)}
		if !it.key.present {
			return access.Written{}
		}
		if it.err == nil {
			if st, err := resultStatus(pb.results[i], 1); err != nil || !it.answered {
				w.Code = codes.Unknown
			} else {
				w.Code = st.Code()
			}
		}
		return w
	})
}

// receive reads messages and starts to process them, until the caller half-closes.
func (b *batchPutStream) receive(stream grpc.ServerStream, under chan<- *putBatch) error {
	for {
		read, err := b.g.nextBatch(stream, "puts", access.Put, putsMax, putBytesMax)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		pb := &putBatch{batch: read, results: make([]scanner, len(read.items))}
		for _, p := range b.g.split(b.ctx, b.g.router.table.Load(), read) {
			pb.wait.Add(1)
			b.lane(p.shard).send(pb, p)
		}
		select {
		case under <- pb:
		case <-b.ctx.Done():
			pb.wait.Wait()
			pb.wrote(b.ctx, b.g)
			pb.free(b.g)
			return fromContext(b.ctx)
		}
	}
}

// answer completes the messages in their order: it waits for the parts of each message, retries its unanswered puts,
// and sends the response.
func (b *batchPutStream) answer(stream grpc.ServerStream, under <-chan *putBatch) error {
	for pb := range under {
		pb.wait.Wait()
		b.retry(pb)
		pb.wrote(b.ctx, b.g)
		out := pb.response()
		pb.free(b.g)
		if err := stream.SendMsg(out); err != nil {
			return err
		}
	}
	return nil
}

// retry retries the unanswered puts, each part over its own stream, until the deadline is near.
func (b *batchPutStream) retry(pb *putBatch) {
	n, v := pb.open()
	if n == 0 {
		return
	}
	ctx, cancel := b.g.bounded(b.ctx)
	defer cancel()
	call := b.g.repeated(routing.Effect{Write: true})
	for n > 0 {
		t := b.g.router.table.Load()
		if !call.pause(ctx, t.changed, v) {
			return
		}
		t = b.g.router.table.Load()
		for _, p := range b.g.split(ctx, t, pb.batch) {
			pb.wait.Add(1)
			go func() {
				l := openLane(ctx, p.shard)
				l.send(pb, p)
				l.close()
			}()
		}
		pb.wait.Wait()
		n, v = pb.open()
	}
}

// notEOF replaces io.EOF with an error for a stream that ended too early without an error.
func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Unavailable, "the shard ended the stream without an answer")
	}
	return err
}

// take records the results of a part.
func (pb *putBatch) take(p *part, out *frame) {
	pb.mu.Lock()
	pb.frames = append(pb.frames, out)
	pb.mu.Unlock()
	n := 0
	err := eachItem(out.bufs, func(result scanner, _, _ int) error {
		if n == len(p.items) {
			return errWire
		}
		i := p.items[n]
		n++
		it := &pb.items[i]
		st, err := resultStatus(result, 1)
		if err != nil {
			return err
		}
		if st != nil {
			if v := it.failures.judge(it.route, it.to, st, true); v.Fate != routing.Final || it.effect.Doubtful(v) {
				it.failed(st.Err(), v)
				return nil
			}
		}
		it.answered, it.err = true, nil
		pb.results[i] = result
		return nil
	})
	if err == nil && n < len(p.items) {
		err = errWire
	}
	if err != nil {
		cause := status.Error(codes.Unavailable, fmt.Sprintf("the shard's answer to %d puts cannot be read", len(p.items)))
		for _, i := range p.items[max(n-1, 0):] {
			if it := &pb.items[i]; !it.answered {
				it.failed(cause, routing.Verdict{Fate: routing.Unknown, Reason: reason.ShardUnreachable})
			}
		}
	}
}

// response combines the results in order.
func (pb *putBatch) response() *frame {
	size := 0
	for i := range pb.items {
		size += 6 + pb.results[i].left
	}
	buf := message.Pool.Get(size)
	out := (*buf)[:0]
	for i := range pb.items {
		if err := pb.items[i].err; err != nil {
			out = appendMessage(out, &recordv1.BatchPutResult{Status: status.Convert(err).Proto()})
			continue
		}
		result := pb.results[i]
		out = protowire.AppendTag(out, 1, protowire.BytesType)
		out = protowire.AppendVarint(out, uint64(result.left))
		out = result.appendTo(out, result.left)
	}
	return &frame{bufs: message.Appended(buf, out)}
}

// lane is the stream to one shard. The shard responds to the parts in the order in which they were sent.
type lane struct {
	to     grpc.ClientStream
	cancel context.CancelFunc
	err    error // the reason why there is no stream
	parts  chan sentPart
	ended  chan struct{}
}

type sentPart struct {
	pb   *putBatch
	p    *part
	sent bool
}

// lane returns the stream to a shard. It opens one if there is none, or if the last one has ended.
func (b *batchPutStream) lane(s *shard) *lane {
	if l := b.lanes[s]; l != nil && l.err == nil {
		select {
		case <-l.ended: // the last stream has ended, but a new one may work
			l.close()
		default:
			return l
		}
	}
	b.lanes[s] = openLane(b.ctx, s)
	return b.lanes[s]
}

// openLane opens a stream to a shard. The caller must call lane.close.
func openLane(ctx context.Context, s *shard) *lane {
	ctx, cancel := context.WithCancel(ctx)
	l := &lane{cancel: cancel, parts: make(chan sentPart, 2*batchesFlight), ended: make(chan struct{})}
	if l.to, l.err = s.conn().NewStream(ctx, bidiDesc, recordv1.RecordService_BatchPut_FullMethodName); l.err != nil {
		cancel()
		close(l.ended)
		return l
	}
	go l.receive()
	return l
}

// send sends a part. If sending fails, send records the failure in the batch.
func (l *lane) send(pb *putBatch, p *part) {
	if l.err != nil {
		pb.failPart(p, l.err, routing.Judge(status.Convert(l.err), false))
		pb.wait.Done()
		return
	}
	// SendMsg does not return the reason for a failure, but RecvMsg in lane.receive does. Sending to l.parts never blocks,
	// because at most batchesFlight+2 parts are in flight.
	err := l.to.SendMsg(pb.message(p))
	l.parts <- sentPart{pb: pb, p: p, sent: err == nil}
}

// receive reads responses until the lane is closed. After the stream breaks, all further parts fail with the same
// error.
func (l *lane) receive() {
	var broken error
	for s := range l.parts {
		out := &frame{}
		first := broken == nil
		if broken == nil {
			if err := l.to.RecvMsg(out); err != nil {
				broken = notEOF(err)
				close(l.ended)
			}
		}
		if broken == nil {
			s.pb.take(s.p, out)
		} else {
			s.pb.failPart(s.p, broken, routing.JudgeStream(status.Convert(broken), first, s.sent))
		}
		s.pb.wait.Done()
	}
	if broken == nil {
		close(l.ended)
	}
	l.cancel()
}

// close closes the lane after its parts have been answered.
func (l *lane) close() {
	if l.err == nil {
		_ = l.to.CloseSend() // fails only if the stream is already broken
		close(l.parts)
	}
}
