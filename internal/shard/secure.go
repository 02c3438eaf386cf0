package shard

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"sheaf.dev/sheaf/internal/access"
	"sheaf.dev/sheaf/internal/certs"
	"sheaf.dev/sheaf/internal/identity"
)

// Secure makes the shard speak mutual TLS alone: callers must be of the store, and other shards be who they say.
func (c *Config) Secure(source *certs.Source) {
	store := source.Identity().Store
	c.ServerOptions = append(c.ServerOptions, access.ServerOptions(store, certs.PeerOf)...)
	c.ServerOptions = append(c.ServerOptions, grpc.Creds(source.Server(certs.ServerOptions{})))
	c.PeerCredentials = func(shard string) credentials.TransportCredentials {
		return source.Client(source.Own(identity.Shard, shard))
	}
	c.PeerCaller = func(ctx context.Context) (string, bool) {
		peer, ok := certs.PeerOf(ctx)
		return peer.Name, ok && peer.Role == identity.Shard && peer.Store == store
	}
}
