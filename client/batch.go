package client

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
)

// These limits for one message of a batch are a little below those of the API.
const (
	batchPuts     = 1024
	batchPutBytes = 2 << 20
	batchGets     = 4096
	batchGetBytes = 2 << 20
	largeAtOnce   = 4
)

// PutItem is one put of a batch.
type PutItem struct {
	Key     Key
	Data    []byte
	Options PutOptions
}

// PutOutcome is the result of a PutItem.
type PutOutcome struct {
	PutResult
	Err error
}

// pendingItem is an item that has no response yet.
type pendingItem struct {
	attempts attempts
	put      *recordv1.PutRequest
	stored   *PutOutcome // receives the outcome of put
	get      *recordv1.GetRequest
	read     *GetOutcome // receives the outcome of get
	failure  *error      // receives the error; it is the field Err of the outcome
	to       target
	err      error
	verdict  routing.Verdict // how routing.Judge classifies err
	sent     bool
}

// pendingPut is a pendingItem together with its request.
type pendingPut struct {
	pendingItem
	request putRequest
}

func (p *pendingItem) failed(err error) {
	p.err, p.verdict = err, routing.Judge(status.Convert(err), p.sent)
}

// end returns the final error for an item that will not be attempted again.
func (p *pendingItem) end(ctx context.Context) error {
	return p.attempts.end(ctx, p.err, p.verdict, p.sent)
}

// BatchPut stores many records and returns one outcome for each, at the same index. Puts of one key are applied in
// order, unless one of them has to be retried.
func (c *Client) BatchPut(ctx context.Context, items []PutItem) []PutOutcome {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	outcomes := make([]PutOutcome, len(items))
	// All puts share a few allocations, because a put of a small record costs little else.
	puts, ids := make([]pendingPut, len(items)), newRequestIDs(len(items))
	pending := make([]*pendingItem, 0, len(items))
	var large []int
	for i := range items {
		item, p := &items[i], &puts[i]
		what := call{op: "put", key: &item.Key, write: true}
		if err := item.Options.check(&what); err != nil {
			outcomes[i].Err = err
			continue
		}
		if len(item.Data) > putBytesMax {
			large = append(large, i)
			continue
		}
		p.request.fill(item.Key, item.Data, &item.Options, ids[i*requestIDBytes:][:requestIDBytes])
		p.pendingItem = pendingItem{
			put: &p.request.message, stored: &outcomes[i], failure: &outcomes[i].Err, attempts: c.attempts(what),
		}
		pending = append(pending, &p.pendingItem)
	}
	eachLarge(large, func(i int) {
		outcomes[i].PutResult, outcomes[i].Err = c.putLarge(ctx, items[i].Key, items[i].Data, items[i].Options)
	})
	c.rounds(ctx, pending, putPart)
	return outcomes
}

// rounds sends the pending items until each of them has an outcome. In each round, it groups the items by target and
// calls run once for each target. The function run sets err in each item that got no response.
func (c *Client) rounds(ctx context.Context, pending []*pendingItem, run func(context.Context, []*pendingItem)) {
	for len(pending) > 0 {
		parts := map[any][]*pendingItem{}
		for _, p := range pending {
			to, err := c.target(p.attempts.what, p.attempts.N())
			if err != nil {
				*p.failure = p.attempts.newError(err)
				continue
			}
			p.to, p.err, p.sent = to, nil, false
			parts[to.conn] = append(parts[to.conn], p)
		}
		var all sync.WaitGroup
		for _, part := range parts {
			all.Go(func() { run(ctx, part) })
		}
		all.Wait()
		pending = remaining(ctx, pending)
	}
}

// remaining returns the items that have to be retried. It pauses only once, for all of them together.
func remaining(ctx context.Context, pending []*pendingItem) []*pendingItem {
	var again []*pendingItem
	paused, proceed := false, true
	for _, p := range pending {
		if p.err == nil {
			continue
		}
		p.verdict = p.attempts.judge(p.to, p.err, p.verdict)
		if !p.attempts.Failed(p.err, p.verdict, p.sent) {
			*p.failure = p.end(ctx)
			continue
		}
		if !paused {
			paused, proceed = true, p.attempts.Pause(ctx, p.verdict.Wait, nil, nil)
		} else {
			p.attempts.Skip()
		}
		if !proceed {
			*p.failure = p.end(ctx)
			continue
		}
		again = append(again, p)
	}
	return again
}

// putPart sends the puts of a part to their target over one stream, with several messages in flight.
func putPart(ctx context.Context, part []*pendingItem) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := recordv1.NewRecordServiceClient(part[0].to.conn).BatchPut(ctx)
	if err != nil {
		failAll(part, err)
		return
	}
	messages := split(part, batchPuts, batchPutBytes)
	var sending sync.WaitGroup
	sending.Go(func() {
		for _, items := range messages {
			message := &recordv1.BatchPutRequest{Puts: make([]*recordv1.PutRequest, len(items))}
			for i, p := range items {
				p.put.RoutingEpoch = p.to.epoch
				message.Puts[i] = p.put
				p.sent = true
			}
			if stream.Send(message) != nil {
				break // if the stream is broken, Recv returns the error
			}
		}
		_ = stream.CloseSend() // if the stream is broken, Recv returns the error
	})
	received := 0
	for err == nil && received < len(messages) {
		var answer *recordv1.BatchPutResponse
		if answer, err = stream.Recv(); err == nil {
			takePuts(messages[received], answer)
			received++
		}
	}
	cancel() // aborts a blocked Send
	sending.Wait()
	err = notEOF(err)
	for n, items := range messages[received:] {
		for _, p := range items {
			p.err, p.verdict = err, routing.JudgeStream(status.Convert(err), n == 0, p.sent)
		}
	}
}

