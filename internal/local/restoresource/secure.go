package restoresource

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

// These are the limits of the server's connections.
const (
	streamsMax   = 64               // calls of one connection
	requestBytes = 1 << 20          // of one message that a shard sends
	pingAfter    = 10 * time.Second // a connection without traffic is asked for a sign of life
	pingPatience = 10 * time.Second // and closed if none comes
	pingsMin     = time.Second      // shards may ask this often
)

// NewServer makes the gRPC server of a source. If certificates is nil, everybody who can connect may read all records.
// Otherwise callers need the certificate of a shard of the store of the certificates, and call as that shard.
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
			return ok && peer == identity.Identity{Store: store, Role: identity.Shard, Name: shard}
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
	return g
}

// decide admits the callers that the rules of package access name for a method. No grant of a store matters for them.
func decide(ctx context.Context, store identity.Store, method string) error {
	peer, ok := certs.PeerOf(ctx)
	if !ok {
		return status.Errorf(codes.Unauthenticated, "%s needs a certificate of the store", method)
	}
	caller, err := access.OfStore(store, peer, method)
	if err != nil {
		return err
	}
	var table *access.Compiled // none
	return table.Admit(&caller, method)
}
