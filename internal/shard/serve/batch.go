package serve

import (
	"context"
	"errors"
	"io"

	"google.golang.org/genproto/googleapis/rpc/status"
	grpcstatus "google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/answer"
)

// These are the limits of the batch calls. The .proto documents the same limits.
const (
	BatchPutsMax      = 1024
	batchPutBytesMax  = 4 << 20
	BatchGetsMax      = 4096
	ResultBytes       = 1 << 20 // a message of results is sent when it reaches this size
	batchesInFlight   = 4       // maximum number of messages in one stream whose puts are in progress
	batchReadersMax   = 8       // maximum number of readers for one BatchGet
	batchReadsPerFork = 8       // a further goroutine is worthwhile only for at least this many reads
)

// batch is the state of one BatchPut message.
type batch struct {
	writes []write
	errs   []error // for each write, the reason why it was not proposed
	err    error   // error that ends the stream; io.EOF means that the caller has half-closed
	// tenants are the tenants to which the groups of these puts belong.
	tenants batchTenants
}

// BatchPut implements RecordService. One goroutine receives messages and proposes their puts. Another goroutine waits
// for the puts and sends the responses. The next message can therefore be proposed while the previous one is still
// being synced.
func (s *recordServer) BatchPut(stream recordv1.RecordService_BatchPutServer) error {
	ctx := stream.Context()
	batches := make(chan *batch, batchesInFlight-1)
	// This goroutine ends with the stream, because Recv fails when this function returns.
	go func() {
		defer close(batches)
		for {
			b := s.receiveBatch(stream)
			select {
			case batches <- b:
			case <-ctx.Done():
				s.abandon(ctx, b)
				return
			}
			if b.err != nil {
				return
			}
		}
	}()
	// After an early return, the batches in progress must still be released.
	defer func() {
		go func() {
			for b := range batches {
				s.abandon(ctx, b)
			}
		}()
	}()
	for {
		select {
		case b, ok := <-batches:
			if !ok {
				return ctx.Err()
			}
			if errors.Is(b.err, io.EOF) {
				return nil
			}
			if b.err != nil {
				return b.err
			}
			if err := stream.Send(s.finishBatch(ctx, b)); err != nil {
				return err
			}
		case <-s.stopping.Done():
			return answer.Stopping()
		}
	}
}

// receiveBatch receives one message and proposes its puts in order.
func (s *recordServer) receiveBatch(stream recordv1.RecordService_BatchPutServer) *batch {
	in := putsIn{batch: &recordv1.BatchPutRequest{}}
	defer in.free() // by then the log has copied the data, and no write refers to the buffer
	bounded := s.bounded(in.batch)
	bounded.Decoder = &in
	if err := stream.RecvMsg(bounded); err != nil {
		return &batch{err: err}
	}
	if bounded.TooLarge() {
		return &batch{err: answer.PartTooLarge(bounded, "puts", smallerBatches)}
	}
	if in.n < 1 || in.n > BatchPutsMax {
		return &batch{err: answer.Invalid("puts", "has %d puts: give 1 to %d", in.n, BatchPutsMax)}
	}
	total := 0
	for _, put := range in.batch.GetPuts() {
		total += len(put.GetData())
	}
	if total > batchPutBytesMax {
		return &batch{err: answer.Invalid("puts", "have %d bytes of data together: give at most %d in one message", total,
			batchPutBytesMax)}
	}
	b := &batch{writes: make([]write, in.n), errs: make([]error, in.n)}
	for i, put := range in.batch.GetPuts() {
		if b.errs[i] = s.preparePut(stream.Context(), put, &b.writes[i]); b.errs[i] == nil {
			b.tenants.add(b.writes[i].served.Tenant())
		}
	}
	// If the message must wait for quotas, it waits before any of its puts is proposed. Otherwise its puts would use up
	// the limit on bytes in flight, which all tenants share, while they wait.
	err, hurry := b.pass(stream.Context()), false
	for i := range b.writes {
		if b.errs[i] == nil {
			b.errs[i] = err
		}
		if b.errs[i] == nil {
			b.writes[i].hurry = hurry
			b.errs[i] = s.dispatch(stream.Context(), &b.writes[i])
			hurry = hurry || isQuota(b.errs[i])
		}
		b.writes[i].replica.Data = nil
	}
	return b
}

// isQuota reports whether a quota has refused a put.
func isQuota(err error) bool {
	e, ok := errors.AsType[*answer.Error](err)
	return ok && e.Reason == reason.QuotaExceeded
}

// pass waits until the message is within the quotas of its tenants, and counts the message.
func (b *batch) pass(ctx context.Context) error {
	if len(b.tenants) == 0 {
		return nil
	}
	holds := int64(0)
	for i := range b.writes {
		holds += b.writes[i].bytes
	}
	if err := b.tenants.enter(ctx, holds); err != nil {
		return err
	}
	for _, t := range b.tenants {
		bytes := int64(0)
		for i := range b.writes {
			if w := &b.writes[i]; b.errs[i] == nil && w.served.Tenant() == t {
				bytes += w.bytes
			}
		}
		if err := pass(ctx, t, bytes, holds); err != nil {
			return err
		}
	}
	return nil
}

// finishBatch waits for all puts of a message.
func (s *recordServer) finishBatch(ctx context.Context, b *batch) *recordv1.BatchPutResponse {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	defer b.tenants.leave()
	results := make([]recordv1.BatchPutResult, len(b.writes))
	puts := make([]recordv1.PutResponse, len(b.writes))
	out := &recordv1.BatchPutResponse{Results: make([]*recordv1.BatchPutResult, len(b.writes))}
	moved, bytes := 0, int64(0)
	for i := range b.writes {
		w, err := &b.writes[i], b.errs[i]
		if err == nil {
			var result replica.Result
			if result, err = s.finish(ctx, w); err == nil {
				moved, bytes = moved+1, bytes+w.bytes
				w.putResponse(&puts[i], result)
				results[i].Put = &puts[i]
			}
		}
		if b.errs[i] = err; err != nil {
			results[i].Status = itemStatus(err)
		}
		out.Results[i] = &results[i]
	}
	s.metrics.method(recordv1.RecordService_BatchPut_FullMethodName).moved(moved, bytes)
	b.wrote(ctx)
	return out
}

// wrote reports a message's puts to the audit log. It must be called when their outcomes are in errs. It leaves out
// the puts that were never passed to their groups.
func (b *batch) wrote(ctx context.Context) {
	call := access.CallOf(ctx)
	if call == nil {
		return
	}
	call.Wrote(len(b.writes), func(i int) access.Written {
		w := &b.writes[i]
		if w.served == nil {
			return access.Written{} // the put was refused before its group was found
		}
		return access.Written{Verb: access.Put, Group: w.where.Group, ID: w.where.ID, Code: answer.CodeOf(b.errs[i])}
	})
}

// abandon releases the reservations of a batch's puts without waiting for the puts. It is called when the caller has
// disconnected. ctx is the context of the stream.
func (s *Server) abandon(ctx context.Context, b *batch) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	defer b.tenants.leave()
	for i := range b.writes {
		if b.errs[i] == nil {
			// The stream has ended, so the caller cannot receive the outcome. Only the audit log needs it.
			_, b.errs[i] = s.finish(over, &b.writes[i])
		}
	}
	b.wrote(ctx)
}

func itemStatus(err error) *status.Status { return grpcstatus.Convert(err).Proto() }
