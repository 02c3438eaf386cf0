// Package messagetest checks that the interceptors of any gRPC server see every call.
package messagetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/test/must"
)

// Interceptors record a server's calls. An Interceptors value is safe for concurrent use.
type Interceptors struct {
	mu   sync.Mutex
	seen map[string]*methodCalls // calls by the full name of their method
	news chan struct{}           // closed and replaced each time a call is seen
}

// methodCalls records the calls to one method.
type methodCalls struct {
	unary, stream int
	received      any // the message that the handler received: the request, or the first message of a stream
	content       proto.Message
}

// NewInterceptors creates interceptors that have not seen any calls.
func NewInterceptors() *Interceptors {
	return &Interceptors{seen: map[string]*methodCalls{}, news: make(chan struct{})}
}

// ServerOptions returns the options that add the interceptors to a server.
func (i *Interceptors) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(i.unary), grpc.ChainStreamInterceptor(i.stream)}
}

func (i *Interceptors) unary(ctx context.Context, in any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
	error) {
	i.note(info.FullMethod, in, func(s *methodCalls) { s.unary++ })
	return handler(ctx, in)
}

func (i *Interceptors) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	i.note(info.FullMethod, nil, func(s *methodCalls) { s.stream++ })
	return handler(srv, &seenStream{ServerStream: stream, i: i, method: info.FullMethod})
}

// seenStream records the first message that it receives.
type seenStream struct {
	grpc.ServerStream
	i      *Interceptors
	method string
}

// RecvMsg implements grpc.ServerStream.
func (s *seenStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		s.i.note(s.method, m, func(*methodCalls) {})
	}
	return err
}

// note records a call to a method. If it is the first one, note copies the message, because the message may be
// reused.
func (i *Interceptors) note(method string, received any, do func(*methodCalls)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.seen[method]
	if s == nil {
		s = &methodCalls{}
		i.seen[method] = s
	}
	do(s)
	if received != nil && s.content == nil {
		s.received, s.content = received, contentOf(method, received)
	}
	close(i.news)
	i.news = make(chan struct{})
}

// contentOf returns a copy of the message that a handler received, or nil if the message cannot be read.
func contentOf(method string, received any) proto.Message {
	switch in := received.(type) {
	case proto.Message:
		return proto.Clone(in)
	case *message.Bounded:
		return proto.Clone(in.Message)
	case message.Undecoded:
		m, err := inputOf(method)
		if err != nil || in.DecodeInto(m) != nil {
			return nil
		}
		return m
	}
	return nil
}

// descriptorOf returns the descriptor for a full method name in gRPC's notation.
func descriptorOf(method string) (protoreflect.MethodDescriptor, error) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, err
	}
	d, ok := found.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is no method", method)
	}
	return d, nil
}

// inputOf returns an empty request for the given method.
func inputOf(method string) (proto.Message, error) {
	d, err := descriptorOf(method)
	if err != nil {
		return nil, err
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.Input().FullName())
	if err != nil {
		return nil, err
	}
	return kind.New().Interface(), nil
}

