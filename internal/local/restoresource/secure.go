package restoresource

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

// These are the limits of the server's connections.
const (
	streamsMax   = 64               // concurrent calls on one connection
	requestBytes = 1 << 20          // maximum size of a message from a shard
	pingAfter    = 10 * time.Second // a connection without traffic is pinged after this time
	pingPatience = 10 * time.Second // the connection is closed if no response arrives in this time
	pingsMin     = time.Second      // a shard must not ping more often than this
)

// NewServer creates the gRPC server of a source. If certificates is nil, anyone who can connect may read all records.
// Otherwise a caller needs a certificate from the same store as the server's own certificates: that of a shard, which
// can call only in the name of that shard, or that of a gateway, which can only list the groups.
func NewServer(opts Options, certificates *certs.Source) *grpc.Server {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(message.Codec{}), message.RefuseCompressed(), grpc.MaxRecvMsgSize(requestBytes),
		grpc.MaxSendMsgSize(2 * message.BytesMax), grpc.MaxConcurrentStreams(streamsMax),
		grpc.MaxHeaderListSize(message.HeaderBytesMax), grpc.ConnectionTimeout(message.HandshakeTime),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingPatience}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsMin, PermitWithoutStream: true}),
	}
	if certificates != nil {
		store := certificates.Identity().Store
		opts.SpeaksFor = func(ctx context.Context, shard string) bool {
			peer, ok := certs.PeerOf(ctx)
			return certs.Plain(ctx) || ok && peer == identity.Identity{Store: store, Role: identity.Shard, Name: shard}
		}
		options = append(options, grpc.Creds(certificates.Server(certs.ServerOptions{})),
			grpc.ChainUnaryInterceptor(func(ctx context.Context, in any, info *grpc.UnaryServerInfo,
				do grpc.UnaryHandler) (any, error) {
				if err := decide(ctx, store, info.FullMethod); err != nil {
					return nil, err
				}
				return do(ctx, in)
			}),
			grpc.ChainStreamInterceptor(func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
				do grpc.StreamHandler) error {
				if err := decide(stream.Context(), store, info.FullMethod); err != nil {
					return err
				}
				return do(server, stream)
			}))
	}
	g := grpc.NewServer(options...)
	peerv1.RegisterPeerServiceServer(g, New(opts))
	archivev1.RegisterRestoreServiceServer(g, lister{restore: opts.Restore})
	return g
}

// decide admits a caller if the rules of package access allow its role to call the method. A store's table of grants
// plays no part in this.
func decide(ctx context.Context, store identity.Store, method string) error {
	if certs.Plain(ctx) { // as in the shards of the store, the mode of the process admits callers without TLS
		return nil
	}
	peer, ok := certs.PeerOf(ctx)
	if !ok {
		return status.Errorf(codes.Unauthenticated, "%s needs a certificate of the store", method)
	}
	caller, err := access.OfStore(store, peer, method)
	if err != nil {
		return err
	}
	var table *access.Compiled // nil, because the rules alone decide
	return table.Admit(&caller, method)
}
