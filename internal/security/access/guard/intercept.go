package guard

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/ratelimit"
)

// ServerOptions returns options for a gRPC server that make it check each call.
func (g *Guard) ServerOptions() []grpc.ServerOption {
	return append(g.Interceptors().options(), grpc.InTapHandle(g.headers))
}

// headers decides about a call when its headers have arrived, before gRPC reads any part of its message. It runs on
// the goroutine that reads the connection, and therefore must never wait. If it cannot decide yet, the decision is
// made after the message has arrived.
func (g *Guard) headers(ctx context.Context, info *tap.Info) (context.Context, error) {
	calls := ratelimit.CallsOf(ctx)
	calls.Headers(info.Header)
	switch access.RuleOf(info.FullMethodName).For {
	// gRPC itself would respond with the same code, but it would keep the call's headers until its response is written.
	case access.Nobody:
		calls.Refuse()
		return ctx, errNoMethod
	case access.Anyone:
		return ctx, calls.Anonymous(ctx, info.Header)
	}
	c, err := g.enter(ctx, info.FullMethodName, false)
	switch {
	case errors.Is(err, errUndecided):
		calls.Undecided()
		return ctx, nil
	case err != nil:
		calls.Refuse()
		return ctx, reason.TextFor(info.FullMethodName, err) // gRPC answers, and no interceptor sees it
	case c == nil:
		return ctx, nil
	}
	calls.Admit()
	return context.WithValue(ctx, enteredKey{}, c), nil
}

// errNoMethod is the error for a call to a method that does not exist.
var errNoMethod = status.Error(codes.Unimplemented,
	"this process serves no such method: the caller may be of a newer version, or may want another process of the store")

func (g *Guard) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any, error) {
	c, err := g.enter(ctx, info.FullMethod, true)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return do(g.undecided(ctx), request)
	}
	group, shard := "", ""
	if of, ok := request.(interface{ GetShard() string }); ok {
		shard = of.GetShard()
	}
	if c.rule.Where == access.InGroup {
		of, ok := request.(interface{ GetGroup() string })
		if ok {
			group = of.GetGroup()
		}
		if err := c.inTable(c.rule.Verb, group); err != nil {
			return nil, err
		}
	}
	out, err := do(access.WithCall(ctx, c), request)
	c.finished(group, shard, err)
	return out, err
}

// undecided returns the context for a call about which nothing has to be decided. If the connection is plaintext, the
// context carries access.Everybody. Otherwise it carries no access.Call, so that any check of a permission in the
// handler fails.
func (g *Guard) undecided(ctx context.Context) context.Context {
	if g.cfg.Open != nil && g.cfg.Open(ctx) {
		return access.WithCall(ctx, access.Everybody)
	}
	return ctx
}

// Interceptors are what decides about each call of a server.
type Interceptors struct {
	Unary  grpc.UnaryServerInterceptor
	Stream grpc.StreamServerInterceptor
}

func (i Interceptors) options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(i.Unary), grpc.ChainStreamInterceptor(i.Stream)}
}

// Interceptors returns the interceptors that check each call, for calls that do not arrive over gRPC. The context of
// such a call has a peer with the caller's certs.AuthInfo, and incoming metadata with the caller's token, if any.
func (g *Guard) Interceptors() Interceptors { return Interceptors{g.unary, g.stream} }

// Plaintext returns options for a gRPC server that has no Guard and uses only plaintext. The context of each call
// carries access.Everybody.
func Plaintext() []grpc.ServerOption { return PlaintextInterceptors().options() }

// PlaintextInterceptors returns the interceptors of a server that has no Guard and uses only plaintext.
func PlaintextInterceptors() Interceptors {
	return Interceptors{
		Unary: func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any, error) {
			return do(access.WithCall(ctx, access.Everybody), request)
		},
		Stream: func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, do grpc.StreamHandler) error {
			return do(server, &guarded{stream, access.WithCall(stream.Context(), access.Everybody)})
		},
	}
}

