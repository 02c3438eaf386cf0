package bench

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/client/recordv1"
)

// compareBatches compares BatchGet and BatchPut of 100 records with unary calls, both directly to the shard and through
// the gateway.
func (b *rpcBench) compareBatches(ctx context.Context, size int) error {
	const batch, callers = 100, 16
	b.Say("batches of %d records of %d bytes", batch, size)
	payload := randomBytes(size) // all puts write the same bytes, as in unaryPut
	batchGet := func(cc *grpc.ClientConn) figure {
		return func() (float64, error) {
			per, err := b.drive(callers, func(_ int, i int64) error { return b.batchGet(ctx, cc, size, i, batch) })
			return per * batch, err
		}
	}
	batchPut := func(cc *grpc.ClientConn) figure {
		return func() (float64, error) {
			per, err := b.driveStreams(ctx, cc, callers, func(i int64) *recordv1.BatchPutRequest {
				return putBatch(firstID(size)+drive.Scatter(i)%int64(max(b.opts.Records-batch, 1)), batch, payload)
			})
			return per * batch, err
		}
	}
	cells := make([]rounds.Cell, 0, 12)
	for _, to := range []struct {
		get, put string // names of the measured cells
		cc       *grpc.ClientConn
	}{
		{"get direct", "put direct", b.direct}, {"get gateway", "put gateway", b.gateway}, {"bare get", "bare put", b.bare},
	} {
		cells = append(cells,
			rounds.One("unary "+to.get, b.unaryGet(ctx, to.cc, size, callers)), rounds.One("batch "+to.get, batchGet(to.cc)),
			rounds.One("unary "+to.put, b.unaryPut(ctx, to.cc, size, callers)), rounds.One("batch "+to.put, batchPut(to.cc)))
	}
	got, err := b.takeTurns(ctx, cells...)
	if err != nil {
		return err
	}
	with := fmt.Sprintf("%d B, %d callers", size, callers)
	for _, what := range []string{"get direct", "get gateway", "put direct", "put gateway"} {
		name := fmt.Sprintf("records by batch %s of %d / unary, %s", what, batch, with)
		b.add(got.against(name, "/s", "batch "+what, "unary "+what, 4))
	}
	// The server behind b.bare stores nothing. Its results show the largest advantage that a batch can have over unary
	// calls.
	for _, what := range []string{"get", "put"} {
		bare := "bare " + what
		unary := fmt.Sprintf("bare stream %s of %d / bare unary, %s", what, batch, with)
		stream := fmt.Sprintf("records by batch %s direct of %d / bare stream, %s", what, batch, with)
		b.add(
			got.against(unary, "/s", "batch "+bare, "unary "+bare, 0).
				WithNote("a server that stores nothing: the limit of the rows above"),
			got.against(stream, "/s", "batch "+what+" direct", "batch "+bare, 0))
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
				return fmt.Errorf("a record of a batch has %d bytes, not %d: %s", len(result.GetRecord().GetData()), size,
					result.GetStatus().GetMessage())
			}
			came++
		}
	}
}

// driveStreams is like drive, but each caller uses one BatchPut stream for all its calls.
func (b *rpcBench) driveStreams(ctx context.Context, cc *grpc.ClientConn, callers int,
	next func(i int64) *recordv1.BatchPutRequest) (float64, error) {
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
