package messagetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// CheckRefusals calls every RPC of a service. It fails the test for each call that does not return the code from
// want(), and for each call that bypasses the interceptors. The unary interceptor must see the whole request. The
// stream interceptor need not see a request, because a stream may be refused before its first message.
func (i *Interceptors) CheckRefusals(t *testing.T, conn *grpc.ClientConn, service string,
	want func(method string) codes.Code) {
	t.Helper()
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		t.Fatalf("service %s: %v", service, err)
	}
	methods := found.(protoreflect.ServiceDescriptor).Methods()
	for n := range methods.Len() {
		d := methods.Get(n)
		method := "/" + service + "/" + string(d.Name())
		if err := i.checkRefusal(conn, method, d, want(method)); err != nil {
			t.Errorf("%s: %v", method[1:], err)
		}
	}
}

func (i *Interceptors) checkRefusal(conn *grpc.ClientConn, method string, d protoreflect.MethodDescriptor,
	want codes.Code) error {
	in, out, err := i.prepare(method, d)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: d.IsStreamingClient(),
		ServerStreams: d.IsStreamingServer()}, method)
	if err != nil {
		return err
	}
	_ = stream.SendMsg(in) // returns an error if the stream has already ended
	_ = stream.CloseSend()
	if err := stream.RecvMsg(out.New().Interface()); status.Code(err) != want {
		return fmt.Errorf("it ends with %w, want %v", err, want)
	}
	if !d.IsStreamingClient() && !d.IsStreamingServer() {
		return i.checkUnary(method, in)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if s := i.seen[method]; s == nil || s.unary != 0 || s.stream != 1 {
		return fmt.Errorf("interceptors saw %+v", s)
	}
	return nil
}
