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

// Secure configures mutual TLS for the shard, in the mode that its certificates require. A caller must belong to the
// store, present a token if the store has issuers, or be named by a gateway. Other shards must prove their names, and
// calls need a grant. Before the call, the caller of Secure sets Placement, Registry, Logger and Audit. It closes the
// returned guard after the shard has stopped.
func (c *Config) Secure(source *certs.Source) *guard.Guard {
	store, tables := source.Identity().Store, c.Placement
	c.tables = newTables()
	shared := c.tables
	g := guard.New(guard.Config{
		Store: store, Who: certs.PeerOf, Open: certs.Plain, Forwarded: true, Audit: c.Audit, Logger: c.Logger,
		Key: tables.SigningKey, Required: source.GrantsRequired,
		Follow: func(ctx context.Context, take func([]byte)) {
			for found := range tables.WatchAccess(ctx) {
				take(found.Table)
				shared.set(found)
			}
		},
	})
	floods := ratelimit.New(ratelimit.Config{Logger: c.Logger, HeldBytesMax: c.Limits.unfinishedMax(),
		Exempt: func(info credentials.AuthInfo) bool { return carriesOthers(store, info) },
		Known:  func(info credentials.AuthInfo) bool { return certs.Knows(store, info) }})
	if c.Registry != nil {
		c.Registry.MustRegister(append(g.Collectors(), floods.Collectors()...)...)
	}
	floods.Listens(&c.ListenConfig)
	c.watched = true
	c.ServerOptions = append(c.ServerOptions, g.ServerOptions()...)
	c.ServerOptions = append(c.ServerOptions, grpc.Creds(floods.Credentials(g.Credentials(
		source.Server(certs.ServerOptions{}), source.Server(certs.ServerOptions{Anonymous: true})))))
	c.PeerCredentials = func(shard string) credentials.TransportCredentials {
		return source.Client(source.Own(identity.Shard, shard))
	}
	c.SourceCredentials = func() credentials.TransportCredentials {
		return source.Client(source.Own(identity.Archive, ""))
	}
	c.SpeaksFor = func(ctx context.Context, shard string) bool {
		peer, ok := certs.PeerOf(ctx)
		return certs.Plain(ctx) || ok && peer == identity.Identity{Store: store, Role: identity.Shard, Name: shard}
	}
	return g
}

// carriesOthers reports whether a connection belongs to a gateway or a shard of the store. A gateway sends the calls
// and resets of all its callers over one connection, so that connection must not be throttled because of a single
// caller.
func carriesOthers(store identity.Store, info credentials.AuthInfo) bool {
	known, ok := info.(certs.AuthInfo)
	return ok && known.Peer.Store == store && (known.Peer.Role == identity.Gateway || known.Peer.Role == identity.Shard)
}

// speaksTo returns the credentials with which this shard connects to another one.
func (c *Config) speaksTo(shard string) credentials.TransportCredentials {
	if c.PeerCredentials == nil {
		return insecure.NewCredentials()
	}
	return c.PeerCredentials(shard)
}