// split divides the items of a part into messages within the limits.
func split(part []*pendingItem, itemsMax, bytesMax int) [][]*pendingItem {
	var messages [][]*pendingItem
	begin, bytes := 0, 0
	for i, p := range part {
		size := proto.Size(p.put) + proto.Size(p.get) + 16 // one of put and get is nil, and the size of nil is 0
		if i > begin && (i-begin == itemsMax || bytes+size > bytesMax) {
			messages = append(messages, part[begin:i])
			begin, bytes = i, 0
		}
		bytes += size
	}
	return append(messages, part[begin:])
}

func failAll(items []*pendingItem, err error) {
	err = notEOF(err)
	for _, p := range items {
		p.failed(err)
	}
}

// notEOF replaces nil or io.EOF with an error. It is used if a stream ended too early without an error.
func notEOF(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return status.Error(codes.Unavailable, "the server ended the stream without an answer")
	}
	return err
}

func takePuts(items []*pendingItem, answer *recordv1.BatchPutResponse) {
	for i, p := range items {
		if i >= len(answer.GetResults()) {
			failAll(items[i:], nil)
			return
		}
		result := answer.GetResults()[i]
		if st := result.GetStatus(); st.GetCode() != int32(codes.OK) {
			p.failed(status.ErrorProto(st))
			continue
		}
		p.stored.PutResult, p.stored.Err = toPutResult(&p.attempts.what, result.GetPut(), p.put.GetDataCrc32C(),
			int64(len(p.put.GetData())))
	}
}

// GetItem is one read of a batch.
type GetItem struct {
	Key     Key
	Options GetOptions
}

// GetOutcome is the result of a GetItem.
type GetOutcome struct {
	Record Record
	Err    error
}

// BatchGet reads many records and returns one outcome for each, at the same index.
func (c *Client) BatchGet(ctx context.Context, items []GetItem) []GetOutcome {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	outcomes := make([]GetOutcome, len(items))
	pending := make([]*pendingItem, len(items))
	for i := range items {
		pending[i] = &pendingItem{
			get: &recordv1.GetRequest{
				Key: items[i].Key.proto(), Version: items[i].Options.Version, MetadataOnly: items[i].Options.MetadataOnly,
				View: items[i].Options.View,
			},
			read: &outcomes[i], failure: &outcomes[i].Err,
			attempts: c.attempts(call{op: "get", key: &items[i].Key}),
		}
	}
	c.rounds(ctx, pending, getPart)
	var large []int
	for i := range outcomes {
		if e, ok := errors.AsType[*Error](outcomes[i].Err); ok && e.Reason == reason.UseDownload {
			large = append(large, i)
		}
	}
	eachLarge(large, func(i int) {
		outcomes[i].Record, outcomes[i].Err = c.getLarge(ctx, "get "+items[i].Key.String(), items[i].Key, items[i].Options)
	})
	return outcomes
}

// getPart reads the records of a part from their target, one after another.
func getPart(ctx context.Context, part []*pendingItem) {
	for _, items := range split(part, batchGets, batchGetBytes) {
		getMessage(ctx, items)
	}
}

func getMessage(ctx context.Context, items []*pendingItem) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	message := &recordv1.BatchGetRequest{Gets: make([]*recordv1.GetRequest, len(items))}
	for i, p := range items {
		p.get.RoutingEpoch = p.to.epoch
		message.Gets[i] = p.get
	}
	answered := make([]bool, len(items))
	stream, err := recordv1.NewRecordServiceClient(items[0].to.conn).BatchGet(ctx, message)
	for err == nil {
		var answer *recordv1.BatchGetResponse
		if answer, err = stream.Recv(); err != nil {
			break
		}
		for _, result := range answer.GetResults() {
			position := result.GetPosition()
			if int64(position) >= int64(len(items)) {
				continue // the request has no item with this position
			}
			p := items[position]
			answered[position] = true
			if st := result.GetStatus(); st.GetCode() != int32(codes.OK) {
				p.failed(status.ErrorProto(st))
				continue
			}
			p.read.Record, p.read.Err = checked(&p.attempts.what, result.GetRecord())
		}
	}
	for i, p := range items {
		if !answered[i] {
			failAll([]*pendingItem{p}, err)
		}
	}
}

// eachLarge calls do(i) for each index i in the slice large. There are at most largeAtOnce calls at a time, because
// each large item needs a stream of its own. eachLarge returns when all calls have returned.
func eachLarge(large []int, do func(i int)) {
	var all errgroup.Group
	all.SetLimit(largeAtOnce)
	for _, i := range large {
		all.Go(func() error {
			do(i)
			return nil
		})
	}
	_ = all.Wait() // the error is always nil, because the functions return none
}
