package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"sheaf.dev/sheaf/client/call/reload"
)

// ClientConfig describes how to reach etcd.
type ClientConfig struct {
	Endpoints []string // host:port
	// CAFile contains the authorities that sign etcd's certificates. If CAFile is empty, the system's authorities are
	// used. CertFile and KeyFile contain this process's own certificate and key. Set both of them or neither. If any of
	// the three files is set, TLS is used. The files are read again for each connection, so that certificates can be
	// rotated while the process runs.
	CAFile, CertFile, KeyFile string
	// Credentials, if not nil, is used instead of these files.
	Credentials credentials.TransportCredentials
	// Username and PasswordFile are needed if etcd uses authentication. Set both of them or neither. The password file
	// is read only once.
	Username, PasswordFile string
}

// reconnectMax is the longest pause between two attempts to connect. gRPC's default is two minutes. With it, a
// process might not notice for two minutes that etcd responds again.
const reconnectMax = 3 * time.Second

var reconnecting = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff: backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
		MaxDelay: reconnectMax},
	MinConnectTimeout: dialTimeout,
})

// Dial creates an etcd client. It returns an error if the configuration is invalid or a file cannot be read. Without
// a Username, it does not wait for a response from etcd. With one, it requests a token, and returns an error if etcd
// does not respond.
func Dial(cfg ClientConfig) (*clientv3.Client, error) {
	c := clientv3.Config{
		Endpoints:            cfg.Endpoints,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 5 * time.Second,
		Logger:               zap.NewNop(),
		DialOptions:          []grpc.DialOption{reconnecting},
	}
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("connect to etcd: no endpoint is given: give host:port")
	}
	if cfg.UsesFiles() {
		files, err := reload.Credentials(cfg.tls, func(err error) {
			slog.Error("files for connections to etcd are not taken, those read before stay in use", "error", err)
		})
		if err != nil {
			return nil, fmt.Errorf("connect to etcd: %w", err)
		}
		// The client library looks at this TLS configuration only to choose the URL scheme. The connections use the
		// credentials.
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		c.DialOptions = append(c.DialOptions, grpc.WithTransportCredentials(files))
	}
	if cfg.Credentials != nil {
		c.DialOptions = append(c.DialOptions, grpc.WithTransportCredentials(cfg.Credentials))
	}
	if (cfg.Username == "") != (cfg.PasswordFile == "") {
		return nil, errors.New("connect to etcd: give a user name and a password file, or neither")
	}
	if cfg.Username != "" {
		password, err := os.ReadFile(cfg.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("connect to etcd: read the password: %w", err)
		}
		if c.Username, c.Password = cfg.Username, strings.TrimRight(string(password), "\r\n"); c.Password == "" {
			return nil, fmt.Errorf("connect to etcd: the password file %s is empty", cfg.PasswordFile)
		}
	}
	c.DialOptions = append(c.DialOptions, grpc.WithNoProxy())
	client, err := clientv3.New(c)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(cfg.Endpoints, ", "), err)
	}
	return client, nil
}

// UsesFiles reports whether any of the TLS files is configured.
func (cfg *ClientConfig) UsesFiles() bool {
	return cfg.CAFile != "" || cfg.CertFile != "" || cfg.KeyFile != ""
}

// tls reads the certificate files and returns a TLS configuration that uses them.
func (cfg *ClientConfig) tls() (*tls.Config, error) {
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, errors.New("give a certificate file and a key file, or neither")
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		content, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the certificates of etcd's authorities: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(content) {
			return nil, fmt.Errorf("%s holds no certificate in PEM", cfg.CAFile)
		}
	}
	if cfg.CertFile != "" {
		pair, err := reload.Pair(cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return nil, err
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}
