package gateway_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/test/must"
)

// TestTooLargeMessagesSayWhatToDo sends messages above the limit. The gateway reads only their lengths, and does not
// forward the messages.
func TestTooLargeMessagesSayWhatToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a")
		large := grpc.MaxCallSendMsgSize(64 << 20)
		for _, n := range []int{8<<20 + 1, 9 << 20} {
			put := &recordv1.PutRequest{Key: key(1), Data: make([]byte, n)}
			_, err := c.records.Put(c.ctx, put, large)
			wantError(t, err, codes.FailedPrecondition, "USE_UPLOAD")
			if !strings.Contains(err.Error(), "Upload") {
				t.Fatalf("%d bytes: %v", n, err)
			}

			batch, err := c.records.BatchPut(c.ctx, large)
			must.OK(t, err)
			if err := batch.Send(&recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{put}}); err != nil &&
				!errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			if _, err = batch.Recv(); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "Upload") {
				t.Fatalf("batch of %d bytes: %v", n, err)
			}

			upload, err := c.records.Upload(c.ctx, large)
			must.OK(t, err)
			header := &recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: key(1)}}}
			chunk := &recordv1.UploadRequest{Part: &recordv1.UploadRequest_Chunk{Chunk: put.GetData()}}
			for _, part := range []*recordv1.UploadRequest{header, chunk} {
				if err := upload.Send(part); err != nil && !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
			}
			if _, err = upload.CloseAndRecv(); status.Code(err) != codes.InvalidArgument ||
				!strings.Contains(err.Error(), "chunk") {
				t.Fatalf("chunk of %d bytes: %v", n, err)
			}
		}
		if n := c.shards["a"].count("Put") + c.shards["a"].count("BatchPut"); n != 0 {
			t.Fatalf("the shard was called %d times", n)
		}
	})
}
