// Package access decides who may call what. The decision is pure: who has called is told by the connection, and what
// each method is for stands in one table. A method that is in no row may be called by nobody.
package access

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/certs"
	"sheaf.dev/sheaf/internal/identity"
)

// Audience is who may call a method. The zero value is nobody.
type Audience uint8

// The audiences. Each but Anyone is of the store that is called.
const (
	Nobody  Audience = iota
	Anyone           // whoever could connect
	Callers          // callers, administrators and the store's own processes
	Admins           // administrators and the store's own processes
	Shards
)

// String gives the audience as errors name it.
func (a Audience) String() string {
	return [...]string{"nobody", "anyone", "callers of the store", "administrators of the store and its own processes", "shards of the store"}[a]
}

// services by their full name.
var services = map[string]Audience{
	healthv1.Health_ServiceDesc.ServiceName:                    Anyone,
	reflectionv1.ServerReflection_ServiceDesc.ServiceName:      Callers,
	reflectionv1alpha.ServerReflection_ServiceDesc.ServiceName: Callers,
	recordv1.RecordService_ServiceDesc.ServiceName:             Callers,
	recordv1.RoutingService_ServiceDesc.ServiceName:            Callers,
	recordv1.AdminService_ServiceDesc.ServiceName:              Admins,
	peerv1.PeerService_ServiceDesc.ServiceName:                 Shards,
}

// AudienceOf a method by its full name, as in /package.Service/Method.
func AudienceOf(method string) Audience {
	service, _, ok := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	if !ok {
		return Nobody
	}
	return services[service]
}

// includes tells whether somebody of the same store is one of them.
func (a Audience) includes(who identity.Identity) bool {
	switch a {
	case Anyone, Callers:
		return true
	case Admins:
		return who.IsComponent() || who.Role == identity.Admin
	case Shards:
		return who.Role == identity.Shard
	}
	return false
}

// Caller is who has made a call.
type Caller struct {
	Identity identity.Identity
	Known    bool // by a certificate
	Plain    bool // without TLS, which the process that is called allows: whoever reaches it may call all of it
}

// Decide tells whether a caller may call a method of a process of the store. Errors are UNAUTHENTICATED or
// PERMISSION_DENIED, and say who, what, and who may.
func Decide(store identity.Store, caller Caller, method string) error {
	audience := AudienceOf(method)
	switch {
	case audience == Anyone, caller.Plain && audience != Nobody:
		return nil
	case !caller.Known:
		return status.Errorf(codes.Unauthenticated, "%s is for %s: show a certificate of the store's authority", method, audience)
	case caller.Identity.Store != store:
		return status.Errorf(codes.PermissionDenied, "%s may not call %s of the store %s: it is of another store", caller.Identity, method, store.UID)
	case !audience.includes(caller.Identity):
		return status.Errorf(codes.PermissionDenied, "%s may not call %s, which is for %s", caller.Identity, method, audience)
	}
	return nil
}

// CallerOf tells what the connection of a call knows of its caller.
func CallerOf(ctx context.Context) Caller {
	id, known := certs.PeerOf(ctx)
	return Caller{Identity: id, Known: known, Plain: certs.Plain(ctx)}
}

// ServerOptions make a gRPC server ask Decide before each call. who tells who has made a call, by its context.
func ServerOptions(store identity.Store, who func(context.Context) Caller) []grpc.ServerOption {
	decide := func(ctx context.Context, method string) error { return Decide(store, who(ctx), method) }
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any, error) {
			if err := decide(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return do(ctx, request)
		}),
		grpc.ChainStreamInterceptor(func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, do grpc.StreamHandler) error {
			if err := decide(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return do(server, stream)
		}),
	}
}
