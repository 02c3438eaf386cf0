package main

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
)

// Servers refuse compressed messages, no matter which encodings the libraries in this program have registered,
// because a small compressed message could expand into a large amount of memory.
func TestCompressedMessagesAreRefused(t *testing.T) {
	// A gRPC client sends the names of the encodings that its program has registered.
	named := make(chan []string, 1)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		named <- metadata.ValueFromIncomingContext(s.Context(), "grpc-accept-encoding")
		return nil
	}))
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	dial := func(address string) *grpc.ClientConn {
		cc, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(t, err)
		t.Cleanup(func() { _ = cc.Close() })
		return cc
	}
	_ = dial(listener.Addr().String()).Invoke(t.Context(), "/a/b", &recordv1.GetRequest{}, &recordv1.GetResponse{})
	encodings := strings.Split(strings.Join(<-named, ","), ",")
	if !slices.Contains(encodings, "gzip") {
		t.Fatalf("this program has the encodings %q: without gzip this test shows nothing", encodings)
	}
	d := startDev(t, t.TempDir())
	records := recordv1.NewRecordServiceClient(dial(d.server))
	put := &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: 1}, Data: bytes.Repeat([]byte("x"), 1000)}
	for _, name := range encodings {
		if encoding.GetCompressor(name) == nil {
			t.Fatalf("%q is no encoding", name)
		}
		_, err := records.Put(t.Context(), put, grpc.UseCompressor(name))
		if c := status.Code(err); c != codes.Internal && c != codes.Unimplemented {
			t.Errorf("a message compressed by %s is taken: %v", name, err)
		}
	}
	if _, err := records.Put(t.Context(), put); err != nil {
		t.Error(err)
	}
}
