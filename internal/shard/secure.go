package shard

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/internal/security/access/guard"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/security/ratelimit"
)

// Secure makes the shard speak mutual TLS, as the mode of its certificates says: callers must be of the store, or be
// named by a token where the store has issuers, or by a gateway; other shards be who they say; and calls be granted.
// Placement, Registry, Logger and Audit are set before. The caller closes what it gives when the shard has ended.
func (c *Config) Secure(source *certs.Source) *guard.Guard {
	store, tables := source.Identity().Store, c.Placement
	c.tables = newTables()
	shared := c.tables
	g := guard.New(guard.Config{
		Store: store, Who: certs.PeerOf, Open: certs.Plain, Forwarded: true, Audit: c.Audit, Logger: c.Logger,
		Key: tables.SealKey, Required: source.GrantsRequired,
		Follow: func(ctx context.Context, take func([]byte)) {
			for found := range tables.WatchAccess(ctx) {
				take(found.Table)
				shared.set(found)
			}
		},
	})
	floods := ratelimit.New(ratelimit.Config{Logger: c.Logger, Exempt: func(info credentials.AuthInfo) bool {
		return carriesOthers(store, info)
	}})
	if c.Registry != nil {
		c.Registry.MustRegister(append(g.Collectors(), floods.Collectors()...)...)
	}
	floods.Listens(&c.ListenConfig)
	c.ServerOptions = append(c.ServerOptions, g.ServerOptions()...)
	c.ServerOptions = append(c.ServerOptions, grpc.Creds(floods.Credentials(g.Credentials(
		source.Server(certs.ServerOptions{}), source.Server(certs.ServerOptions{Anonymous: true})))))
	c.PeerCredentials = func(shard string) credentials.TransportCredentials {
		return source.Client(source.Own(identity.Shard, shard))
	}
	c.SpeaksFor = func(ctx context.Context, shard string) bool {
		peer, ok := certs.PeerOf(ctx)
		return certs.Plain(ctx) || ok && peer == identity.Identity{Store: store, Role: identity.Shard, Name: shard}
	}
	return g
}

// carriesOthers tells whether a connection is that of a gateway or shard of the store: a gateway's has the calls, and
// the resets, of all its callers, and must not be read slowly for what one of them does.
func carriesOthers(store identity.Store, info credentials.AuthInfo) bool {
	known, ok := info.(certs.AuthInfo)
	return ok && known.Peer.Store == store && (known.Peer.Role == identity.Gateway || known.Peer.Role == identity.Shard)
}

// speaksTo gives the credentials by which the shard asks another one.
func (c *Config) speaksTo(shard string) credentials.TransportCredentials {
	if c.PeerCredentials == nil {
		return insecure.NewCredentials()
	}
	return c.PeerCredentials(shard)
}
