package shard

import (
	"context"
	"sync"

	recordv1 "sheaf.dev/sheaf/api/record/v1"
	"sheaf.dev/sheaf/internal/group"
)

// BatchGet implements RecordService.
func (s *recordServer) BatchGet(in *recordv1.BatchGetRequest, stream recordv1.RecordService_BatchGetServer) error {
	n := len(in.GetGets())
	if n < 1 || n > batchGetsMax {
		return invalid("gets", "has %d reads: give 1 to %d", n, batchGetsMax)
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	b := &batchGet{shard: s.Shard, stream: stream, gets: in.GetGets()}
	b.prepare(ctx)

	readers := min(batchReadersMax, (n+batchReadsPerFork-1)/batchReadsPerFork)
	if s.cfg.Residency == group.Resident {
		readers = 1 // nothing to wait for
	}
	var wait sync.WaitGroup
	for first := 1; first < readers; first++ {
		wait.Go(func() {
			if err := b.read(ctx, first, readers); err != nil {
				cancel(err)
			}
		})
	}
	if err := b.read(ctx, 0, readers); err != nil {
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
		return answerError(cause, where{})
	}
	return nil
}

// batchGet is a BatchGet under way.
type batchGet struct {
	shard  *Shard
	stream recordv1.RecordService_BatchGetServer
	gets   []*recordv1.GetRequest
	reads  []read
	errs   []error

	send sync.Mutex     // one message at a time; guards all below
	rest []*batchReader // ended, and their last results not sent
}

// prepare checks all reads and waits once per group until they see what was acknowledged.
func (b *batchGet) prepare(ctx context.Context) {
	b.reads, b.errs = make([]read, len(b.gets)), make([]error, len(b.gets))
	barriers := map[*served]error{}
	for i, get := range b.gets {
		r := &b.reads[i]
		if b.errs[i] = b.shard.prepareGet(get, r); b.errs[i] != nil {
			continue
		}
		err, done := barriers[r.served]
		if !done {
			err = b.shard.barrier(ctx, r.served)
			barriers[r.served] = err
		}
		if err != nil {
			b.errs[i] = answerError(err, r.where)
		}
	}
}

// batchReader makes the messages of one goroutine of a BatchGet. It is used again, with its memory, for another one.
type batchReader struct {
	out   recordv1.BatchGetResponse
	items []*batchItem
	arena []byte // data of the records in out
	bytes int64  // of them; taken from Shard.bytes
}

// batchItem is a result with what it points to.
type batchItem struct {
	result recordv1.BatchGetResult
	record recordv1.Record
	key    recordv1.RecordKey
	crc    uint32
}

// blobRefBytes is the length of a group.BlobRef, which may stand in the place of data.
const blobRefBytes = 40

var batchReaders = sync.Pool{New: func() any { return &batchReader{arena: make([]byte, 0, answerBytes+group.DataBytesMax/4)} }}

// read does every stride-th read from first on.
func (b *batchGet) read(ctx context.Context, first, stride int) error {
	r := batchReaders.Get().(*batchReader)
	defer b.keep(r)
	for i := first; i < len(b.gets); i += stride {
		if err := ctx.Err(); err != nil {
			return err
		}
		item := r.next(i)
		if err := b.one(i, r, item); err != nil {
			item.result.Record, item.result.Status = nil, itemStatus(err)
			continue
		}
		if r.bytes >= answerBytes || len(r.out.Results) == scanRecordsMax {
			if err := b.flush(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// keep leaves the last results of a reader to sendRest: few large messages cost less than many small ones.
func (b *batchGet) keep(r *batchReader) {
	b.send.Lock()
	defer b.send.Unlock()
	b.rest = append(b.rest, r)
}

// done gives back what a reader took.
func (b *batchGet) done(r *batchReader) {
	b.shard.bytes.give(r.bytes)
	r.clear()
	batchReaders.Put(r)
}

// sendRest sends what the readers had not come to send, in messages of about answerBytes. All have ended.
func (b *batchGet) sendRest() error {
	out := &recordv1.BatchGetResponse{Results: make([]*recordv1.BatchGetResult, 0, min(len(b.gets), scanRecordsMax))}
	bytes := int64(0)
	for _, r := range b.rest {
		if len(out.Results) > 0 && (bytes+r.bytes > answerBytes || len(out.Results)+len(r.out.Results) > scanRecordsMax) {
			if err := b.stream.Send(out); err != nil {
				return err
			}
			out.Results, bytes = out.Results[:0], 0
		}
		out.Results = append(out.Results, r.out.Results...)
		bytes += r.bytes
	}
	if len(out.Results) == 0 {
		return nil
	}
	return b.stream.Send(out)
}

// one reads one record into its item.
func (b *batchGet) one(i int, r *batchReader, item *batchItem) error {
	if b.errs[i] != nil {
		return b.errs[i]
	}
	get := &b.reads[i]
	get.options.Buffer = r.arena[len(r.arena):cap(r.arena)]
	rec, err := get.get()
	if err != nil {
		return err
	}
	n := len(rec.Data)
	if err := b.shard.bytes.take(int64(n)); err != nil {
		return err
	}
	r.bytes += int64(n)
	// At most a whole frame of the arena is taken now.
	room := cap(r.arena) - len(r.arena)
	taken := min(int64(room), group.FrameBytes(len(rec.Attributes), max(n, blobRefBytes)))
	r.arena = r.arena[:len(r.arena)+int(taken)]
	item.result.Record = &item.record
	item.record.Key = &item.key
	return fillRecord(&item.record, get.where, &rec, dataOf(&rec, get.options.MetadataOnly, &item.crc))
}

// next is the item for the result of a read.
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

// flush sends what has come together.
func (b *batchGet) flush(r *batchReader) error {
	b.send.Lock()
	err := b.stream.Send(&r.out)
	b.send.Unlock()
	b.shard.bytes.give(r.bytes)
	r.clear()
	return err
}

// clear makes it as new, but for the memory.
func (r *batchReader) clear() {
	for _, item := range r.items[:len(r.out.Results)] {
		item.result.Reset()
		item.record.Reset()
		item.key.Reset()
	}
	r.out.Results = r.out.Results[:0]
	r.arena = r.arena[:0]
	r.bytes = 0
}
