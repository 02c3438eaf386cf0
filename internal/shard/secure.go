package shard

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/internal/access"
	"sheaf.dev/sheaf/internal/certs"
	"sheaf.dev/sheaf/internal/identity"
)

// Secure makes the shard speak mutual TLS, as the mode of its certificates says: callers must be of the store, and other
// shards be who they say.
func (c *Config) Secure(source *certs.Source) {
	store := source.Identity().Store
	c.ServerOptions = append(c.ServerOptions, access.ServerOptions(store, access.CallerOf)...)
	c.ServerOptions = append(c.ServerOptions, grpc.Creds(source.Server(certs.ServerOptions{})))
	c.PeerCredentials = func(shard string) credentials.TransportCredentials {
		return source.Client(source.Own(identity.Shard, shard))
	}
	c.SpeaksFor = func(ctx context.Context, shard string) bool {
		peer, ok := certs.PeerOf(ctx)
		return certs.Plain(ctx) || ok && peer == identity.Identity{Store: store, Role: identity.Shard, Name: shard}
	}
}

// speaksTo gives the credentials by which this shard asks another one.
func (s *Shard) speaksTo(shard string) credentials.TransportCredentials {
	if s.cfg.PeerCredentials == nil {
		return insecure.NewCredentials()
	}
	return s.cfg.PeerCredentials(shard)
}
