package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
)

// Scan calls visit for every record of a scan, one at a time. Where the stream breaks it goes on from the last cursor;
// a record is never given twice. The record is valid until visit returns.
func (c *Conn) Scan(ctx context.Context, request *recordv1.ScanRequest, visit func(*recordv1.Record) error) error {
	var visitErr error
	err := c.retry(ctx, func() error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := c.Records.Scan(ctx, request)
		if err != nil {
			return err
		}
		for {
			response, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			for _, record := range response.GetRecords() {
				if visitErr = visit(record); visitErr != nil {
					return nil
				}
			}
			request = &recordv1.ScanRequest{
				Cursor: response.GetCursor(), MetadataOnly: request.GetMetadataOnly(), RoutingEpoch: request.GetRoutingEpoch(),
			}
		}
	})
	if err != nil {
		return fmt.Errorf("scanning: %w", err)
	}
	return visitErr
}

// batchGet calls visit for every result of a batch and makes sure that there is one per read.
func (c *Conn) batchGet(ctx context.Context, request *recordv1.BatchGetRequest, visit func(*recordv1.BatchGetResult) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Records.BatchGet(ctx, request)
	if err != nil {
		return err
	}
	came := 0
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if came != len(request.GetGets()) {
				return fmt.Errorf("%d results came for %d reads", came, len(request.GetGets()))
			}
			return nil
		}
		if err != nil {
			return err
		}
		for _, result := range response.GetResults() {
			if int(result.GetPosition()) >= len(request.GetGets()) {
				return fmt.Errorf("a result names position %d of %d", result.GetPosition(), len(request.GetGets()))
			}
			came++
			if err := visit(result); err != nil {
				return err
			}
		}
	}
}
