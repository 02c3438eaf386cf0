package shard

import (
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
)

// tooLarge maps names to sizes of data whose message exceeds 8 MiB.
var tooLarge = map[string]int{"8 MiB and 1 byte": 8<<20 + 1, "9 MiB": 9 << 20}

func TestPutOfATooLargeMessageNamesUpload(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		for name, n := range tooLarge {
			_, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(1), Data: make([]byte, n)})
			st := status.Convert(err)
			if st.Code() != codes.FailedPrecondition || !strings.Contains(st.Message(), "Upload") {
				t.Fatalf("%s: got %v", name, err)
			}
			info, ok := st.Details()[0].(*errdetails.ErrorInfo)
			if !ok || info.GetReason() != "USE_UPLOAD" {
				t.Fatalf("%s: details are %v", name, st.Details())
			}
		}
		if _, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(1)}); status.Code(err) != codes.NotFound {
			t.Fatalf("something was stored: %v", err)
		}
		// The connection is still usable.
		if _, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(1), Data: []byte("small")}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestBatchPutOfATooLargeMessageSaysWhatToDo(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		for name, n := range tooLarge {
			stream, err := f.records.BatchPut(f.ctx())
			must(t, err)
			put := &recordv1.PutRequest{Key: key(1), Data: make([]byte, n)}
			// Send may only return io.EOF. Recv then returns the reason of the refusal.
			if err := stream.Send(&recordv1.BatchPutRequest{Puts: []*recordv1.PutRequest{put}}); err != nil &&
				!errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			_, err = stream.Recv()
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "puts") ||
				!strings.Contains(err.Error(), "Upload") {
				t.Fatalf("%s: got %v", name, err)
			}
		}
	})
}

func TestUploadOfATooLargeMessageNamesTheChunk(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		for name, n := range tooLarge {
			_, err := f.upload(&recordv1.UploadHeader{Key: key(1)}, make([]byte, n))
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "chunk") {
				t.Fatalf("%s: got %v", name, err)
			}
		}
	})
}
