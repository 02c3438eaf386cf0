package gateway

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"sheaf.dev/sheaf/internal/security/access/guard"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/security/ratelimit"
)

// Secure configures mutual TLS for the gateway, in the mode that source specifies. Callers must belong to the store,
// or have a token if the store has issuers. Shards must have the expected identity, and calls need a grant. The caller
// must set Store, Registry, Logger and Audit before it calls Secure, and must close the returned Guard after the
// gateway has stopped.
func (c *Config) Secure(source *certs.Source) *guard.Guard {
	g := guard.New(guard.Config{
		Store: source.Identity().Store, Who: certs.PeerOf, Open: certs.Plain, Audit: c.Audit, Logger: c.Logger,
		Key: c.Store.SigningKey, Required: source.GrantsRequired,
		Follow: func(ctx context.Context, take func([]byte)) {
			for found := range c.Store.WatchAccess(ctx) {
				take(found.Table)
			}
		},
	})
	store := source.Identity().Store
	floods := ratelimit.New(ratelimit.Config{Logger: c.Logger, HeldBytesMax: c.Limits.unfinishedMax(),
		Known: func(info credentials.AuthInfo) bool { return certs.Knows(store, info) }})
	if c.Registry != nil {
		c.Registry.MustRegister(append(g.Collectors(), floods.Collectors()...)...)
	}
	floods.Listens(&c.ListenConfig)
	c.watched = true
	c.ServerOptions = append(c.ServerOptions, g.ServerOptions()...)
	c.ServerOptions = append(c.ServerOptions, grpc.Creds(floods.Credentials(g.Credentials(
		source.Server(certs.ServerOptions{}), source.Server(certs.ServerOptions{Anonymous: true})))))
	c.web = webSecurity{interceptors: g.Interceptors(), credentials: floods.Handshakes(g.Credentials(
		source.Server(certs.ServerOptions{HTTP: true}), source.Server(certs.ServerOptions{HTTP: true, Anonymous: true})))}
	c.ShardDialOptions = append(c.ShardDialOptions, guard.DialOptions()...)
	c.ShardCredentials = func(shard string) credentials.TransportCredentials {
		return source.Client(source.Own(identity.Shard, shard))
	}
	return g
}
