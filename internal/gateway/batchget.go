package gateway

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/security/access"
)

const (
	getsMax     = 4096
	getBytesMax = 4 << 20
)

// batchGet splits the reads by shard, runs the parts in parallel and forwards results as they arrive, each with its
// position in the caller's request. Flow control limits each call to one message per shard. Limits.AnswerBytesMax
// limits all calls together.
func (g *Gateway) batchGet(stream grpc.ServerStream) error {
	b, err := g.nextBatch(stream, "gets", access.Get, getsMax, getBytesMax)
	if err != nil {
		return err
	}
	defer g.endBatch(b)
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	if _, err := g.router.wait(ctx); err != nil {
		return err
	}
	get := &batchGetCall{g: g, batch: b, stream: stream, cancel: cancel, held: message.HeldOf(ctx)}
	get.run(ctx)
	if get.sendErr != nil {
		return get.sendErr
	}
	return get.sendFailures()
}

// batchGetCall is a BatchGet call in progress.
type batchGetCall struct {
	g *Gateway
	*batch
	stream  grpc.ServerStream
	cancel  context.CancelFunc
	held    *message.Held
	mu      sync.Mutex // guards sending and sendErr
	sendErr error
}

// run retries until all items have a result, the caller has disconnected, or the deadline is near.
func (get *batchGetCall) run(ctx context.Context) {
	call := get.g.repeated(routing.Effect{})
	for {
		t := get.g.router.table.Load()
		parts := get.g.split(ctx, t, get.batch)
		var all sync.WaitGroup
		for _, p := range parts[min(1, len(parts)):] {
			all.Go(func() { get.part(ctx, p) })
		}
		if len(parts) > 0 {
			get.part(ctx, parts[0])
		}
		all.Wait()
		n, v := get.open()
		if n == 0 || !call.pause(ctx, t.changed, v) {
			return
		}
	}
}

// part reads a part from its shard.
func (get *batchGetCall) part(ctx context.Context, p *part) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := notEOF(get.read(ctx, p)) // items still lack a result, so even a normal end of the stream is an error
	v := routing.Judge(status.Convert(err), true)
	get.failPart(p, err, v)
}

// read forwards the shard's responses until the stream ends. It returns io.EOF if the stream ends without an error.
func (get *batchGetCall) read(ctx context.Context, p *part) error {
	in := get.message(p)
	defer in.free()
	from, err := p.shard.download(ctx, recordv1.RecordService_BatchGet_FullMethodName, in)
	if err != nil {
		return err
	}
	tenures := get.tenures(p)
	counted := make([]bool, len(tenures))
	for bytes := int64(0); ; {
		in := &frame{}
		for i, t := range tenures {
			counted[i] = t.Begin()
		}
		err := from.RecvMsg(in)
		for i, t := range tenures {
			t.End(counted[i])
		}
		if err != nil {
			return err
		}
		bytes += int64(in.bufs.Len())
		out, err := get.renumber(p, in)
		in.free()
		if err != nil {
			return err
		}
		if err := get.send(out, bytes); err != nil {
			return err
		}
	}
}

// send forwards one message to the caller. The argument bytes is the number of bytes that the message's shard has
// sent so far.
func (get *batchGetCall) send(out *frame, bytes int64) error {
	if out.bufs.Len() == 0 {
		out.free()
		return nil
	}
	// A message also takes memory while it waits for the lock.
	n := int64(out.bufs.Len()) + min(streamWindow, bytes)
	err := get.held.More(n)
	if err == nil {
		defer func() { _ = get.held.More(-n) }() // cannot fail, because More never refuses a reduction
	} else {
		out.free()
	}
	get.mu.Lock()
	defer get.mu.Unlock()
	if get.sendErr == nil {
		if err == nil {
			err = forward(get.held, get.stream, out, 0)
		}
		if get.sendErr = err; err != nil {
			get.cancel()
		}
	}
	return get.sendErr
}

// renumber copies the results of a message and appends to each its position in the caller's request. A result then has
// two positions, of which protobuf uses the last one. renumber leaves out results that must be retried.
func (get *batchGetCall) renumber(p *part, in *frame) (*frame, error) {
	buf := message.Pool.Get(in.bufs.Len() + 8*len(p.items))
	out := (*buf)[:0]
	err := eachItem(in.bufs, func(result scanner, _, _ int) error {
		position, err := readPosition(result)
		if err != nil {
			return err
		}
		if position >= uint64(len(p.items)) {
			return errWire
		}
		i := p.items[position]
		it := &get.items[i]
		if it.answered {
			return nil
		}
		st, err := resultStatus(result, 2)
		if err != nil {
			return err
		}
		if st != nil {
			if v := it.failures.judge(it.route, it.to, st, true); v.Fate != routing.Final {
				it.failed(st.Err(), v)
				it.told = true
				return nil
			}
		}
		it.answered, it.err = true, nil
		out = protowire.AppendTag(out, 1, protowire.BytesType)
		out = protowire.AppendVarint(out, uint64(result.left+1+protowire.SizeVarint(uint64(i))))
		out = result.appendTo(out, result.left)
		out = protowire.AppendTag(out, 1, protowire.VarintType)
		out = protowire.AppendVarint(out, uint64(i))
		return nil
	})
	if err != nil {
		message.Pool.Put(buf)
		return nil, notEOF(io.EOF)
	}
	return &frame{bufs: message.Appended(buf, out)}, nil
}

// readPosition reads the position of a BatchGetResult, or returns 0 if the result has none.
func readPosition(result scanner) (uint64, error) {
	value, err := result.find(1, protowire.VarintType)
	if err != nil || value.left == 0 {
		return 0, err
	}
	return value.uvarint()
}

// sendFailures sends errors for the items that no shard has answered.
func (get *batchGetCall) sendFailures() error {
	var out []byte
	for i := range get.items {
		if err := get.items[i].err; err != nil {
			out = appendMessage(out, &recordv1.BatchGetResult{Position: uint32(i), Status: status.Convert(err).Proto()})
		}
	}
	return get.send(&frame{bufs: mem.BufferSlice{mem.SliceBuffer(out)}}, 0)
}