func (g *Guard) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, do grpc.StreamHandler) error {
	c, err := g.enter(stream.Context(), info.FullMethod, true)
	if err != nil {
		return err
	}
	if c == nil {
		return do(server, &guarded{stream, g.undecided(stream.Context())})
	}
	ctx, cancel := context.WithCancel(access.WithCall(stream.Context(), c))
	defer cancel()
	within := &guarded{stream, ctx}
	if !c.rule.Lasting {
		err := do(server, within)
		c.finished("", "", err)
		return err
	}
	if cut := message.AbortOf(ctx); cut != nil {
		over := c.last(func(err error) {
			cut(err)
			cancel()
		})
		err = do(server, within)
		over()
	} else {
		err = g.await(c, cancel, func() error { return do(server, within) })
	}
	if why := c.revoked(); why != nil {
		err = why
	}
	c.finished("", "", err)
	return err
}

// await runs a handler until it returns or the call is revoked. If the handler is waiting for its caller when the
// call is revoked, it continues until gRPC ends the stream, which happens as soon as await has returned.
func (g *Guard) await(c *call, cancel context.CancelFunc, do func() error) error {
	revoked := make(chan struct{})
	over := c.last(func(error) { close(revoked) })
	defer over()
	ended := make(chan error, 1)
	go func() { ended <- do() }()
	select {
	case err := <-ended:
		return err
	case <-revoked:
		cancel()
		return c.revoked()
	}
}

// guarded wraps a stream and replaces its context with that of the call.
type guarded struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *guarded) Context() context.Context { return s.ctx }

// DialOptions returns the options with which a gateway connects to shards. They make each outgoing call name its
// original caller, who is taken from the access.Call in the context.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, in, out any, cc *grpc.ClientConn,
			do grpc.UnaryInvoker, o ...grpc.CallOption) error {
			return do(forward(ctx), method, in, out, cc, o...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			do grpc.Streamer, o ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			return do(forward(ctx), d, cc, method, o...)
		}),
	}
}

func forward(ctx context.Context) context.Context {
	call := access.CallOf(ctx)
	switch {
	case call == nil:
		return ctx // without a header, shards allow only calls that anyone may make, such as health checks
	case call == access.Everybody:
		return metadata.AppendToOutgoingContext(ctx, unnamedHeader, unnamedEverybody)
	case call.Caller().IsProcess():
		return AsProcess(ctx)
	}
	return metadata.AppendToOutgoingContext(ctx, callerHeader, call.Caller().String())
}

// AsProcess returns a context for calls from a command to shards. The command uses a gateway's certificate, but does
// not act on behalf of another caller. Without this context, shards would refuse the call, because a gateway has to
// say for whom it calls. With any other certificate, the context has no effect.
func AsProcess(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, unnamedHeader, unnamedProcess)
}

// Credentials returns server credentials that choose between its two arguments for each handshake. If the table of
// grants has token issuers, they use open, which also accepts callers without a certificate. Otherwise they use
// certified, which accepts only callers that present one.
func (g *Guard) Credentials(certified, open credentials.TransportCredentials) credentials.TransportCredentials {
	return &chosen{TransportCredentials: certified, open: open, guard: g}
}

// chosen implements credentials that are selected separately for each handshake.
type chosen struct {
	credentials.TransportCredentials
	open  credentials.TransportCredentials
	guard *Guard
}

func (c *chosen) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if c.guard.table().HasIssuers() { // Callers need no certificate, because they can identify themselves by a token
		return c.open.ServerHandshake(raw)
	}
	return c.TransportCredentials.ServerHandshake(raw)
}

func (c *chosen) Clone() credentials.TransportCredentials {
	return &chosen{TransportCredentials: c.TransportCredentials.Clone(), open: c.open.Clone(), guard: c.guard}
}
