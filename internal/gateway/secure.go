package gateway

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"sheaf.dev/sheaf/internal/access"
	"sheaf.dev/sheaf/internal/certs"
	"sheaf.dev/sheaf/internal/identity"
)

// Secure makes the gateway speak mutual TLS, as the mode of its certificates says: callers must be of the store, and
// shards be who they are said to be.
func (c *Config) Secure(source *certs.Source) {
	c.ServerOptions = append(c.ServerOptions, access.ServerOptions(source.Identity().Store, access.CallerOf)...)
	c.ServerOptions = append(c.ServerOptions, grpc.Creds(source.Server(certs.ServerOptions{})))
	c.ShardCredentials = func(shard string) credentials.TransportCredentials {
		return source.Client(source.Own(identity.Shard, shard))
	}
}
