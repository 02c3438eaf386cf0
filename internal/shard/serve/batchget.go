package serve

import (
	"context"
	"errors"
	"math/bits"
	"sync"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/longlock"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// BatchGet implements RecordService.
func (s *recordServer) BatchGet(in *recordv1.BatchGetRequest, stream recordv1.RecordService_BatchGetServer) error {
	n := len(in.GetGets())
	if n < 1 || n > BatchGetsMax {
		return answer.Invalid("gets", "has %d reads: give 1 to %d", n, BatchGetsMax)
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	b := &batchGet{server: s.Server, stream: stream, gets: in.GetGets(), held: message.HeldOf(ctx)}
	readers, err := b.open()
	if err != nil {
		return err
	}
	b.prepare(ctx)
	if err := b.tenants.enter(ctx, int64(len(b.gets))*batchGetHeldBytes); err != nil {
		for _, r := range readers {
			b.done(r)
		}
		return err
	}
	defer b.tenants.leave()

	var wait sync.WaitGroup
	for first, r := range readers[1:] {
		wait.Go(func() {
			if err := b.read(ctx, r, first+1, len(readers)); err != nil {
				cancel(err)
			}
		})
	}
	if err := b.read(ctx, readers[0], 0, len(readers)); err != nil {
		cancel(err)
	}
	wait.Wait()
	cause := context.Cause(ctx)
	if cause == nil {
		cause = b.sendRest()
	}
	for _, r := range b.rest {
		b.done(r)
	}
	if cause != nil {
		return answer.Of(cause, answer.Where{})
	}
	return nil
}

// batchGet is the state of one BatchGet call.
type batchGet struct {
	server *Server
	stream recordv1.RecordService_BatchGetServer
	gets   []*recordv1.GetRequest
	reads  []read
	errs   []error
	held   *message.Held
	// tenants are the tenants to which the groups of these reads belong.
	tenants batchTenants

	asking  sync.Mutex
	encoded int64 // memory for one encoded message; reserved twice, because a second one may wait to be sent

	send longlock.Mutex // held while a message is sent; guards the fields below
	rest []*batchReader // readers that have finished, and whose last results are not sent yet
}

// batchGetHeldBytes is the memory of one read: its request, and its result without data and attributes.
const batchGetHeldBytes = 512 + recordHeldBytes

// open creates the readers. Their number is limited by the available memory and by the number of reads, but there is
// at least one.
func (b *batchGet) open() ([]*batchReader, error) {
	n := len(b.gets)
	most := min(batchReadersMax, (n+batchReadsPerFork-1)/batchReadsPerFork)
	if b.server.opts.Residency == group.Resident {
		most = 1 // reads from memory do not wait, so one reader is enough
	}
	arena := min(max(message.RoundUp(int64(n)/int64(most)*batchDataBytes), batchArenaMin), ResultBytes)
	if err := b.held.More(arena + int64(n)*batchGetHeldBytes); err != nil {
		return nil, err
	}
	readers := []*batchReader{newBatchReader(arena)}
	for len(readers) < most && b.held.More(arena) == nil {
		readers = append(readers, newBatchReader(arena))
	}
	return readers, nil
}

// message reserves memory for messages of up to size bytes.
func (b *batchGet) message(size int64) error {
	b.asking.Lock()
	defer b.asking.Unlock()
	size = message.RoundUp(size)
	if size <= b.encoded {
		return nil
	}
	if err := b.held.More(2 * (size - b.encoded)); err != nil {
		return err
	}
	b.encoded = size
	return nil
}

// prepare checks all reads. Once per group, it waits until reads of the group see every acknowledged write.
func (b *batchGet) prepare(ctx context.Context) {
	b.reads, b.errs = make([]read, len(b.gets)), make([]error, len(b.gets))
	barriers := map[Group]error{}
	for i, get := range b.gets {
		r := &b.reads[i]
		if b.errs[i] = b.server.prepareGet(ctx, get, r); b.errs[i] != nil {
			continue
		}
		b.tenants.add(r.tenant())
		if r.view != nil {
			continue
		}
		err, done := barriers[r.served]
		if !done {
			err = r.served.Barrier(ctx)
			barriers[r.served] = err
		}
		if err != nil {
			b.errs[i] = answer.Of(err, r.where)
		}
	}
}

// batchReader reads records and builds messages in one goroutine of a BatchGet. A batchReader is reused, with its
// memory, for later calls.
type batchReader struct {
	out     recordv1.BatchGetResponse
	items   []*batchItem
	arena   []byte // data of the records in out
	size    int64  // upper bound on the encoded size of out
	granted int64  // size for which memory was reserved
	largest int64  // size of the largest record so far
	apart   int64  // memory reserved for attributes and for data that is outside the arena
}

// batchItem is a result with the objects that it points to.
type batchItem struct {
	result recordv1.BatchGetResult
	record recordv1.Record
	key    recordv1.RecordKey
	crc    uint32
}

const (
	// batchDataBytes is the space in a reader's arena for each of its reads; larger data gets its own memory.
	batchDataBytes = 16 << 10
	batchArenaMin  = 64 << 10
	// batchFailedBytes is the approximate size of a result with an error instead of a record.
	batchFailedBytes = 512
)

// batchReaders pools unused readers, by the binary logarithm of their arena's capacity.
var batchReaders [32]sync.Pool

// newBatchReader creates a reader whose arena has the given number of bytes, which is a power of two.
func newBatchReader(arena int64) *batchReader {
	if r, ok := batchReaders[bits.Len64(uint64(arena))].Get().(*batchReader); ok {
		return r
	}
	return &batchReader{arena: make([]byte, 0, arena)}
}

// read performs the reads first, first+stride, first+2*stride and so on. The other readers perform the rest.
func (b *batchGet) read(ctx context.Context, r *batchReader, first, stride int) error {
	defer b.keep(r)
	for i := first; i < len(b.gets); i += stride {
		if err := ctx.Err(); err != nil {
			return err
		}
		item := r.next(i)
		err := b.one(ctx, i, r, item)
		if err == nil && len(b.tenants) > 0 {
			if err := pass(ctx, b.reads[i].tenant(), int64(len(item.record.Data)), int64(cap(r.arena))); err != nil {
				return err
			}
		}
		var refused refusedError
		if errors.As(err, &refused) {
			// All remaining reads fail with one error, because the memory is not sufficient for thousands of results.
			return refused.error
		}
		if err != nil {
			item.result.Record, item.result.Status = nil, itemStatus(err)
			r.size += batchFailedBytes
		}
		// The message is sent now if the next record might exceed its limit. That record is assumed to be as large as the
		// largest one so far.
		if r.size+r.largest > ResultBytes-messageSize || len(r.out.Results) == scanRecordsMax {
			if err := b.flush(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// keep passes a reader and its unsent results to sendRest, which combines them, because a few large messages cost
// less than many small ones.
func (b *batchGet) keep(r *batchReader) {
	b.send.Lock()
	defer b.send.Unlock()
	b.rest = append(b.rest, r)
}

// done returns a reader to the pool.
func (b *batchGet) done(r *batchReader) {
	b.clear(r)
	batchReaders[bits.Len(uint(cap(r.arena)))].Put(r)
}

// sendRest sends the unsent results of the readers, in messages of about ResultBytes. All readers must have finished.
func (b *batchGet) sendRest() error {
	out := &recordv1.BatchGetResponse{Results: make([]*recordv1.BatchGetResult, 0, min(len(b.gets), scanRecordsMax))}
	size := int64(messageSize)
	for _, r := range b.rest {
		if len(out.Results) > 0 && (size+r.size > ResultBytes || len(out.Results)+len(r.out.Results) > scanRecordsMax ||
			b.message(size+r.size) != nil) {
			if err := b.transmit(out); err != nil {
				return err
			}
			out.Results, size = out.Results[:0], messageSize
		}
		out.Results = append(out.Results, r.out.Results...)
		size += r.size
	}
	if len(out.Results) == 0 {
		return nil
	}
	return b.transmit(out)
}

// transmit sends a message, and counts the data sent.
func (b *batchGet) transmit(out *recordv1.BatchGetResponse) error {
	if err := b.stream.Send(out); err != nil {
		return err
	}
	records, bytes := 0, int64(0)
	for _, result := range out.Results {
		if result.Record != nil {
			records, bytes = records+1, bytes+int64(len(result.Record.Data))
		}
	}
	b.server.metrics.method(recordv1.RecordService_BatchGet_FullMethodName).moved(records, bytes)
	return nil
}

// one performs the read with the number i, and fills in the item for the result.
func (b *batchGet) one(ctx context.Context, i int, r *batchReader, item *batchItem) error {
	if b.errs[i] != nil {
		return b.errs[i]
	}
	get := &b.reads[i]
	get.options.Buffer = r.arena[len(r.arena):cap(r.arena)]
	rec, err := get.get(ctx)
	if err != nil {
		return err
	}
	// If the record is in the arena, it occupies at most the space of one whole frame.
	n := len(rec.Data)
	frame := format.FrameBytes(len(rec.Attributes), max(n, format.BlobRefBytes))
	free := int64(cap(r.arena) - len(r.arena))
	if err := b.admit(r, &rec, get.where.Group, free < 2*frame); err != nil {
		return refusedError{err}
	}
	r.arena = r.arena[:len(r.arena)+int(min(free, frame))]
	item.result.Record = &item.record
	item.record.Key = &item.key
	return fillRecord(&item.record, get.where, &rec, dataOf(&rec, get.options.MetadataOnly, &item.crc))
}

// refusedError means that there is no memory for the record.
type refusedError struct{ error }

// admit reserves memory for a record that was read. If apart is true, the record's data may be outside the arena.
func (b *batchGet) admit(r *batchReader, rec *group.Record, name string, apart bool) error {
	size := answerSize(name, rec)
	if r.size+size+messageSize > r.granted {
		granted := message.RoundUp(r.size + size + messageSize)
		if err := b.message(granted); err != nil {
			return err
		}
		r.granted = granted
	}
	more := int64(0)
	if apart {
		more = int64(len(rec.Data) + len(rec.Data)/8)
	}
	if len(rec.Attributes) > 0 {
		more += int64(512 + 5*len(rec.Attributes))
	}
	if more > 0 {
		if err := b.held.More(more); err != nil {
			return err
		}
	}
	r.apart += more
	r.size += size
	r.largest = max(r.largest, size)
	return nil
}

// next returns the item for the result of a read.
func (r *batchReader) next(position int) *batchItem {
	n := len(r.out.Results)
	if n == len(r.items) {
		r.items = append(r.items, &batchItem{})
	}
	item := r.items[n]
	item.result.Position = uint32(position)
	r.out.Results = append(r.out.Results, &item.result)
	return item
}

// flush sends the collected results.
func (b *batchGet) flush(r *batchReader) error {
	b.send.Lock()
	err := b.transmit(&r.out)
	b.send.Unlock()
	b.clear(r)
	return err
}

// clear resets a reader, but keeps its memory.
func (b *batchGet) clear(r *batchReader) {
	_ = b.held.More(-r.apart) // More cannot fail for a decrease
	for _, item := range r.items[:len(r.out.Results)] {
		item.result.Reset()
		item.record.Reset()
		item.key.Reset()
	}
	r.out.Results = r.out.Results[:0]
	r.arena = r.arena[:0]
	r.size, r.granted, r.largest, r.apart = 0, 0, 0, 0
}
