package guard

import (
	"net"

	"google.golang.org/grpc/credentials"
)

// Credentials returns server credentials that accept callers without a certificate only while the table of grants has
// token issuers. The argument certified accepts only callers with a certificate. The argument open accepts all callers.
func (g *Guard) Credentials(certified, open credentials.TransportCredentials) credentials.TransportCredentials {
	return &chosen{TransportCredentials: certified, open: open, guard: g}
}

// chosen selects credentials for each handshake.
type chosen struct {
	credentials.TransportCredentials
	open  credentials.TransportCredentials
	guard *Guard
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *chosen) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if c.guard.table().HasIssuers() { // tokens can identify callers, so that these need no certificate
		return c.open.ServerHandshake(raw)
	}
	return c.TransportCredentials.ServerHandshake(raw)
}

// Clone implements credentials.TransportCredentials.
func (c *chosen) Clone() credentials.TransportCredentials {
	return &chosen{TransportCredentials: c.TransportCredentials.Clone(), open: c.open.Clone(), guard: c.guard}
}
