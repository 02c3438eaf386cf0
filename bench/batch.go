package bench

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
)

// batches compares BatchGet and BatchPut of 100 with unary calls, direct and through the gateway.
func (b *rpcBench) batches(ctx context.Context, size int) error {
	const batch, callers = 100, 16
	b.opts.Say("batches of %d records of %d bytes", batch, size)
	payload := randomBytes(size) // the same in all puts, as in unaryPut
	batchGet := func(cc *grpc.ClientConn) figure {
		return func() (float64, error) {
			per, err := b.drive(callers, func(_ int, i int64) error { return b.batchGet(ctx, cc, size, i, batch) })
			return per * batch, err
		}
	}
	batchPut := func(cc *grpc.ClientConn) figure {
		return func() (float64, error) {
			per, err := b.driveStreams(ctx, cc, callers, func(i int64) *recordv1.BatchPutRequest {
				return putBatch(firstID(size)+scatter(i)%int64(max(b.opts.Records-batch, 1)), batch, payload)
			})
			return per * batch, err
		}
	}
	figures, err := takeTurns(b.opts.Rounds, b.opts.Say,
		variant{"unary get direct", b.unaryGet(ctx, b.direct, size, callers)}, variant{"batch get direct", batchGet(b.direct)},
		variant{"unary get gateway", b.unaryGet(ctx, b.gateway, size, callers)}, variant{"batch get gateway", batchGet(b.gateway)},
		variant{"unary put direct", b.unaryPut(ctx, b.direct, size, callers)}, variant{"batch put direct", batchPut(b.direct)},
		variant{"unary put gateway", b.unaryPut(ctx, b.gateway, size, callers)}, variant{"batch put gateway", batchPut(b.gateway)},
		variant{"bare get", b.unaryGet(ctx, b.bare, size, callers)}, variant{"bare batch get", batchGet(b.bare)},
		variant{"bare put", b.unaryPut(ctx, b.bare, size, callers)}, variant{"bare batch put", batchPut(b.bare)},
	)
	if err != nil {
		return err
	}
	for _, what := range []string{"get direct", "get gateway", "put direct", "put gateway"} {
		b.add(against(fmt.Sprintf("records by batch %s of %d / unary, %d B, %d callers", what, batch, size, callers), "/s",
			figures["batch "+what], figures["unary "+what], 4))
	}
	// What the same messages come to where nothing is stored: how far a batch can be above unary calls at all.
	for _, what := range []string{"get", "put"} {
		b.add(
			against(fmt.Sprintf("bare stream %s of %d / bare unary, %d B, %d callers", what, batch, size, callers), "/s",
				figures["bare batch "+what], figures["bare "+what], 0).WithNote("a server that stores nothing: the limit of the rows above"),
			against(fmt.Sprintf("records by batch %s direct of %d / bare stream, %d B, %d callers", what, batch, size, callers), "/s",
				figures["batch "+what+" direct"], figures["bare batch "+what], 0))
	}
	return nil
}

func (b *rpcBench) batchGet(ctx context.Context, cc *grpc.ClientConn, size int, i int64, n int) error {
	request := &recordv1.BatchGetRequest{Gets: make([]*recordv1.GetRequest, n)}
	for k := range request.Gets {
		request.Gets[k] = &recordv1.GetRequest{Key: &recordv1.RecordKey{Id: b.id(size, i*int64(n)+int64(k))}}
	}
	stream, err := recordv1.NewRecordServiceClient(cc).BatchGet(ctx, request)
	if err != nil {
		return err
	}
	came := 0
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if came != n {
				return fmt.Errorf("%d records came of %d", came, n)
			}
			return nil
		}
		if err != nil {
			return err
		}
		for _, result := range response.GetResults() {
			if len(result.GetRecord().GetData()) != size {
				return fmt.Errorf("a record of a batch has %d bytes, not %d: %s", len(result.GetRecord().GetData()), size, result.GetStatus().GetMessage())
			}
			came++
		}
	}
}

// driveStreams is drive over one BatchPut stream per caller.
func (b *rpcBench) driveStreams(ctx context.Context, cc *grpc.ClientConn, callers int, next func(i int64) *recordv1.BatchPutRequest) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	streams := make([]grpc.BidiStreamingClient[recordv1.BatchPutRequest, recordv1.BatchPutResponse], callers)
	return b.drive(callers, func(caller int, i int64) (err error) {
		if streams[caller] == nil {
			if streams[caller], err = recordv1.NewRecordServiceClient(cc).BatchPut(ctx); err != nil {
				return err
			}
		}
		return exchange(streams[caller], next(i))
	})
}
