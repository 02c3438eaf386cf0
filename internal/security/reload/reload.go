// Package reload provides TLS credentials for clients whose files may change: they are read again for each connection.
package reload

import (
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"
)

// Credentials returns credentials of a client that calls read for its configuration, now and before each handshake. The
// returned error is that of read; a later error fails the handshake. read must be safe for concurrent use.
func Credentials(read func() (*tls.Config, error)) (credentials.TransportCredentials, error) {
	now, err := read()
	if err != nil {
		return nil, err
	}
	return &rotating{TransportCredentials: credentials.NewTLS(now), read: read}, nil
}

type rotating struct {
	credentials.TransportCredentials // for methods that do not depend on the files
	read                             func() (*tls.Config, error)
}

// ClientHandshake implements credentials.TransportCredentials.
func (r *rotating) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	now, err := r.read()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(now).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (r *rotating) Clone() credentials.TransportCredentials {
	return &rotating{TransportCredentials: r.TransportCredentials.Clone(), read: r.read}
}
