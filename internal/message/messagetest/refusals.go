package messagetest

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// CheckRefusals calls every RPC of a service, and fails the test for each that ends with another code than want says,
// or that the interceptors do not see: the unary interceptor with the whole request, that of streams without one, as a
// stream may be refused before its first message.
func (i *Interceptors) CheckRefusals(t *testing.T, conn *grpc.ClientConn, service string, want func(method string) codes.Code) {
	t.Helper()
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		t.Fatalf("service %s: %v", service, err)
	}
	methods := found.(protoreflect.ServiceDescriptor).Methods()
	for n := range methods.Len() {
		d := methods.Get(n)
		method := "/" + service + "/" + string(d.Name())
		t.Run(method[1:], func(t *testing.T) {
			in, out := i.prepare(t, method, d)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: d.IsStreamingClient(), ServerStreams: d.IsStreamingServer()}, method)
			if err != nil {
				t.Fatal(err)
			}
			_ = stream.SendMsg(in) // it may have ended
			_ = stream.CloseSend()
			if err := stream.RecvMsg(out.New().Interface()); status.Code(err) != want(method) {
				t.Errorf("it ends with %v, want %v", err, want(method))
			}
			if !d.IsStreamingClient() && !d.IsStreamingServer() {
				i.checkUnary(t, method, in)
				return
			}
			i.mu.Lock()
			defer i.mu.Unlock()
			if s := i.seen[method]; s == nil || s.unary != 0 || s.stream != 1 {
				t.Errorf("interceptors saw %+v", s)
			}
		})
	}
}
