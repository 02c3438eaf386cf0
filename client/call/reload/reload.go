// Package reload provides TLS credentials for clients whose files may change. The files are read again for each
// connection.
package reload

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// Credentials returns client credentials. It calls the function read to get the configuration. The credentials call
// read again before each handshake. Credentials returns an error if the first read fails. If read fails later, for
// example while files are being replaced, the last configuration remains in use. If told is not nil, it is called with
// each new error that read returns, and the error of a failed handshake includes that error. Both functions must be
// safe for concurrent use.
func Credentials(read func() (*tls.Config, error), told func(error)) (credentials.TransportCredentials, error) {
	now, err := read()
	if err != nil {
		return nil, err
	}
	return &rotating{TransportCredentials: credentials.NewTLS(now), of: &source{read: read, told: told, last: now}}, nil
}

// Pair reads a certificate and its key, in PEM. It returns an error if the certificate has expired.
func Pair(certFile, keyFile string) (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err == nil && time.Now().After(pair.Leaf.NotAfter) {
		err = fmt.Errorf("it ended at %s: renew it", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate %s and key %s: %w", certFile, keyFile, err)
	}
	return pair, nil
}

// source holds the configuration that was last read.
type source struct {
	read func() (*tls.Config, error)
	told func(error)

	mu     sync.Mutex
	last   *tls.Config
	failed string // message of the last error that was passed to told; empty after a successful read
}

// now reads the configuration and returns it. If the read fails, now returns the last good configuration and the
// error.
func (s *source) now() (*tls.Config, error) {
	cfg, err := s.read()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.last, s.failed = cfg, ""
		return cfg, nil
	}
	if err.Error() != s.failed && s.told != nil {
		s.told(err)
	}
	s.failed = err.Error()
	return s.last, err
}

type rotating struct {
	credentials.TransportCredentials // provides the methods that do not depend on the files
	of                               *source
}

// ClientHandshake implements credentials.TransportCredentials.
func (r *rotating) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	cfg, odd := r.of.now()
	made, info, err := credentials.NewTLS(cfg).ClientHandshake(ctx, authority, conn)
	if err != nil && odd != nil {
		err = fmt.Errorf("%w (with the files as read before, because now: %w)", err, odd)
	}
	return made, info, err
}

// Clone implements credentials.TransportCredentials.
func (r *rotating) Clone() credentials.TransportCredentials {
	return &rotating{TransportCredentials: r.TransportCredentials.Clone(), of: r.of}
}