// await waits until enough() returns true for the recorded calls to a method.
func (i *Interceptors) await(ctx context.Context, method string, enough func(*methodCalls) bool) error {
	for {
		i.mu.Lock()
		s, news := i.seen[method], i.news
		done := s != nil && enough(s)
		i.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// CheckEveryCall calls every RPC of every service that a server lists by reflection. It fails the test for each RPC
// that bypasses the interceptors. The unary interceptor must see each unary call with the whole request, and the
// stream interceptor must see each stream with its first message. The calls themselves may fail. CheckEveryCall
// returns the methods that were called.
func (i *Interceptors) CheckEveryCall(t *testing.T, conn *grpc.ClientConn) (called []string) {
	t.Helper()
	services, err := servicesOf(conn)
	must.OK(t, err)
	for _, service := range services {
		found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
		if err != nil {
			t.Fatalf("service %s: %v", service, err)
		}
		methods := found.(protoreflect.ServiceDescriptor).Methods()
		for n := range methods.Len() {
			method := "/" + service + "/" + string(methods.Get(n).Name())
			called = append(called, method)
			if err := i.check(conn, method, methods.Get(n)); err != nil {
				t.Errorf("%s: %v", method[1:], err)
			}
		}
	}
	return called
}

// prepare returns a request for a method, with every field set, and the type of the response. It also forgets earlier
// calls to the method, which were made, for example, to list the services by reflection.
func (i *Interceptors) prepare(method string, d protoreflect.MethodDescriptor) (in proto.Message,
	out protoreflect.MessageType, err error) {
	if in, err = inputOf(method); err != nil {
		return nil, nil, err
	}
	fill(in.ProtoReflect(), 3)
	if out, err = protoregistry.GlobalTypes.FindMessageByName(d.Output().FullName()); err != nil {
		return nil, nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.seen, method)
	return in, out, nil
}

func (i *Interceptors) check(conn *grpc.ClientConn, method string, d protoreflect.MethodDescriptor) error {
	in, out, err := i.prepare(method, d)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if !d.IsStreamingClient() && !d.IsStreamingServer() {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			_ = conn.Invoke(ctx, method, in, out.New().Interface())
		}()
		// The call may fail. It may also wait for something that never happens, so it is canceled once the interceptors
		// have seen it.
		if i.await(ctx, method, func(s *methodCalls) bool { return s.unary > 0 }) == nil {
			cancel()
		}
		<-answered
		return i.checkUnary(method, in)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: d.IsStreamingClient(),
		ServerStreams: d.IsStreamingServer()}, method)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(in); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_ = stream.CloseSend() // returns an error if the stream has already ended
	if err := i.await(ctx, method, func(s *methodCalls) bool { return s.stream > 0 && s.content != nil }); err != nil {
		i.mu.Lock()
		defer i.mu.Unlock()
		s := i.seen[method]
		if s == nil || s.stream == 0 {
			return errors.New("the interceptor of streams did not see it")
		}
		return fmt.Errorf("the interceptor of streams saw no message that it can read: it was given %T", s.received)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if got := i.seen[method].content; !proto.Equal(got, in) {
		return fmt.Errorf("the interceptor of streams saw %v, sent was %v", got, in)
	}
	return nil
}

func (i *Interceptors) checkUnary(method string, in proto.Message) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch s := i.seen[method]; {
	case s == nil:
		return errors.New("no interceptor saw it")
	case s.unary != 1 || s.stream != 0:
		return fmt.Errorf("the unary interceptor saw it %d times, that of streams %d times", s.unary, s.stream)
	case s.content == nil:
		return fmt.Errorf("the unary interceptor saw no request that it can read: it was given %T", s.received)
	case !proto.Equal(s.content, in):
		return fmt.Errorf("the unary interceptor saw %v, sent was %v", s.content, in)
	}
	return nil
}

// servicesOf requests the list of a server's services.
func servicesOf(conn *grpc.ClientConn) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	}); err != nil {
		return nil, err
	}
	answer, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, service := range answer.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	slices.Sort(names)
	return names, nil
}

// fill sets every field to a non-zero value, including nested messages down to the given depth, because an interceptor
// must see the whole request.
func fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for n := range fields.Len() {
		f := fields.Get(n)
		if f.ContainingOneof() != nil && m.WhichOneof(f.ContainingOneof()) != nil {
			continue
		}
		switch {
		case f.IsMap():
			if f.MapKey().Kind() == protoreflect.StringKind && f.MapValue().Message() == nil {
				m.Mutable(f).Map().Set(protoreflect.ValueOfString("x").MapKey(), scalar(f.MapValue()))
			}
		case f.IsList():
			list := m.Mutable(f).List()
			if f.Message() == nil {
				list.Append(scalar(f))
			} else if depth > 0 {
				fill(list.AppendMutable().Message(), depth-1)
			}
		case f.Message() == nil:
			m.Set(f, scalar(f))
		case depth > 0:
			fill(m.Mutable(f).Message(), depth-1)
		}
	}
}

// scalar returns a value for a field. The value is not empty, and no group or shard has this name.
func scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(1)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(1)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(1)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(1)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(1)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(1)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("nobody"))
	default:
		return protoreflect.ValueOfString("nobody")
	}
}

// Request returns the first request to the given method, or nil if there was none or if it could not be read.
func (i *Interceptors) Request(method string) proto.Message {
	i.mu.Lock()
	defer i.mu.Unlock()
	if s := i.seen[method]; s != nil {
		return s.content
	}
	return nil
}
